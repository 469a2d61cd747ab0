"""Made-up comparisons for the tests of the report."""

import math
import random

from headwise.analysis.results import (
    AttentionRecord,
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
# system: BLEU, final loss, step time, experts, chosen experts (0: gates over all)
FIGURES = {
    "standard": (26.4, 2.12, 1.00, 0, 0),
    "mae-7": (27.3, 2.05, 1.06, 8, 0),
    "moa": (26.9, 2.08, 1.31, 16, 4),
}


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
    bleu, _, ratio, _, _ = FIGURES.get(name, FIGURES["standard"])
    test = PairedTest(
        baseline="standard",
        bleu_difference=bleu - FIGURES["standard"][0],
        p_value=0.012 if name == "mae-7" else 0.21,
    )
    return SystemSummary(
        name=name,
        description={"mae-7": "experts of 7 of 8 heads, a gate per sentence"}.get(name, ""),
        runs=[_run(name, number, seed, layers) for seed in range(seeds)],
        relative_step_time=ratio,
        paired_test=None if name == "standard" else test,
    )


def _run(name: str, number: int, seed: int, layers: int) -> RunResult:
    bleu, loss, _, experts, chosen = FIGURES.get(name, FIGURES["standard"])
    noise = random.Random(100 * number + seed)
    bleu += 0.3 * seed
    loss += 0.02 * seed
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
            _record(site, layer, experts, chosen, noise)
            for site in SITES
            for layer in range(layers)
            if experts
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


def _record(
    site: str, layer: int, experts: int, chosen: int, noise: random.Random
) -> AttentionRecord:
    shares = [noise.random() ** 2 for _ in range(experts)]
    uniform = math.log(chosen or experts)
    return AttentionRecord(
        site=site,
        layer=layer,
        kind="choices" if chosen else "gates",
        experts=experts,
        entropy=uniform * noise.uniform(0.6, 0.98),
        load=[share / sum(shares) for share in shares],
        uniform=uniform,
    )


def _translate(reference: str, systems: tuple[str, ...]) -> dict[str, str]:
    return {
        name: reference if number == 1 else reference.replace("et", "ou") + " <i>?</i>"
        for number, name in enumerate(systems)
    }
