"""What may be chance: intervals and tests over seeds and test items together.

Systems are scored on the same items, and seeds are independent draws of training. The variance of a
mean over seeds, or of a contrast of means, has a part of the items and one of the seeds of each
system:

    V = V_items + Σ_systems max(0, s² − e) / S

- V_items is the variance over resamples of the items, which systems and seeds share.
- s² is the variance of a system's scores over its S seeds. It also holds what the finite number of
  items adds to the differences between seeds. The resamples say how much that is, e, and V_items
  has it already.

The degrees of freedom of such a sum are Satterthwaite's (1946, *An Approximate Distribution of
Estimates of Variance Components*, https://doi.org/10.2307/3002019). docs/statistics.md has a
simulation of how often the test errs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headwise.tasks.scores import LEAST_ITEMS, Score, resampled_scores

SIGNIFICANT = 0.05  # a smaller p-value, corrected for the number of comparisons, is significant
POWER = 0.8
# Student's t has its 97.5% quantile at 12.7 with one degree of freedom and at 4.3 with two.
_LEAST_DOF = 2.0
_ANY = (-math.inf, math.inf)  # the range of a score that has none
# A part of a variance, and its square over its degrees of freedom: a sum of parts has
# (Σ variance)² / Σ term degrees of freedom.
_Part = tuple[float, float]


@dataclass(frozen=True)
class Scores:
    """One score of one system: its value for each seed, and on resamples of the test items."""

    values: np.ndarray  # of each seed, (seeds,)
    # Of each seed on resamples of the items, (seeds, resamples), the same resamples for all
    # systems; None of a score that is not made from items.
    resamples: np.ndarray | None = None
    items: int = 0
    bounds: tuple[float, float] = _ANY  # the range of the score

    @classmethod
    def of(cls, runs: Sequence[Score]) -> "Scores":
        """Takes one score of several runs; runs without a finite one do not count."""
        found = [score for score in runs if math.isfinite(score.value)]
        values = np.array([score.value for score in found])
        bounds = found[0].bounds if found else _ANY
        if not found or not all(score.rows for score in found):
            return cls(values, bounds=bounds)
        return cls(values, resampled_scores(found), len(found[0].rows), bounds)


@dataclass(frozen=True)
class Estimate:
    """A mean, or a contrast of means, with its 95% interval and its test. NaN: there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan
    error: float = math.nan  # standard error
    dof: float = math.nan  # degrees of freedom of the standard error
    p: float = math.nan  # two-sided, that the true value is zero
    detectable: float = math.nan  # the true value that the test is made to find with `POWER`
    # "seeds and items", "seeds", or "items": an interval over items is about the trained models
    # at hand alone, so that no difference is significant. Empty if there is no variance.
    variance_source: str = ""
    reason: str = ""  # why there is no interval, or no test
    bounds: tuple[float, float] = _ANY  # the range of the true value, which no interval leaves


def contrast(*systems: Scores, tests: int = 1) -> Estimate:
    """Estimates the mean of one system, the difference of two, or that of two differences.

    Args:
        systems: one; two, the first minus the second; or four, the difference of the first two
            minus that of the last two.
        tests: how many are made in one table; the detectable difference is that of the strictest
            of them after Holm's correction.

    Raises:
        ValueError: the systems are scored on different numbers of items.

    >>> found = contrast(Scores(np.array([5.0, 5.1, 4.9])), Scores(np.array([4.0, 4.2, 3.9])))
    >>> round(found.value, 2), round(found.p, 3), found.variance_source
    (0.97, 0.002, 'seeds')
    """
    untested, moved = _untested(*systems)
    have_seeds = all(len(each.values) > 1 for each in systems)
    if untested.reason:
        return untested
    if moved is None:
        if not have_seeds:
            return replace(untested, reason="a single seed")
        return _tested(untested, [_of_seeds(each.values) for each in systems], "seeds", tests)
    if not have_seeds:
        return _of_runs(untested, moved, systems[0].items)
    of_seeds = [_of_seeds(each.values, each.resamples) for each in systems]
    parts = [_of_items(moved, systems[0].items), *of_seeds]
    return _tested(untested, parts, "seeds and items", tests)


def paired_change(changed: Scores, unchanged: Scores) -> Estimate:
    """Estimates how the score of one model changes under other conditions, paired over the items.

    The model is the same, so that the items are all that may be chance; where the conditions are
    drawn, `changed` has a value for each draw. Where every resample of the items changes alike, p
    is that of the sign test.

    Raises:
        ValueError: the two are scored on different numbers of items.
    """
    untested, moved = _untested(changed, unchanged)
    if moved is None:
        return replace(untested, reason=untested.reason or "the score is not made from items")
    parts = [_of_items(moved, changed.items)]
    if len(changed.values) > 1:
        parts.append(_of_seeds(changed.values, changed.resamples))
    found = _tested(untested, parts, "items")
    if found.value and not found.error:
        value, p = found.value, 2 * 0.5**changed.items
        return replace(found, low=value, high=value, p=p, reason="")
    return found


