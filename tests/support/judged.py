"""Means and differences of scores with their intervals and tests, as all pages show them.

headwise has no public name for its statistics, which users meet on pages and in `--json`: whoever
builds them anew edits this file.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise.analysis.statistics import estimates, seeds_and_items
from headwise.tasks.scores import LEAST_ITEMS, Score, resampled_scores

__all__ = ["LEAST_ITEMS"]
POWER = estimates.POWER


def by_items(runs: Sequence[Sequence[float]]) -> Any:
    """A system by what each of its runs, one a seed, has on each test item; its score is a mean."""
    rows = np.asarray(runs, dtype=float)
    resamples = resampled_scores([_mean_of(run) for run in rows])
    return seeds_and_items.Resampled(rows.mean(1), resamples, rows.shape[1])


def _mean_of(values: np.ndarray) -> Score:
    return Score(name="mean", value=float(values.mean()), rows=values[:, None].tolist())


def by_seeds(scores: Sequence[float]) -> Any:
    """A system by the scores of its runs alone."""
    return seeds_and_items.Resampled(np.asarray(scores, dtype=float), None, 0)


def resamples_of(values: Sequence[float]) -> np.ndarray:
    """The mean of the values over each resample of the items."""
    return resampled_scores([_mean_of(np.asarray(values, dtype=float))])[0]


def mean(system: Any) -> Any:
    """`value, low, high, error, freedom, source`, or None."""
    return seeds_and_items.estimate(system)


def difference(system: Any, baseline: Any, comparisons: int = 1) -> Any:
    """The same, and `p_value, significant, detectable`, or None."""
    return seeds_and_items.difference(system, baseline, comparisons)


def difference_of_differences(last: Any, base: Any, first: Any, base_before: Any) -> Any:
    return seeds_and_items.contrast([last, base, first, base_before])


def over_data_sets(differences: Sequence[Any]) -> Any:
    return estimates.mean_difference(differences)


def corrected(differences: Mapping[str, Any]) -> dict[str, Any]:
    """The differences of a table, with `corrected_p_value` by Holm's method."""
    return estimates.corrected(differences)


def holm(p_values: Sequence[float]) -> list[float]:
    return estimates.holm(p_values)
