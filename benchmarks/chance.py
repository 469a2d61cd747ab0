"""How often the test of a comparison errs, by simulation: python benchmarks/chance.py

Systems are simulated that are equally good: test items, a system's own way with each item, seeds,
and a seed's own way with each item are independent draws. The share of comparisons in which a test
finds a difference, p < 0.05, should then be 5% or less. Three procedures see the same data:

first seed    the paired bootstrap over items of the first seed alone
resampled     a bootstrap that resamples seeds and items at once
headwise      the test of the report, headwise.analysis.chance

Then a true difference as large as the one that the report calls detectable is simulated, which
should be found in about 80%, and a table of five systems without differences, in which Holm's
method should leave a star in 5% of tables or less.
"""

import argparse
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sacrebleu.metrics import BLEU

from headwise.analysis.chance import SIGNIFICANT, Resampled, corrected, difference
from headwise.tasks.significance import Statistic, of_totals, resampled_scores, score_of

Draw = Callable[[np.random.Generator, np.ndarray], np.ndarray]


class World(NamedTuple):
    """A kind of score, and simulated items for it.

    Attributes:
        items: how many there are.
        shape: latent effects of each item.
        draw: rows of numbers from the qualities of the items, standard normal numbers or so.
        statistic: computes the score.
    """

    items: int
    draw: Draw
    statistic: Statistic


def _correct(generator: np.random.Generator, quality: np.ndarray) -> np.ndarray:
    return (quality > -0.8).astype(float)[:, None]


def _nats(generator: np.random.Generator, quality: np.ndarray) -> np.ndarray:
    words = 120.0
    return np.stack([words * np.exp(1.4 - 0.15 * quality), np.full(len(quality), words)], axis=1)


def _matches(generator: np.random.Generator, quality: np.ndarray) -> np.ndarray:
    """Lengths and matches of n-grams of sentences: matches of n words need those of n − 1."""
    lengths = 4 + np.random.default_rng(0).poisson(8, len(quality))
    chance = 1 / (1 + np.exp(-(0.3 + 0.6 * quality)))
    made = np.maximum(1, lengths + generator.integers(-2, 3, len(quality)))
    totals = [np.maximum(0, made - n) for n in range(4)]
    correct, left = [], totals[0]
    for number in totals:
        left = generator.binomial(np.minimum(left, number), chance)
        correct.append(left)
    return np.stack([made, lengths, *correct, *totals], axis=1).astype(float)


def _bleu(totals: np.ndarray) -> float:
    made, expected, *counts = totals.astype(int).tolist()
    return BLEU.compute_bleu(counts[:4], counts[4:], made, expected, "exp").score


def _perplexity(totals: np.ndarray) -> float:
    return math.exp(totals[0] / totals[1])


WORLDS = {
    "accuracy": World(
        500,
        _correct,
        of_totals(lambda t: 100 * t[0] / t[1], lambda rows: np.hstack([rows, np.ones_like(rows)])),
    ),
    "perplexity": World(100, _nats, of_totals(_perplexity)),
    "BLEU": World(300, _matches, of_totals(_bleu)),
}
# Standard deviations of the effects: of the item, of system and item, of seed and item.
_ITEM, _SYSTEM, _SEED = 1.0, 0.4, 0.6


def simulate(
    world: World,
    seeds: int,
    spread: float,
    generator: np.random.Generator,
    *,
    systems: int = 2,
    better: float = 0.0,
) -> list[Resampled]:
    """Systems with their seeds on the same items; the last is better by `better` in quality."""
    items = _ITEM * generator.normal(size=world.items)
    rows = []
    for system in range(systems):
        own = items + _SYSTEM * generator.normal(size=world.items)
        own = own + (better if system == systems - 1 else 0.0)
        for _ in range(seeds):
            quality = own + spread * generator.normal() + _SEED * generator.normal(size=world.items)
            rows.append(world.draw(generator, quality))
    scores = np.array([score_of(each, world.statistic) for each in rows]).reshape(systems, seeds)
    resamples = resampled_scores(rows, world.statistic).reshape(systems, seeds, -1)
    return [Resampled(s, r, world.items) for s, r in zip(scores, resamples, strict=True)]