def p_value(p: float) -> str:
    """Writes a p-value, with three decimals.

    >>> p_value(0.0123), p_value(0.0001)
    ('p = 0.012', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p-values by Holm's method; NaN, of a test that was not made, stays.

    Holm 1979, *A Simple Sequentially Rejective Multiple Test Procedure*,
    https://www.jstor.org/stable/4615733: of m p-values in ascending order the i-th is multiplied by
    m − i + 1, and is at least as large as the one before.
    """
    p = np.array(p_values, dtype=float)
    order = np.argsort(p, kind="stable")[: np.isfinite(p).sum()]
    raised = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    p[order] = np.minimum(raised, 1.0)
    return p.tolist()


# --- the variance and its parts -----------------------------------------------------------------


def _of_items(moved: np.ndarray, items: int) -> _Part:
    variance = float(moved.var(ddof=1))
    return variance, variance**2 / (items - 1)


def _of_seeds(values: np.ndarray, resamples: np.ndarray | None = None) -> _Part:
    """Estimates what seeds add to the variance of a mean over them, beside the items."""
    seeds = len(values)
    among, by_items = float(values.var(ddof=1)), 0.0
    if resamples is not None:
        # What all seeds share is no difference between them.
        own = resamples - resamples.mean(0)
        by_items = float(own.var(axis=1, ddof=1).sum() / (seeds - 1))
    # The difference varies as its first term does: resamples know the second one well.
    return max(0.0, among - by_items) / seeds, (among / seeds) ** 2 / (seeds - 1)


def _untested(*systems: Scores) -> tuple[Estimate, np.ndarray | None]:
    """Computes the value of a contrast, also on each resample of the items, without a test.

    None if not all scores are made from items, or if there can be no test, and `reason` says why.
    """
    if not all(len(each.values) for each in systems):
        return Estimate(math.nan, reason="no finite score"), None
    signed = list(zip((1, -1, -1, 1), systems, strict=False))
    value = sum(sign * float(each.values.mean()) for sign, each in signed)
    low, high = np.sum([sorted(sign * end for end in of.bounds) for sign, of in signed], axis=0)
    untested = Estimate(value, bounds=(float(low), float(high)))
    means = [sign * of.resamples.mean(0) for sign, of in signed if of.resamples is not None]
    if len(means) < len(systems):
        return untested, None
    numbers = [each.items for each in systems]
    if len(set(numbers)) > 1:
        raise ValueError(
            f"scores are of {' and '.join(map(str, numbers))} items, expected the same items in "
            f"the same order"
        )
    if numbers[0] < LEAST_ITEMS:
        return replace(untested, reason=f"fewer than {LEAST_ITEMS} test items"), None
    moved = np.sum(means, axis=0)
    if not np.isfinite(moved).all():
        return replace(untested, reason="some resamples of the items have no score"), None
    return untested, moved


def _tested(untested: Estimate, parts: Sequence[_Part], over: str, tests: int = 1) -> Estimate:
    """Adds Student's interval and test to a value, from the parts of its variance."""
    from scipy import optimize, stats  # takes a second

    value = untested.value
    variance, terms = (sum(each) for each in zip(*parts, strict=True))
    # A part may be almost zero.
    error, dof = math.sqrt(variance), max(1.0, variance**2 / terms) if terms else math.inf
    found = replace(untested, error=error, dof=dof, variance_source=over)
    if error <= 1e-12 * abs(value):  # nothing varies, but for rounding
        found = replace(found, error=0.0)
        # Equal values are level. Of others nothing says how much would be chance.
        if value:
            return replace(found, reason="the score does not vary")
        return replace(found, low=0.0, high=0.0, p=1.0)
    found = replace(found, p=float(2 * stats.t.sf(abs(value) / error, dof)))
    if dof < _LEAST_DOF:
        found = replace(found, reason=f"too few {'draws' if over == 'items' else 'seeds'}")
    else:
        half = error * float(stats.t.ppf(0.975, dof))
        low, high = untested.bounds
        found = replace(found, low=max(value - half, low), high=min(value + half, high))
    if over == "items":
        return found
    critical = float(stats.t.ppf(1 - SIGNIFICANT / max(1, tests) / 2, dof))
    missed = lambda true: stats.nct.sf(critical, dof, true) - POWER  # noqa: E731
    return replace(found, detectable=error * float(optimize.brentq(missed, 0.0, 4 * critical)))


def _of_runs(untested: Estimate, moved: np.ndarray, items: int) -> Estimate:
    """Tests single runs over items alone: with percentiles, and the paired bootstrap's p.

    p is the share of resamples that deviate from their mean by at least the observed value; the
    observed items count as one resample more.
    """
    low, high = np.percentile(moved, [2.5, 97.5]).tolist()
    strayed = np.abs(moved - moved.mean()) >= abs(untested.value)
    p = float((strayed.sum() + 1) / (len(moved) + 1)) if untested.value else 1.0
    error = float(moved.std(ddof=1))
    found = replace(untested, low=low, high=high, p=p, variance_source="items")
    return replace(found, error=error, dof=items - 1)
