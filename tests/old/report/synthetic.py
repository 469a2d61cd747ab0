"""Made-up comparisons for the tests of the report."""

import base64
import io
import math
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image

from headwise.analysis.decisions.snapshots import AttentionRecord
from headwise.analysis.how_soon import HowSoon
from headwise.analysis.results import (
    Benchmark,
    ComparedPicture,
    ComparedSample,
    Comparison,
    Course,
    RunResult,
    SystemSummary,
    sound_runs,
)
from headwise.analysis.speed import OverRounds
from headwise.analysis.statistics.seeds_and_items import compare_outcomes
from headwise.models.plan import SYSTEMS
from headwise.tasks.outcome import Outcome, Score

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
    noise: float = 0.15  # standard error of its own ways with the items, in points of BLEU
    system: str = ""  # whose records it has
    experts: int = 0
    chosen: int = 0
    sites: tuple[str, ...] = SITES


FIGURES = {
    "standard": Made(26.4, 2.12, 1.00),
    "weighted": Made(25.6, 2.19, 1.12, system="weighted", experts=8, sites=SITES[::2]),
    "agreement": Made(26.2, 2.13, 1.74, system="agreement", experts=8, sites=SITES[:1]),
    "mae-7": Made(27.3, 2.05, 1.06, system="mae", experts=8),
    "tim": Made(27.1, 2.07, 1.22, system="tim", experts=2, sites=SITES[:2]),
    "moa": Made(26.9, 2.08, 1.31, 0.6, "moa", 16, 4),  # its lead may be chance
}
ITEMS = 40
DESCRIPTIONS = {"mae-7": "experts of 7 of 8 heads, a gate per sentence"}


def comparison(
    systems: tuple[str, ...] = ("standard", "mae-7", "moa"), seeds: int = 1, layers: int = 2
) -> Comparison:
    """Of systems named in FIGURES; any other is another standard one."""
    made = [_system(name, number, seeds, layers) for number, name in enumerate(systems)]
    found = Comparison(
        title="English → French interface strings",
        task="translation",
        loss_name="nats per token",
        item_name="sentences",
        baseline="standard",
        systems=made,
        samples=[
            ComparedSample(
                given={"Source": source, "Reference": reference},
                made=_translate(reference, systems),
            )
            for source, reference in [
                ("Close tab & save <b>all</b>", "Fermer l'onglet et tout enregistrer"),
                (HOSTILE, "Ceci n'est pas un « script » & c'est tout"),
                (LONG, LONG.replace("quick", "vif")),
            ]
        ],
        facts={"pairs": "2,541 training, 300 validation, 300 test", "vocabulary": "2,000 joint"},
        recipe="training:\n  max_steps: 600\n  learning_rate: 0.001\nname: <recipe>\n",
        command="headwise compare interface-strings --systems standard,mae-7,moa --seeds 0",
        versions={"headwise": "0.1.0", "torch": "2.8.0"},
        machine="CPU, 2 cores",
    )
    judge(found)
    return found


def judge(comparison: Comparison, *, has_items: bool = True) -> None:
    """Sets estimates and differences to those of the scores of the runs that did not diverge.

    Items are made up so that their means are these scores. Seeds of a system do alike on them.
    """
    kinds = {kind.task: kind.spread for kind in KINDS.values()}
    outcomes = {
        system.name: [
            Outcome(
                scores=run.scores,
                items={s.name: _items(system.name, s.value, scale).tolist() for s in run.scores}
                if has_items
                else {},
            )
            for run in sound_runs(system)
        ]
        for scale in [abs(kinds.get(comparison.task, 1.0))]
        for system in comparison.systems
    }
    estimates, differences = compare_outcomes(outcomes, comparison.baseline, lambda _: _mean_of)
    for system in comparison.systems:
        system.estimates = estimates[system.name]
        system.difference = differences.get(system.name)


