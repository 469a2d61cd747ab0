"""How often the test of a comparison errs, by simulation: python benchmarks/chance.py

Systems are simulated that are equally good: test items, a system's own way with each item, seeds,
and a seed's own way with each item are independent draws. A test at 5% should find a difference in
5% of the comparisons or less. Three procedures judge the same simulated scores:

first seed    the paired bootstrap over items of the first seed alone
resampled     a bootstrap that draws seeds and items anew, both at once
headwise      the test of the report, headwise.analysis.statistics

Two more tables follow. A true difference of the size that the report calls detectable should be
found in about 80% of the comparisons. Tables of five systems that are as good as the baseline
should have a star in 5% or less, which Holm's correction is for.
"""

import argparse
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headwise.analysis.statistics.estimates import SIGNIFICANT, corrected
from headwise.analysis.statistics.seeds_and_items import Resampled, difference
from headwise.tasks.scores import Score, as_rows, resampled_scores

SEEDS = (1, 3, 5)
# Standard deviation of the scores of seeds, in standard errors of a difference over items.
SPREADS = (0, 1, 3)
SYSTEMS = 5
_CHUNK = 100  # comparisons of one call of a worker


class World(NamedTuple):
    """A kind of score with simulated items.

    Attributes:
        items: how many there are.
        rows: computes rows of numbers from the qualities of the items.
        statistic: computes the score, see `Score.statistic`.
        unit: a standard deviation of the qualities of seeds that moves the score by the standard
            error of a difference over items, found by simulation.
    """

    items: int
    rows: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    statistic: str
    unit: float


def right_or_wrong(generator: np.random.Generator, quality: np.ndarray) -> np.ndarray:
    """100 for each item that is right, and 1."""
    return np.stack([100.0 * (quality > -0.8), np.ones(len(quality))], axis=1)


def nats(generator: np.random.Generator, quality: np.ndarray) -> np.ndarray:
    """Nats and words of blocks of text."""
    return np.stack([120 * np.exp(1.4 - 0.15 * quality), np.full(len(quality), 120.0)], axis=1)


def matches(generator: np.random.Generator, quality: np.ndarray) -> np.ndarray:
    """Lengths, matches and numbers of n-grams of sentences; n words match if n − 1 of them do."""
    lengths = 4 + np.random.default_rng(0).poisson(8, len(quality))
    chance = 1 / (1 + np.exp(-(0.3 + 0.6 * quality)))
    made = np.maximum(1, lengths + generator.integers(-2, 3, len(quality)))
    numbers = [np.maximum(0, made - order) for order in range(4)]
    matched, left = [], made
    for number in numbers:
        left = generator.binomial(np.minimum(left, number), chance)
        matched.append(left)
    return np.stack([made, lengths, *matched, *numbers], axis=1).astype(float)


WORLDS = {
    "accuracy, 500 items": World(500, right_or_wrong, "ratio", 0.083),
    "perplexity, 100 blocks": World(100, nats, "perplexity", 0.11),
    "BLEU, 300 sentences": World(300, matches, "bleu", 0.085),
}
# Standard deviations of quality: of items, of systems' ways with items, of seeds' ways with items.
_ITEM, _SYSTEM_AND_ITEM, _SEED_AND_ITEM = 1.0, 0.4, 0.6


def simulate(
    world: World,
    seeds: int,
    spread: float,
    generator: np.random.Generator,
    *,
    systems: int = 2,
    lead: float = 0.0,
) -> list[Resampled]:
    """The scores of systems on the same items; the last system's quality is greater by `lead`."""

    def drawn(deviation: float) -> np.ndarray:
        return deviation * generator.normal(size=world.items)

    items, runs = drawn(_ITEM), []
    for system in range(systems):
        own = items + drawn(_SYSTEM_AND_ITEM) + (lead if system == systems - 1 else 0.0)
        for _ in range(seeds):
            quality = own + spread * world.unit * generator.normal() + drawn(_SEED_AND_ITEM)
            rows = world.rows(generator, quality).tolist()
            runs.append(Score(name="", value=math.nan, statistic=world.statistic, rows=rows))
    once = np.ones((1, world.items))
    scores = np.array([run.of_resamples(as_rows(run.rows), once)[0] for run in runs])
    resamples = resampled_scores(runs)
    return [
        Resampled(of_system, of_items, world.items)
        for of_system, of_items in zip(
            scores.reshape(systems, seeds), resamples.reshape(systems, seeds, -1), strict=True
        )
    ]


def first_seed_errs(one: Resampled, other: Resampled) -> bool:
    first = [Resampled(s.scores[:1], s.resamples[:1], s.items) for s in (one, other)]
    return difference(*first).p_value < SIGNIFICANT


def resampling_errs(one: Resampled, other: Resampled, generator: np.random.Generator) -> bool:
    drawn = []
    for system in (one, other):
        seeds, resamples = system.resamples.shape
        chosen = generator.integers(seeds, size=(seeds, resamples))
        drawn.append(system.resamples[chosen, np.arange(resamples)].mean(0))
    differences = drawn[0] - drawn[1]
    observed = abs(one.scores.mean() - other.scores.mean())
    strayed = np.abs(differences - differences.mean()) >= observed
    return (strayed.sum() + 1) / (len(differences) + 1) < SIGNIFICANT


