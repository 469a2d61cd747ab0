"""How often the test of a comparison errs, and what it finds, by simulation.

    python benchmarks/chance.py none BLEU            # systems that are equally good
    python benchmarks/chance.py detectable BLEU      # a true difference of the detectable size
    python benchmarks/chance.py several accuracy     # five systems that are as good as the baseline
    python benchmarks/chance.py none accuracy --comparisons 500    # about two minutes

Scores are simulated: test items, a system's own way with each item, seeds, and a seed's own way
with each item are independent draws. Where systems are equally good, a test at 5% should find a
difference in 5% of the comparisons or less. Two procedures judge the same simulated scores:

first seed    Student's t over the items of the first seed alone
headwise      the test of the report, headwise.analysis.statistics

A true difference of the size that the report calls detectable should be found in about 80% of the
comparisons. Tables of five systems that are as good as the baseline should have a star in 5% or
less, which Holm's correction is for.
"""

import argparse
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
import pandas as pd

from headwise.analysis.statistics import SIGNIFICANT, Scores, estimate_difference, holm
from headwise.tasks.scores import Score

SEEDS = (1, 3, 5)
SPREADS = (0, 1, 3)  # of seeds, in standard errors of a difference over items
# Standard deviations of quality: of items, of systems' ways with items, of seeds' ways with items.
ITEM, SYSTEM_AND_ITEM, SEED_AND_ITEM = 1.0, 0.4, 0.6


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
    """Draws items of accuracy: rows of 1 if the item is right, else 0, and of 1."""
    return np.stack([quality > -0.8, np.ones(len(quality))], axis=1)


def matches(generator: np.random.Generator, quality: np.ndarray) -> np.ndarray:
    """Lengths, matches and numbers of n-grams of sentences; n words match if n − 1 of them do."""
    lengths = 4 + np.random.default_rng(0).poisson(8, len(quality))
    probability = 1 / (1 + np.exp(-(0.3 + 0.6 * quality)))
    output_lengths = np.maximum(1, lengths + generator.integers(-2, 3, len(quality)))
    ngrams = [np.maximum(0, output_lengths - order) for order in range(4)]
    matched, count = [], output_lengths
    for number in ngrams:
        count = generator.binomial(np.minimum(count, number), probability)
        matched.append(count)
    return np.stack([output_lengths, lengths, *matched, *ngrams], axis=1)


WORLDS = {
    "accuracy": World(500, right_or_wrong, "accuracy", 0.083),
    "BLEU": World(300, matches, "bleu", 0.085),
}


class Cell(NamedTuple):
    """What is simulated: a kind of score, seeds, their spread, systems and the lead of the last."""

    world: str
    seeds: int
    spread: float
    systems: int = 2
    lead: float = 0.0


def simulate(cell: Cell, generator: np.random.Generator) -> list[Scores]:
    """Simulates the scores of systems on the same items; the last system is better by the lead."""
    world = WORLDS[cell.world]

    def draw(deviation: float) -> np.ndarray:
        return deviation * generator.normal(size=world.items)

    items, systems = draw(ITEM), []
    for system in range(cell.systems):
        quality = items + draw(SYSTEM_AND_ITEM) + cell.lead * (system == cell.systems - 1)
        runs = []
        for _ in range(cell.seeds):
            shift = cell.spread * world.unit * generator.normal()
            rows = world.rows(generator, quality + shift + draw(SEED_AND_ITEM)).astype(float)
            run = Score(name="", value=math.nan, statistic=world.statistic, rows=rows.tolist())
            run.value = float(run.resampled_values(rows, np.ones((1, world.items)))[0])
            runs.append(run)
        systems.append(Scores.from_runs(runs))
    return systems


def first_seed(system: Scores) -> Scores:
    """Returns what is known of a system after one run."""
    return Scores(system.values[:1], system.resamples[:1], system.items)


def judge(cell: Cell, comparison: int) -> dict[str, float]:
    """Applies the procedures to a simulated comparison."""
    entropy = [comparison, cell.seeds, cell.systems, round(10 * cell.spread)]
    generator = np.random.default_rng(entropy)
    baseline, *systems = simulate(cell, generator)
    differences = [estimate_difference(system, baseline, tests=len(systems)) for system in systems]
    p_values = [difference.p for difference in differences]
    have_seeds = "seeds" in differences[0].variance_source
    single = estimate_difference(first_seed(systems[-1]), first_seed(baseline))
    return {
        "headwise": have_seeds and min(holm(p_values)) < SIGNIFICANT,
        "not corrected": have_seeds and min(p_values) < SIGNIFICANT,
        "first seed": single.p < SIGNIFICANT,
        "detectable": differences[-1].detectable,
        "difference": differences[-1].value,
    }


def judge_cells(cells: list[Cell], comparisons: int) -> pd.DataFrame:
    """Applies the procedures to comparisons of each cell: a row a cell, with means."""
    rows = []
    with ProcessPoolExecutor() as pool:
        for cell in cells:
            repeated = [cell] * comparisons
            table = pd.DataFrame(pool.map(judge, repeated, range(comparisons), chunksize=20))
            means = {**table.astype(float).mean(), "detectable": table["detectable"].median()}
            rows.append({**cell._asdict(), **means})
    return pd.DataFrame(rows)


def main() -> None:
    """Simulates and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("none", "detectable", "several"))
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--comparisons", type=int, default=2000, help="of each row")
    options = parser.parse_args()
    if options.what == "none":
        cells = [Cell(options.world, seeds, spread) for seeds in SEEDS for spread in SPREADS]
    elif options.what == "several":
        cells = [Cell(options.world, 3, 1.0, systems=6)]
    else:
        # How far a lead in quality moves a score, and how large a difference is detectable.
        trials = [Cell(options.world, seeds, 1.0, lead=0.2) for seeds in SEEDS[1:]]
        table = judge_cells(trials, options.comparisons)
        leads = 0.2 * table["detectable"] / table["difference"].abs()
        cells = [cell._replace(lead=float(lead)) for cell, lead in zip(trials, leads, strict=True)]
    print(judge_cells(cells, options.comparisons).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
