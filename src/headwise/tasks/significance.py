"""Bootstrap intervals of scores, and the paired bootstrap test of a system against a baseline.

Both draw test items with replacement (Efron 1979, *Bootstrap Methods: Another Look at the
Jackknife*, https://doi.org/10.1214/aos/1176344552). The test draws the same items for both systems
(Koehn 2004, *Statistical Significance Tests for Machine Translation Evaluation*,
https://aclanthology.org/W04-3250). `scipy.stats.bootstrap` has the interval but not this test, and
would draw other items.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Rows = Sequence[Sequence[float]] | np.ndarray  # a row of numbers for each test item
Statistic = Callable[[Any], float]  # computes a score from an array of such rows

# With fewer items the test is unreliable: of two equally good systems it finds one better, at
# p < 0.05, in 7 of 100 comparisons on 8 items, in 21 on 4 items and in half of those on 2 items.
_LEAST_ITEMS = 10


def bootstrap_interval(
    items: Rows,
    statistic: Statistic,
    *,
    num_bootstrap: int = 1000,
    seed: int = 12345,
) -> tuple[float, float]:
    """Returns the 95% interval of a score: percentiles of the scores of resamples.

    Args:
        items: a row of numbers for each test item.
        statistic: computes the score from an array of rows, `(items, numbers)`.
        num_bootstrap: number of resamples.
        seed: seed of the random draws.

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
    """Returns the difference between the scores of a system and of the baseline, and its p-value.

    The p-value is two-sided: the share of resamples whose difference deviates from the mean over
    all resamples by at least the observed difference. The observed items count as one resample
    more. Without any difference, p is 1.

    Args:
        baseline, other: rows of numbers of the same test items, in the same order.
        statistic, num_bootstrap, seed: see `bootstrap_interval`.

    Returns:
        The difference, and p. If there are fewer than 10 items, p is NaN.

    Raises:
        ValueError: `baseline` and `other` have different numbers of items.
    """
    first, second = _rows(baseline), _rows(other)
    if len(first) != len(second):
        raise ValueError(
            f"other has {len(second):,} items, expected {len(first):,}, as baseline has: both are "
            f"to be scored on the same items"
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
            f"items has the shape {rows.shape}, expected (items, numbers), with at least one item"
        )
    return rows


def _draws(count: int, num_bootstrap: int, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(seed)
    for _ in range(num_bootstrap):
        yield generator.integers(count, size=count)
