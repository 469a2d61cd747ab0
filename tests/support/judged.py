"""Means and differences of scores with their intervals and tests, as all pages show them.

headwise has no public name for its statistics, which users meet on pages and in `--json`: whoever
builds them anew edits this file.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headwise.analysis import statistics
from headwise.analysis.statistics import POWER, Estimate, Scores, holm, paired_change
from headwise.tasks.scores import MIN_ITEMS, Score

__all__ = ["MIN_ITEMS", "POWER", "Scores", "holm", "paired_change"]


def by_items(runs: Sequence[Sequence[float]], statistic: str = "mean") -> Scores:
    """A system by what each of its runs, one a seed, has on each test item."""
    return Scores.from_runs([_score(run, statistic) for run in runs])


def _score(items: Any, statistic: str) -> Score:
    rows = np.asarray(items, dtype=float).reshape(len(items), -1)
    once = np.ones((1, len(rows)))
    score = Score(name="score", value=0.0, statistic=statistic, rows=rows.tolist())
    return score.model_copy(update={"value": float(score.resampled_values(rows, once)[0])})


def by_seeds(scores: Sequence[float]) -> Scores:
    """A system by the scores of its runs alone."""
    return Scores(np.asarray(scores, dtype=float))


def resamples_of(values: Sequence[float]) -> np.ndarray:
    """The mean of the values over each resample of the items."""
    found = by_items([values]).resamples
    assert found is not None
    return found[0]


def mean(system: Scores) -> Estimate:
    return statistics.estimate_mean(system)


def difference(system: Scores, baseline: Scores, tests: int = 1) -> Estimate:
    return statistics.estimate_difference(system, baseline, tests=tests)
