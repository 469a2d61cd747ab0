"""What may be chance: intervals and tests over seeds and test items together.

Systems are scored on the same items, and seeds are independent draws of training. A score is a mean
over seeds. The variance of a mean, or of a contrast of means, has a part of the items and a part of
the seeds of each system:

    V = V_items + Σ_systems max(0, s² − e) / S

- V_items is the variance over resamples of the items, which systems and seeds share.
- s² is the variance of a system's scores over its S seeds. It also holds what the finite number of
  items adds to the differences between seeds. The resamples say how much that is, e, and V_items
  has it already.

The degrees of freedom of such a sum are Satterthwaite's (1946, *An Approximate Distribution of
Estimates of Variance Components*, https://doi.org/10.2307/3002019). docs/statistics.md has the
derivation, and a simulation of how often the test errs.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from headwise.tasks.scores import LEAST_ITEMS, Score, resampled_scores

SIGNIFICANT = 0.05  # a smaller p-value, corrected for the number of comparisons, is significant
POWER = 0.8
# Student's t has its 97.5% quantile at 12.7 with one degree of freedom and at 4.3 with two.
_LEAST_FREEDOM = 2.0

Source = Literal["seeds and items", "seeds", "items", ""]


@dataclass(frozen=True)
class Scores:
    """One score of one system."""

    values: np.ndarray  # of each seed, (seeds,)
    # Of each seed on resamples of the items, (seeds, resamples), the same resamples for all
    # systems; None of a score that is not made from items.
    resamples: np.ndarray | None = None
    items: int = 0
    bounds: tuple[float, float] = (-math.inf, math.inf)  # the range of the score

    @classmethod
    def of(cls, runs: Sequence[Score]) -> "Scores":
        """One score of several runs; those without a finite one do not count."""
        found = [score for score in runs if math.isfinite(score.value)]
        values = np.array([score.value for score in found])
        if not found or not all(score.rows for score in found):
            return cls(values)
        return cls(values, resampled_scores(found), len(found[0].rows), found[0].bounds)


@dataclass(frozen=True)
class Estimate:
    """A mean, or a contrast of means, with its 95% interval and its test. NaN: there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan
    error: float = math.nan  # standard error
    freedom: float = math.nan  # its degrees of freedom
    p: float = math.nan  # two-sided, that the true value is zero
    corrected_p: float = math.nan  # by Holm's method, over a table
    detectable: float = math.nan  # the true value that the test is made to find with `POWER`
    over: Source = ""  # whose chance it is; with "items" it is about the runs at hand alone
    why: str = ""  # why there is no interval, or no test

    @property
    def significant(self) -> bool:
        """Whether the true value is not zero, by the corrected p; never said of single runs."""
        return "seeds" in self.over and self.corrected_p < SIGNIFICANT


@dataclass(frozen=True)
class _Part:
    """A part of a variance, and half of the variance of its own estimate."""

    variance: float
    doubt: float

    @classmethod
    def of_items(cls, resampled: np.ndarray, items: int) -> "_Part":
        variance = float(resampled.var(ddof=1))
        return cls(variance, variance**2 / (items - 1))

    @classmethod
    def of_seeds(cls, system: Scores) -> "_Part":
        """What the seeds add to the variance of a mean over them."""
        seeds = len(system.values)
        among, by_items = float(system.values.var(ddof=1)), 0.0
        if system.resamples is not None:
            # What all seeds share is no difference between them.
            own = system.resamples - system.resamples.mean(0)
            by_items = float(own.var(axis=1, ddof=1).sum() / (seeds - 1))
        # The difference is as doubtful as its first term: resamples know the second one well.
        return cls(max(0.0, among - by_items) / seeds, (among / seeds) ** 2 / (seeds - 1))


def contrast(*systems: Scores, tests: int = 1) -> Estimate:
    """The mean of one system, the difference of two, or of four that of two differences.

    Args:
        systems: of four, the first two minus the last two.
        tests: how many are made in one table; the detectable difference is that of the strictest
            of them after Holm's correction.

    >>> found = contrast(Scores(np.array([5.0, 5.1, 4.9])), Scores(np.array([4.0, 4.2, 3.9])))
    >>> round(found.value, 2), found.significant, found.over
    (0.97, True, 'seeds')
    """
    signs = {1: (1,), 2: (1, -1), 4: (1, -1, -1, 1)}[len(systems)]
    if not all(len(each.values) for each in systems):
        return Estimate(math.nan, why="no finite score")
    value = float(sum(s * each.values.mean() for s, each in zip(signs, systems, strict=True)))
    have_seeds = all(len(each.values) > 1 for each in systems)
    have_items = all(each.resamples is not None for each in systems)
    if not have_items:
        if not have_seeds:
            return Estimate(value, why="a single seed")
        return _tested(value, map(_Part.of_seeds, systems), "seeds", _bounds(systems, signs), tests)
    moved = sum(s * each.resamples.mean(0) for s, each in zip(signs, systems, strict=True))
    items = systems[0].items
    if items < LEAST_ITEMS:
        return Estimate(value, why=f"fewer than {LEAST_ITEMS} test items")
    if not np.isfinite(moved).all():
        return Estimate(value, why="some resamples of the items have no score")
    of_items = _Part.of_items(moved, items)
    if not have_seeds:
        return _of_runs(value, moved, of_items)
    parts = [of_items, *map(_Part.of_seeds, systems)]
    return _tested(value, parts, "seeds and items", _bounds(systems, signs), tests)