class Cell(NamedTuple):
    """What is simulated: a kind of score, seeds, their spread, systems and the lead of the last."""

    world: str
    seeds: int
    spread: float
    systems: int = 2
    lead: float = 0.0


def judge(cell: Cell, number: int, seed: int) -> dict[str, list[float]]:
    """What the procedures say of simulated comparisons: a figure for each comparison."""
    generator = np.random.default_rng([seed, cell.seeds, cell.systems, round(10 * cell.spread)])
    said: dict[str, list[float]] = {}
    for _ in range(number):
        systems = simulate(
            WORLDS[cell.world],
            cell.seeds,
            cell.spread,
            generator,
            systems=cell.systems,
            lead=cell.lead,
        )
        baseline, *others = systems
        found = {
            number: difference(other, baseline, len(others)) for number, other in enumerate(others)
        }
        judged = {
            "headwise": any(each.significant for each in corrected(found).values()),
            "not corrected": any(
                each.p_value < SIGNIFICANT and each.source != "items" for each in found.values()
            ),
            "first seed": first_seed_errs(baseline, others[-1]),
            "resampled": resampling_errs(baseline, others[-1], generator),
            "detectable": found[len(others) - 1].detectable or math.nan,
            "lead": found[len(others) - 1].value,
        }
        for name, figure in judged.items():
            said.setdefault(name, []).append(float(figure))
    return said


def judged(cells: list[Cell], comparisons: int, processes: int) -> list[dict[str, list[float]]]:
    """What the procedures say of each cell, with a bar."""
    chunks = -(-comparisons // _CHUNK)
    with ProcessPoolExecutor(processes) as pool, Progress() as progress:
        bar = progress.add_task("simulating", total=len(cells) * chunks)
        waiting = [
            [pool.submit(judge, cell, _CHUNK, seed) for seed in range(chunks)] for cell in cells
        ]
        found: list[dict[str, list[float]]] = []
        for of_cell in waiting:
            merged: dict[str, list[float]] = {}
            for future in of_cell:
                for name, figures in future.result().items():
                    merged.setdefault(name, []).extend(figures)
                progress.advance(bar)
            found.append(merged)
    return found


def percent(figures: list[float]) -> str:
    return f"{100 * fmean(figures):.1f}%"


def without_difference(comparisons: int, processes: int) -> Table:
    """How often each procedure finds a difference where there is none."""
    cells = [Cell(w, seeds, spread) for w in WORLDS for seeds in SEEDS for spread in SPREADS]
    table = Table("score", "seeds", "spread of seeds", "first seed", "resampled", "headwise")
    table.title = f"Differences found where there are none, in {comparisons:,} comparisons each"
    for cell, said in zip(cells, judged(cells, comparisons, processes), strict=True):
        shares = [percent(said[name]) for name in ("first seed", "resampled", "headwise")]
        table.add_row(cell.world, str(cell.seeds), f"{cell.spread} ×", *shares)
    return table


def of_detectable_size(comparisons: int, processes: int) -> Table:
    """How often a difference of the detectable size is found, and how large it is."""
    # How far a lead in quality moves a score, and how large a difference is detectable.
    known = [Cell(world, seeds, 1.0, lead=0.2) for world in WORLDS for seeds in SEEDS[1:]]
    leading = []
    for cell, said in zip(known, judged(known, comparisons, processes), strict=True):
        lead = 0.2 * median(said["detectable"]) / abs(fmean(said["lead"]))
        leading.append(cell._replace(lead=lead))
    table = Table("score", "seeds", "true difference", "found")
    table.title = "Differences of the detectable size, spread 1 ×"
    for cell, said in zip(leading, judged(leading, comparisons, processes), strict=True):
        size = f"{abs(fmean(said['lead'])):.1f}"
        table.add_row(cell.world, str(cell.seeds), size, percent(said["headwise"]))
    return table


def of_several_systems(comparisons: int, processes: int) -> Table:
    """How often a table of systems without differences has a star."""
    cells = [Cell(world, 3, 1.0, systems=1 + SYSTEMS) for world in list(WORLDS)[:2]]
    table = Table("score", "corrected by Holm's method", "not corrected")
    table.title = f"Tables of {SYSTEMS} systems with a star, 3 seeds, spread 1 ×"
    for cell, said in zip(cells, judged(cells, comparisons, processes), strict=True):
        table.add_row(cell.world, percent(said["headwise"]), percent(said["not corrected"]))
    return table


TABLES = {
    "none": without_difference,
    "detectable": of_detectable_size,
    "several": of_several_systems,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; by default all")
    parser.add_argument("--comparisons", type=int, default=2000, help="simulated, for each row")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    for name in arguments.tables or TABLES:
        Console().print(TABLES[name](arguments.comparisons, arguments.processes))


if __name__ == "__main__":
    main()
