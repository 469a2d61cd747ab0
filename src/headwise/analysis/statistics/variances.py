"""Variances that are estimated: their degrees of freedom, and the intervals and tests they give."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from headwise.analysis.statistics.estimates import POWER, SIGNIFICANT, Difference, Estimate, Source


class Spread(NamedTuple):
    """An estimated variance, and how sure the estimate is.

    Attributes:
        variance: the estimate.
        doubt: half of the estimate's own variance.
    """

    variance: float
    doubt: float

    @property
    def freedom(self) -> float:
        """Its degrees of freedom: those of a χ² distribution with this mean and variance.

        Satterthwaite 1946, *An Approximate Distribution of Estimates of Variance Components*,
        https://doi.org/10.2307/3002019. A variance that is known has infinitely many, and any other
        at least one: a part that was taken off may leave less variance than doubt.
        """
        return max(1.0, self.variance**2 / self.doubt) if self.doubt else math.inf


def total(spreads: Sequence[Spread]) -> Spread:
    """Returns the variance of a sum of independent parts.

    >>> total([Spread(1.0, 0.5), Spread(1.0, 0.5)]).freedom
    4.0
    """
    return Spread(sum(part.variance for part in spreads), sum(part.doubt for part in spreads))


def estimated(
    value: float,
    spread: Spread,
    source: Source,
    seeds: int,
    interval: tuple[float, float] | None = None,
) -> Estimate:
    """Returns a mean with its interval and standard error.

    Args:
        value: the mean.
        spread: its variance.
        source: whose chance the variance is.
        seeds: number of seeds that count.
        interval: both ends; by default Student's interval.
    """
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
    """Returns a difference with the interval and the test that its variance gives.

    Args:
        value: the difference.
        spread: its variance.
        source: whose chance the variance is.
        comparisons: how many there are in the table; the detectable difference is that of the
            strictest test of Holm's method.
    """
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
