"""Made-up comparisons for the tests of the report."""

import math
import random
from dataclasses import dataclass

from headwise.analysis.results import (
    AttentionRecord,
    BranchTrajectory,
    Comparison,
    PairedTest,
    RunResult,
    Sample,
    Score,
    SystemSummary,
)

SITES = ("encoder_self", "decoder_self", "decoder_cross")
LONG = "The quick brown fox jumps over the lazy dog, and then it does so once again. " * 12
HOSTILE = '<script src="https://evil.example/x.js">alert("x")</script> & café ↔ 日本語'
ALL = ("standard", "weighted", "agreement", "mae-7", "tim", "moa")


@dataclass(frozen=True)
class Made:
    """What a made-up system has found."""

    bleu: float
    loss: float
    step_time: float
    p_value: float = 1.0
    kind: str = ""  # of what is recorded of it
    experts: int = 0
    chosen: int = 0
    sites: tuple[str, ...] = SITES


FIGURES = {
    "standard": Made(26.4, 2.12, 1.00),
    "weighted": Made(25.6, 2.19, 1.12, 0.004, "branches", 8, sites=SITES[::2]),
    "agreement": Made(26.2, 2.13, 1.74, 0.62, "agreement", 8, sites=SITES[:1]),
    "mae-7": Made(27.3, 2.05, 1.06, 0.012, "gates", 8),
    "tim": Made(27.1, 2.07, 1.22, 0.031, "competition", 2, sites=SITES[:2]),
    "moa": Made(26.9, 2.08, 1.31, 0.21, "choices", 16, 4),
}
DESCRIPTIONS = {"mae-7": "experts of 7 of 8 heads, a gate per sentence"}


def comparison(
    systems: tuple[str, ...] = ("standard", "mae-7", "moa"), seeds: int = 1, layers: int = 2
) -> Comparison:
    """Of systems named in FIGURES; any other is another standard one."""
    made = [_system(name, number, seeds, layers) for number, name in enumerate(systems)]
    return Comparison(
        title="English → French interface strings",
        baseline="standard",
        systems=made,
        samples=[
            Sample(source=source, reference=reference, translations=_translate(reference, systems))
            for source, reference in [
                ("Close tab & save <b>all</b>", "Fermer l'onglet et tout enregistrer"),
                (HOSTILE, "Ceci n'est pas un « script » & c'est tout"),
                (LONG, LONG.replace("quick", "vif")),
            ]
        ],
        corpus={"pairs": "2,541 training, 300 validation, 300 test", "vocabulary": "2,000 joint"},
        recipe="training:\n  max_steps: 600\n  learning_rate: 0.001\nname: <recipe>\n",
        command="headwise compare interface-strings --systems standard,mae-7,moa --seeds 0",
        versions={"headwise": "0.1.0", "torch": "2.8.0"},
        machine="CPU, 2 cores",
    )


def _system(name: str, number: int, seeds: int, layers: int) -> SystemSummary:
    made = FIGURES.get(name, FIGURES["standard"])
    test = PairedTest(
        baseline="standard",
        bleu_difference=made.bleu - FIGURES["standard"].bleu,
        p_value=made.p_value,
    )
    return SystemSummary(
        name=name,
        description=DESCRIPTIONS.get(name, ""),
        runs=[_run(name, number, seed, layers) for seed in range(seeds)],
        relative_step_time=made.step_time,
        paired_test=None if name == "standard" else test,
    )


def _run(name: str, number: int, seed: int, layers: int) -> RunResult:
    made = FIGURES.get(name, FIGURES["standard"])
    noise = random.Random(100 * number + seed)
    bleu = made.bleu + 0.3 * seed
    loss = made.loss + 0.02 * seed
    return RunResult(
        system=name,
        seed=seed,
        parameters=1_534_208 + 20_000 * number,
        macs=41_200_000 + 400_000 * number,
        macs_lengths=(24, 24),
        steps=600,
        seconds=190.0 + 30 * number,
        validation_loss=loss,
        history=_history(loss, noise),
        score=Score(
            bleu=bleu,
            bleu_low=bleu - 1.9,
            bleu_high=bleu + 2.1,
            chrf=bleu + 22,
            bleu_signature="nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp",
            chrf_signature="nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no",
        ),
        attention=[
            _record(site, layer, made, noise)
            for site in made.sites
            for layer in range(layers)
            if made.experts
        ],
        branches=[
            _trajectory(site, layer, made.experts, noise)
            for site in made.sites
            for layer in range(layers)
            if made.kind == "branches"
        ],
    )


def _history(loss: float, noise: random.Random) -> list[dict[str, float]]:
    records: list[dict[str, float]] = []
    for step in range(10, 601, 10):
        value = loss + (7.6 - loss) * math.exp(-step / 110)
        records.append({"step": step, "loss": value + 0.3 + noise.gauss(0, 0.12), "epoch": 1.0})
        if step % 50 == 0:
            records.append({"step": step, "eval_loss": value + noise.gauss(0, 0.015)})
    return records


def _record(site: str, layer: int, made: Made, noise: random.Random) -> AttentionRecord:
    weights = [
        noise.random() ** (0.3 if made.kind == "agreement" else 2) for _ in range(made.experts)
    ]
    shares = [weight / sum(weights) for weight in weights]
    uniform = math.log(made.chosen or made.experts)
    entropy = uniform * noise.uniform(0.6, 0.98)
    percentiles = {10: 0.6 * entropy, 50: entropy, 90: min(uniform, 1.2 * entropy)}
    if made.kind == "branches":  # one row, whose entropy is its own percentiles
        entropy = -sum(share * math.log(share) for share in shares)
        percentiles = dict.fromkeys(percentiles, entropy)
    return AttentionRecord(
        site=site,
        layer=layer,
        kind=made.kind,
        experts=made.experts,
        entropy=entropy,
        load=shares,
        uniform=uniform,
        entropy_percentiles=percentiles,
    )


def _trajectory(site: str, layer: int, branches: int, noise: random.Random) -> BranchTrajectory:
    """A random walk that settles, as a freeze makes it."""
    walks: list[list[list[float]]] = []
    for _ in range(2):
        logits = [noise.gauss(0, 0.7) for _ in range(branches)]
        rows = []
        for step in range(0, 601, 10):
            rate = 0.25 * max(0.0, 1 - step / 450)
            logits = [logit + noise.gauss(0, rate) for logit in logits]
            total = sum(map(math.exp, logits))
            rows.append([math.exp(logit) / total for logit in logits])
        walks.append(rows)
    return BranchTrajectory(
        site=site, layer=layer, steps=list(range(0, 601, 10)), kappa=walks[0], alpha=walks[1]
    )


def _translate(reference: str, systems: tuple[str, ...]) -> dict[str, str]:
    return {
        name: reference if number == 1 else reference.replace("et", "ou") + " <i>?</i>"
        for number, name in enumerate(systems)
    }
