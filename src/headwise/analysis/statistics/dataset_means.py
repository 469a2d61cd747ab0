"""Means of scores and of differences over several data sets."""

from collections.abc import Sequence

import numpy as np

from headwise.analysis.statistics.estimates import Difference, Estimate, Source
from headwise.analysis.statistics.variances import Spread, estimated, judged, total


def mean_difference(differences: Sequence[Difference], comparisons: int = 1) -> Difference | None:
    """Returns the mean of differences on several data sets, each counting alike.

    The runs on different data sets are independent of each other.

    Args:
        differences: one for each data set.
        comparisons: as in `seeds_and_items.difference`.
    """
    value = float(np.mean([each.value for each in differences]))
    source = _shared_source(differences)
    spread = total([_mean_part(each.error, each.freedom, len(differences)) for each in differences])
    return judged(value, spread, source, comparisons)


def mean_estimate(estimates: Sequence[Estimate]) -> Estimate:
    """Returns the mean of a system's scores on several data sets, each counting alike."""
    value = float(np.mean([each.value for each in estimates]))
    seeds = min(each.seeds for each in estimates)
    source = _shared_source(estimates)
    known = [(each.error, each.freedom) for each in estimates]
    parts = [
        _mean_part(error, freedom, len(known))
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


def _mean_part(error: float, freedom: float, number: int) -> Spread:
    """What one of `number` data sets adds to the variance of their mean."""
    variance = (error / number) ** 2
    return Spread(variance, variance**2 / freedom)
