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

from headwise.tasks.scores import MIN_ITEMS, Score, resampled_scores

SIGNIFICANT = 0.05  # a smaller p-value, corrected for the number of comparisons, is significant
POWER = 0.8
# Student's t has its 97.5% quantile at 12.7 with one degree of freedom and at 4.3 with two.
_MIN_DOF = 2.0
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
    def from_runs(cls, runs: Sequence[Score]) -> "Scores":
        """Takes one score of several runs; runs without a finite one do not count."""
        finite = [score for score in runs if math.isfinite(score.value)]
        values = np.array([score.value for score in finite])
        bounds = finite[0].bounds if finite else _ANY
        if not finite or not all(score.rows for score in finite):
            return cls(values, bounds=bounds)
        return cls(values, resampled_scores(finite), len(finite[0].rows), bounds)


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


def estimate_mean(system: Scores) -> Estimate:
    """Estimates the mean score of a system.

    >>> mean = estimate_mean(Scores(np.array([5.0, 5.1, 4.9])))
    >>> round(mean.value, 2), round(mean.low, 2), round(mean.high, 2)
    (5.0, 4.75, 5.25)
    """
    mean = _estimate(system, tests=1)
    if mean.error == 0:  # all right, or all wrong: nothing says how much would be chance
        none = math.nan
        return replace(mean, low=none, high=none, p=none, reason="the score does not vary")
    if system.resamples is not None and mean.variance_source == "items":
        low, high = np.percentile(system.resamples, [2.5, 97.5]).tolist()  # as `Score` has them
        return replace(mean, low=low, high=high)
    return mean


def estimate_number(numbers: Scores) -> Estimate:
    """Estimates the mean of numbers of runs that are no scores, such as changes of a score.

    Where all are 0, so is the mean, with certainty; of a score that would be too much.
    """
    return _estimate(numbers, tests=1)


def estimate_difference(system: Scores, baseline: Scores, *, tests: int = 1) -> Estimate:
    """Estimates the difference of two systems: the first minus the second.

    Args:
        tests: how many are made in one table; the detectable difference is that of the strictest
            of them after Holm's correction.

    Raises:
        ValueError: the systems are scored on different numbers of items.

    >>> scores, others = np.array([5.0, 5.1, 4.9]), np.array([4.0, 4.2, 3.9])
    >>> change = estimate_difference(Scores(scores), Scores(others))
    >>> round(change.value, 2), round(change.p, 3), change.variance_source
    (0.97, 0.002, 'seeds')
    """
    return _estimate(system, baseline, tests=tests)


def _estimate(*systems: Scores, tests: int) -> Estimate:
    untested, resamples = _without_test(*systems)
    have_seeds = all(len(system.values) > 1 for system in systems)
    if untested.reason:
        return untested
    if resamples is None:
        if not have_seeds:
            return replace(untested, reason="a single seed")
        return _add_test(untested, [_seed_part(each.values) for each in systems], "seeds", tests)
    parts = [_item_part(resamples, systems[0].items)]
    if not have_seeds:
        return _test_over_items(untested, parts, systems[0].items)
    parts += [_seed_part(system.values, system.resamples) for system in systems]
    return _add_test(untested, parts, "seeds and items", tests)


def paired_change(changed: Scores, unchanged: Scores) -> Estimate:
    """Estimates how the score of one model changes under other conditions, paired over the items.

    The model is the same, so that the items are all that may be chance; where the conditions are
    drawn, `changed` has a value for each draw. Where every resample of the items changes alike, p
    is that of the sign test, and there is no interval.

    Raises:
        ValueError: the two are scored on different numbers of items.
    """
    untested, resamples = _without_test(changed, unchanged)
    if resamples is None:
        return replace(untested, reason=untested.reason or "the score is not made from items")
    parts = [_item_part(resamples, changed.items)]
    if len(changed.values) > 1:
        parts.append(_seed_part(changed.values, changed.resamples))
    return _test_over_items(untested, parts, changed.items)


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


