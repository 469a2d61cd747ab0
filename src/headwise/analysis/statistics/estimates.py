"""Estimates and differences: their variances, intervals and tests, and Holm's correction."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from headwise.tasks.scores import Record

SIGNIFICANT = 0.05  # a smaller p-value, corrected for the number of comparisons, is significant
POWER = 0.8  # probability with which a difference as large as the detectable one is found

# The sources of chance that an interval or a test takes into account.
Source = Literal["seeds and items", "items", "seeds"]


class Estimate(Record):
    """The mean score of a system over its seeds, with its 95% interval."""

    value: float  # the mean over seeds
    low: float | None = None  # lower end of the 95% interval
    high: float | None = None  # upper end of the 95% interval
    error: float | None = None  # standard error of the mean
    freedom: float | None = None  # degrees of freedom of the standard error
    source: Source  # whose chance the interval holds; with one seed only that of the items
    seeds: int  # number of seeds that count


class Difference(Record):
    """The difference of a system's mean score to the baseline's, and whether it may be chance."""

    value: float  # the system's mean minus the baseline's
    low: float  # lower end of the 95% interval
    high: float  # upper end of the 95% interval
    error: float  # standard error of the difference
    freedom: float  # degrees of freedom of the standard error
    # Whose chance interval and p hold. With `items` they are about the runs at hand: other
    # seeds may give another difference.
    source: Source
    p_value: float  # two-sided: the probability of a difference this large without a true one
    corrected_p_value: float  # by Holm's method, over all comparisons of the table
    # The smallest true difference that so many seeds and items find with probability 0.8; None
    # with one seed, which finds none, and where no score varies.
    detectable: float | None

    @property
    def significant(self) -> bool:
        """Whether the systems differ, by the corrected p-value; never said of single runs."""
        return self.source != "items" and self.corrected_p_value < SIGNIFICANT


class Spread(NamedTuple):
    """An estimated variance, and how sure the estimate is."""

    variance: float  # the estimate
    doubt: float  # half of the estimate's own variance

    @property
    def freedom(self) -> float:
        """Its degrees of freedom: those of a χ² distribution with this mean and variance.

        Satterthwaite 1946, *An Approximate Distribution of Estimates of Variance Components*,
        https://doi.org/10.2307/3002019. A variance that is known has infinitely many, and any other
        at least one: a part that was taken off may leave less variance than doubt.
        """
        return max(1.0, self.variance**2 / self.doubt) if self.doubt else math.inf


def total(spreads: Sequence[Spread]) -> Spread:
    """Returns the variance of a sum of independent parts."""
    return Spread(sum(part.variance for part in spreads), sum(part.doubt for part in spreads))


def estimated(
    value: float,
    spread: Spread,
    source: Source,
    seeds: int,
    interval: tuple[float, float] | None = None,
) -> Estimate:
    """Returns a mean with its interval and standard error."""
    low, high = interval or student_interval(value, spread)
    return Estimate(
        value=value,
        low=low,
        high=high,
        error=math.sqrt(spread.variance),
        freedom=spread.freedom,
        source=source,
        seeds=seeds,
    )


def judged(value: float, spread: Spread, source: Source, comparisons: int = 1) -> Difference | None:
    """Returns a difference with the interval and the test that its variance gives."""
    from scipy.stats import t  # imported here: it takes a second

    error = math.sqrt(spread.variance)
    if not error and value:
        return None
    p_value = float(2 * t.sf(abs(value) / error, spread.freedom)) if error else 1.0
    low, high = student_interval(value, spread)
    detectable = None
    if source != "items" and error:
        detectable = detectable_difference(spread, comparisons)
    return Difference(
        value=value,
        low=low,
        high=high,
        error=error,
        freedom=spread.freedom,
        source=source,
        p_value=p_value,
        corrected_p_value=p_value,
        detectable=detectable,
    )


def student_interval(value: float, spread: Spread) -> tuple[float, float]:
    """Returns both ends of the 95% interval by Student's t."""
    from scipy.stats import t

    if not spread.variance:
        return value, value
    half = math.sqrt(spread.variance) * float(t.ppf(0.975, spread.freedom))
    return value - half, value + half


def detectable_difference(spread: Spread, comparisons: int = 1) -> float:
    """Returns the smallest true difference that is found with probability `POWER`.

    Args:
        spread: the variance of the difference, not zero.
        comparisons: how many there are in the table; the test is the strictest of Holm's method.
    """
    level = SIGNIFICANT / max(1, comparisons)
    return math.sqrt(spread.variance) * _detectable(spread.freedom, level)


def _detectable(freedom: float, level: float) -> float:
    """The true difference, in standard errors, that the test finds with probability `POWER`."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    critical = float(t.ppf(1 - level / 2, freedom))
    return float(brentq(lambda true: nct.sf(critical, freedom, true) - POWER, 0.0, 4 * critical))


Key = TypeVar("Key")


def corrected(differences: Mapping[Key, Difference | None]) -> dict[Key, Difference | None]:
    """Returns the differences of one table with p-values corrected by Holm's method.

    Holm 1979, *A Simple Sequentially Rejective Multiple Test Procedure*,
    https://www.jstor.org/stable/4615733: of m p-values in ascending order the i-th is multiplied by
    m − i + 1, and is at least as large as the one before.

    Args:
        differences: of the table; None where there is no difference.
    """
    found = {name: made.p_value for name, made in differences.items() if made is not None}
    adjusted = dict(zip(found, holm(list(found.values())), strict=True))
    return {
        name: made and made.model_copy(update={"corrected_p_value": adjusted[name]})
        for name, made in differences.items()
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected by Holm's method."""
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    raised = np.maximum.accumulate(np.asarray(p_values, dtype=float)[order] * factors)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(raised, 1.0)
    return adjusted.tolist()


def mean_difference(differences: Sequence[Difference], comparisons: int = 1) -> Difference | None:
    """Returns the mean of differences on several data sets, each counting alike.

    The runs on different data sets are independent of each other.
    """
    value = float(np.mean([each.value for each in differences]))
    source = _shared_source(differences)
    spread = total([mean_part(each.error, each.freedom, len(differences)) for each in differences])
    return judged(value, spread, source, comparisons)


def mean_estimate(estimates: Sequence[Estimate]) -> Estimate:
    """Returns the mean of a system's scores on several data sets, each counting alike."""
    value = float(np.mean([each.value for each in estimates]))
    seeds = min(each.seeds for each in estimates)
    source = _shared_source(estimates)
    known = [(each.error, each.freedom) for each in estimates]
    parts = [
        mean_part(error, freedom, len(known))
        for error, freedom in known
        if error is not None and freedom is not None
    ]
    if len(parts) < len(known):
        return Estimate(value=value, source=source, seeds=seeds)
    return estimated(value, total(parts), source, seeds)


def _shared_source(parts: Sequence[Estimate] | Sequence[Difference]) -> Source:
    """What chance a mean over data sets holds: the items alone if one data set has no more."""
    sources: set[Source] = {part.source for part in parts}
    if "items" in sources:
        return "items"
    return sources.pop() if len(sources) == 1 else "seeds and items"


def mean_part(error: float, freedom: float, number: int = 1) -> Spread:
    """Returns what one of `number` estimates adds to the variance of their mean."""
    variance = (error / number) ** 2
    return Spread(variance, variance**2 / freedom)
