"""What another choice of test items could change: intervals, and the test against a baseline.

Both draw test items with replacement (Efron 1979, *Bootstrap Methods: Another Look at the
Jackknife*, https://doi.org/10.1214/aos/1176344552). The test draws the same ones for both systems
(Koehn 2004, *Statistical Significance Tests for Machine Translation Evaluation*,
https://aclanthology.org/W04-3250).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Rows = Sequence[Sequence[float]] | np.ndarray  # of numbers, one per test item
# Of two equally good systems the test finds one better, at p < 0.05, in 7 of 100 comparisons on 8
# items, in 21 on 4 and in half of those on 2.
_LEAST_ITEMS = 10

Statistic = Callable[[Any], float]  # of an array of such rows


def bootstrap_interval(
    items: Rows,
    statistic: Statistic,
    *,
    num_bootstrap: int = 1000,
    seed: int = 12345,
) -> tuple[float, float]:
    """The 95% interval of a statistic of test items: percentiles over resamples.

    Args:
        items: a row of numbers per item.
        statistic: the score of an array of such rows, `(items, numbers)`.
        num_bootstrap: resamples.
        seed: of the draws.

    >>> correct = [[1.0]] * 80 + [[0.0]] * 20
    >>> low, high = bootstrap_interval(correct, lambda rows: rows.mean())
    >>> round(low, 2), round(high, 2)
    (0.73, 0.87)
    """
    rows = _rows(items)
    values = [statistic(rows[draw]) for draw in _draws(len(rows), num_bootstrap, seed)]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def paired_bootstrap(
    baseline: Rows,
    other: Rows,
    statistic: Statistic,
    *,
    num_bootstrap: int = 1000,
    seed: int = 12345,
) -> tuple[float, float]:
    """The difference of a statistic to the baseline's, and its p-value.

    p is how often a resample's difference strays from their mean by at least the difference
    found (two-sided), counted with one more for the test items themselves; 1 where there is none.

    Args:
        baseline, other: rows of the same items, in the same order.
        statistic, num_bootstrap, seed: as for `bootstrap_interval`.

    Returns:
        The difference and p; NaN for p where there are fewer items than a test can judge by.

    Raises:
        ValueError: they are not as many as each other.
    """
    first, second = _rows(baseline), _rows(other)
    if len(first) != len(second):
        raise ValueError(
            f"baseline and other must have as many items as each other, but have {len(first):,} "
            f"and {len(second):,}"
        )
    difference = statistic(second) - statistic(first)
    if not difference:
        return 0.0, 1.0
    if len(first) < _LEAST_ITEMS:
        return float(difference), float("nan")
    differences = np.array(
        [
            statistic(second[draw]) - statistic(first[draw])
            for draw in _draws(len(first), num_bootstrap, seed)
        ]
    )
    strayed = np.abs(differences - differences.mean()) >= abs(difference)
    return float(difference), float((strayed.sum() + 1) / (num_bootstrap + 1))


def _rows(items: Rows) -> np.ndarray:
    rows = np.asarray(items, dtype=np.float64)  # (items, numbers)
    if rows.ndim != 2 or not len(rows):
        raise ValueError(
            f"items have the shape {rows.shape}, expected a row of numbers for each of at least "
            f"one test item"
        )
    return rows


def _draws(count: int, num_bootstrap: int, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(seed)
    for _ in range(num_bootstrap):
        yield generator.integers(count, size=count)