def _item_part(resamples: np.ndarray, items: int) -> _Part:
    variance = float(resamples.var(ddof=1))
    return variance, variance**2 / (items - 1)


def _seed_part(values: np.ndarray, resamples: np.ndarray | None = None) -> _Part:
    """Estimates what seeds add to the variance of a mean over them, beside the items."""
    seeds = len(values)
    variance, by_items = float(values.var(ddof=1)), 0.0
    if resamples is not None:
        # What all seeds share is no difference between them.
        deviations = resamples - resamples.mean(0)
        by_items = float(deviations.var(axis=1, ddof=1).sum() / (seeds - 1))
    # The difference varies as its first term does: resamples know the second one well.
    return max(0.0, variance - by_items) / seeds, (variance / seeds) ** 2 / (seeds - 1)


def _without_test(*systems: Scores) -> tuple[Estimate, np.ndarray | None]:
    """Computes the value of a contrast, also on each resample of the items, without a test.

    None if not all scores are made from items, or if there can be no test, and `reason` says why.
    """
    if not all(len(system.values) for system in systems):
        return Estimate(math.nan, reason="no finite score"), None
    signed = list(zip((1, -1)[: len(systems)], systems, strict=True))
    value = sum(sign * float(system.values.mean()) for sign, system in signed)
    low, high = np.sum([sorted(sign * end for end in each.bounds) for sign, each in signed], axis=0)
    untested = Estimate(value, bounds=(float(low), float(high)))
    means = [sign * each.resamples.mean(0) for sign, each in signed if each.resamples is not None]
    if len(means) < len(systems):
        return untested, None
    items = [system.items for system in systems]
    if len(set(items)) > 1:
        raise ValueError(
            f"scores are of {' and '.join(map(str, items))} items, expected the same items in "
            f"the same order"
        )
    if items[0] < MIN_ITEMS:
        return replace(untested, reason=f"fewer than {MIN_ITEMS} test items"), None
    resamples = np.sum(means, axis=0)
    if not np.isfinite(resamples).all():
        return replace(untested, reason="some resamples of the items have no score"), None
    return untested, resamples


def _add_test(untested: Estimate, parts: Sequence[_Part], source: str, tests: int = 1) -> Estimate:
    """Adds Student's interval and test to a value, from the parts of its variance."""
    from scipy import optimize, stats  # takes a second

    value = untested.value
    variance, terms = (sum(column) for column in zip(*parts, strict=True))
    # A part may be almost zero.
    error, dof = math.sqrt(variance), max(1.0, variance**2 / terms) if terms else math.inf
    tested = replace(untested, error=error, dof=dof, variance_source=source)
    if error <= 1e-12 * abs(value):  # nothing varies, but for rounding
        tested = replace(tested, error=0.0)
        # Equal values are level. Of others nothing says how much would be chance.
        if value:
            return replace(tested, reason="the score does not vary")
        return replace(tested, low=0.0, high=0.0, p=1.0)
    tested = replace(tested, p=float(2 * stats.t.sf(abs(value) / error, dof)))
    if dof < _MIN_DOF:
        return replace(tested, reason=f"too few {'draws' if source == 'items' else 'seeds'}")
    half = error * float(stats.t.ppf(0.975, dof))
    low, high = untested.bounds
    tested = replace(tested, low=max(value - half, low), high=min(value + half, high))
    if source == "items":
        return tested
    critical = float(stats.t.ppf(1 - SIGNIFICANT / max(1, tests) / 2, dof))
    excess = lambda shift: stats.nct.sf(critical, dof, shift) - POWER  # noqa: E731
    detectable = error * float(optimize.brentq(excess, 0.0, 4 * critical))
    return replace(tested, detectable=detectable if detectable <= high else math.nan)


def _test_over_items(untested: Estimate, parts: Sequence[_Part], items: int) -> Estimate:
    """Tests what only items may change; where all change alike, by the sign test."""
    tested = _add_test(untested, parts, "items")
    if tested.value and not tested.error:
        return replace(tested, p=2 * 0.5**items, reason="all items change alike")
    return tested