def change(changed: Scores, unchanged: Scores) -> Estimate:
    """How the score of one model changes under other conditions, paired over the items.

    The model is the same, so that the items are all that may be chance; where the conditions are
    drawn, `changed` has a value for each draw. Where every resample of the items changes alike, p
    is that of the sign test.
    """
    if not (len(changed.values) and len(unchanged.values)):
        return Estimate(math.nan, why="no finite score")
    value = float(changed.values.mean() - unchanged.values.mean())
    if changed.resamples is None or unchanged.resamples is None:
        return Estimate(value, why="the score is not made from items")
    if changed.items != unchanged.items:
        raise ValueError(
            f"the model is scored on {changed.items} items under a change and on {unchanged.items} "
            f"without it, expected the same items in the same order"
        )
    moved = changed.resamples.mean(0) - unchanged.resamples.mean(0)
    if changed.items < LEAST_ITEMS:
        return Estimate(value, why=f"fewer than {LEAST_ITEMS} test items")
    if not np.isfinite(moved).all():
        return Estimate(value, why="some resamples of the items have no score")
    parts = [_Part.of_items(moved, changed.items)]
    if len(changed.values) > 1:
        parts.append(_Part.of_seeds(changed))
    found = _tested(value, parts, "items")
    if value and not found.error:
        p = 2 * 0.5**changed.items
        return replace(found, p=p, corrected_p=p)
    return found


def mean_of(estimates: Sequence[Estimate], tests: int = 1) -> Estimate:
    """The mean of estimates on independent data sets, each counting alike."""
    value, number = float(np.mean([each.value for each in estimates])), len(estimates)
    if without := next((each for each in estimates if math.isnan(each.error)), None):
        return Estimate(value, why=without.why)
    variances = [(each.error / number) ** 2 for each in estimates]
    parts = [
        _Part(v, v**2 / each.freedom if v else 0.0)
        for v, each in zip(variances, estimates, strict=True)
    ]
    sources: set[Source] = {each.over for each in estimates}
    over: Source = sources.pop() if len(sources) == 1 else "seeds and items"
    return _tested(value, parts, "items" if "items" in sources else over, tests=tests)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected by Holm's method; NaN, of a test that was not made, stays.

    Holm 1979, *A Simple Sequentially Rejective Multiple Test Procedure*,
    https://www.jstor.org/stable/4615733: of m p-values in ascending order the i-th is multiplied by
    m − i + 1, and is at least as large as the one before.
    """
    p = np.array(p_values, dtype=float)
    order = np.argsort(p, kind="stable")[: np.isfinite(p).sum()]
    raised = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    p[order] = np.minimum(raised, 1.0)
    return p.tolist()


def corrected(table: Sequence[Estimate]) -> list[Estimate]:
    """The estimates of one table, with p-values corrected by Holm's method."""
    adjusted = holm([each.p for each in table])
    return [replace(each, corrected_p=p) for each, p in zip(table, adjusted, strict=True)]


def _bounds(systems: Sequence[Scores], signs: Sequence[int]) -> tuple[float, float]:
    """The range of a contrast."""
    ends = [
        sorted(sign * end for end in each.bounds) for sign, each in zip(signs, systems, strict=True)
    ]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def _tested(
    value: float,
    of_parts: Iterable[_Part],
    over: Source,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    tests: int = 1,
) -> Estimate:
    """Student's interval and test, from the parts of the variance."""
    from scipy import optimize, stats  # takes a second

    parts = list(of_parts)
    error, freedom = math.sqrt(sum(part.variance for part in parts)), _freedom(parts)
    if not error:
        return Estimate(value, value, value, 0.0, freedom, float(value == 0), over=over)
    half = error * float(stats.t.ppf(0.975, freedom))
    p = float(2 * stats.t.sf(abs(value) / error, freedom))
    found = Estimate(value, error=error, freedom=freedom, p=p, corrected_p=p, over=over)
    if freedom < _LEAST_FREEDOM:
        found = replace(found, why="too few seeds for an interval")
    else:
        low, high = max(value - half, bounds[0]), min(value + half, bounds[1])
        found = replace(found, low=low, high=high)
    if over == "items":
        return found
    critical = float(stats.t.ppf(1 - SIGNIFICANT / max(1, tests) / 2, freedom))
    missed = lambda true: stats.nct.sf(critical, freedom, true) - POWER  # noqa: E731
    return replace(found, detectable=error * float(optimize.brentq(missed, 0.0, 4 * critical)))


def _freedom(parts: Sequence[_Part]) -> float:
    variance, doubt = sum(part.variance for part in parts), sum(part.doubt for part in parts)
    # A part that was taken off may leave less variance than doubt.
    return max(1.0, variance**2 / doubt) if doubt else math.inf


def _of_runs(value: float, moved: np.ndarray, of_items: _Part) -> Estimate:
    """Of single runs, over items alone: percentiles, and the paired bootstrap's p.

    p is the share of resamples that deviate from their mean by at least the observed value; the
    observed items count as one resample more.
    """
    low, high = np.percentile(moved, [2.5, 97.5])
    strayed = np.abs(moved - moved.mean()) >= abs(value)
    p = float((strayed.sum() + 1) / (len(moved) + 1)) if value else 1.0
    error, freedom = math.sqrt(of_items.variance), _freedom([of_items])
    return Estimate(value, float(low), float(high), error, freedom, p, p, over="items")