def _items(system: str, score: float, scale: float) -> np.ndarray:
    """A number for each item, whose mean has a standard error of one point of BLEU."""
    noise = FIGURES.get(system, FIGURES["standard"]).noise
    shared, own = (
        np.random.default_rng(list(name.encode())).normal(size=ITEMS) for name in ("all", system)
    )
    values = (shared - shared.mean()) + noise * (own - own.mean())
    return score + scale * math.sqrt(ITEMS) * values[:, None]


def _mean_of(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return counts @ rows[:, 0] / len(rows)


def _system(name: str, number: int, seeds: int, layers: int) -> SystemSummary:
    made = FIGURES.get(name, FIGURES["standard"])
    return SystemSummary(
        name=name,
        description=DESCRIPTIONS.get(name, ""),
        runs=[
            _run(name, number, seed, 0.1 * (seed - (seeds - 1) / 2), layers)
            for seed in range(seeds)
        ],
        relative_step_time=OverRounds(
            value=made.step_time,
            low=made.step_time - 0.04 * (number > 0),
            high=made.step_time + 0.06 * (number > 0),
            rounds=7,
        ),
        how_soon=HowSoon(),
    )


def _run(name: str, number: int, seed: int, luck: float, layers: int) -> RunResult:
    made = FIGURES.get(name, FIGURES["standard"])
    noise = random.Random(100 * number + seed)
    bleu = made.bleu + luck
    loss = made.loss + 0.02 * seed
    return RunResult(
        system=name,
        seed=seed,
        parameters=1_534_208 + 20_000 * number,
        macs=41_200_000 + 400_000 * number,
        macs_lengths={"encoder": 24, "decoder": 24},
        steps=600,
        seconds=190.0 + 30 * number,
        validation_loss=loss,
        history=_history(loss, noise),
        scores=[
            Score(
                name="BLEU",
                value=bleu,
                low=bleu - 1.9,
                high=bleu + 2.1,
                note="nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a|smooth:exp",
            ),
            Score(
                name="chrF",
                value=bleu + 22,
                note="nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no",
            ),
        ],
        attention=[
            _record(site, layer, made, noise)
            for site in made.sites
            for layer in range(layers)
            if made.experts
        ],
        courses=[
            _course(site, layer, made.experts, noise)
            for site in made.sites
            for layer in range(layers)
            if made.system == "weighted"
        ],
        words={made.system: SYSTEMS[made.system].words} if made.system else {},
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
        noise.random() ** (0.3 if made.system == "agreement" else 2) for _ in range(made.experts)
    ]
    shares = [weight / sum(weights) for weight in weights]
    uniform = math.log(made.chosen or made.experts)
    entropy = uniform * noise.uniform(0.6, 0.98)
    percentiles = {10: 0.6 * entropy, 50: entropy, 90: min(uniform, 1.2 * entropy)}
    if made.system == "weighted":  # one row, whose entropy is its own percentiles
        entropy = -sum(share * math.log(share) for share in shares)
        percentiles = dict.fromkeys(percentiles, entropy)
    return AttentionRecord(
        site=site,
        layer=layer,
        system=made.system,
        whole_layer=made.system == "tim",
        experts=made.experts,
        entropy=entropy,
        load=shares,
        uniform=uniform,
        entropy_percentiles=percentiles,
    )


def _course(site: str, layer: int, branches: int, noise: random.Random) -> Course:
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
    return Course(
        site=site,
        layer=layer,
        system="weighted",
        steps=list(range(0, 601, 10)),
        values={"kappa": walks[0], "alpha": walks[1]},
    )


def _translate(reference: str, systems: tuple[str, ...]) -> dict[str, str]:
    return {
        name: reference if number == 1 else reference.replace("et", "ou") + " <i>?</i>"
        for number, name in enumerate(systems)
    }


@dataclass(frozen=True)
class Kind:
    """How the scores of another task look; the first is better where BLEU is."""

    task: str
    loss_name: str
    loss_has_perplexity: bool
    item_name: str
    scores: tuple[Score, ...]
    spread: float  # of the first score, for a point of BLEU
    stack: str


KINDS = {
    "language-modelling": Kind(
        "language-modelling",
        "nats per token",
        True,
        "blocks",
        (
            Score(name="word perplexity", value=88.0, low=0, high=0, higher_is_better=False,
                  is_perplexity=True),
            Score(name="bits per byte", value=1.934, higher_is_better=False, digits=3),
        ),
        -2.0,
        "decoder",
    ),
    "images": Kind(
        "images",
        "nats per pixel",
        False,
        "images",
        (Score(name="Bits per dimension", value=3.2, low=0, high=0, digits=3,
               higher_is_better=False, note="of quantised pixels"),),
        -0.02,
        "decoder",
    ),
    "classification": Kind(
        "classification",
        "nats per example",
        False,
        "examples",
        (Score(name="Accuracy", value=76.0, low=0, high=0),),
        1.0,
        "encoder",
    ),
    "speech": Kind(
        "speech-enhancement",
        "squared error",
        False,
        "utterances",
        (
            Score(name="PESQ", value=2.41, low=0, high=0, digits=2),
            Score(name="PESQ noisy", value=1.97, digits=2),
            Score(name="SI-SDR", value=12.3),
            Score(name="SI-SDR noisy", value=8.1),
        ),
        0.05,
        "encoder",
    ),
}  # fmt: skip


def of_task(kind: str, systems: tuple[str, ...] = ALL, seeds: int = 1) -> Comparison:
    """The same systems on another task."""
    made, look = comparison(systems, seeds=seeds), KINDS[kind]
    made.task, made.loss_name, made.item_name = look.task, look.loss_name, look.item_name
    made.loss_has_perplexity = look.loss_has_perplexity
    made.title, made.samples = kind, []
    for system in made.systems:
        for run in system.runs:
            lead = (run.scores[0].value - FIGURES["standard"].bleu) * look.spread
            first, *further = look.scores
            run.scores = [_moved(first, lead, abs(look.spread)), *further]
            run.macs_lengths = {look.stack: 784}
            run.attention = [r for r in run.attention if r.site == "encoder_self"]
            for record in [*run.attention, *run.courses]:
                record.site = f"{look.stack}_self"
            run.courses = run.courses[: len(run.attention)]
    judge(made)
    return made


def _moved(score: Score, lead: float, room: float) -> Score:
    value = score.value + lead
    ends = {} if score.low is None else {"low": value - room, "high": value + room}
    return score.model_copy(update={"value": value, **ends})


def benchmark(
    systems: tuple[str, ...] = ("standard", "mae-7", "moa"), seeds: int = 3, data_sets: int = 3
) -> Benchmark:
    """Classification of several data sets."""
    names = ("SeLen", "WC", "BShift", "TopConst", "Tense", "SubjNum", "ObjNum", "SOMO", "TreeD")
    found = {}
    for number, name in enumerate((*names, "CoordInv")[:data_sets]):
        made = of_task("classification", systems, seeds)
        made.title = f"probing, {name}"
        for system in made.systems:
            for run in system.runs:
                run.scores[0].value += number if system.name == "standard" else 0.2 * number
        judge(made)
        found[name] = made
    return Benchmark(title="probing", comparisons=found)


def png(width: int = 40, height: int = 20, shade: int = 128) -> str:
    """A grey PNG, as base64."""
    content = io.BytesIO()
    Image.new("L", (width, height), shade).save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode("ascii")


def picture(title: str, systems: tuple[str, ...], width: int = 300) -> ComparedPicture:
    """Another picture for each system."""
    return ComparedPicture(
        title=title,
        captions=dict.fromkeys(systems, "Left the image, right who wins each pixel."),
        pngs={name: png(width, width // 2, 20 * n) for n, name in enumerate(systems)},
    )
