"""How many seeds, or test items, it takes to find a difference of a size (statistical power)."""

from bisect import bisect_left
from typing import NamedTuple

from headwise.analysis.statistics.seeds_and_items import Resampled, spreads_of
from headwise.analysis.statistics.variances import Spread, detectable_difference, total

_MOST_SEEDS = 1000  # what more seeds do not find, only other items can


class SamplesNeeded(NamedTuple):
    """What it would take to find a difference with probability 0.8.

    Attributes:
        seeds: number of seeds of each system; None if no number is enough on these items.
        times_items: how many times as many test items it takes at least, since those that there are
            leave too much to chance however many seeds there are; None if they do not.
    """

    seeds: int | None
    times_items: float | None


def samples_needed(
    effect: float, system: Resampled, baseline: Resampled | None = None, comparisons: int = 1
) -> SamplesNeeded | None:
    """Returns how many seeds, or else items, would find a true difference of a size.

    The variances are taken to be those that were seen.

    Args:
        effect: the size of the difference, above 0.
        system, baseline: their scores; without a baseline the difference is that to a number.
        comparisons: as in `difference`.

    Returns:
        None if nothing is known of the seeds: single runs, or no finite scores.

    >>> import numpy as np
    >>> wide = Resampled(np.array([1.0, 3.0, 2.0, 4.0, 5.0]), None, 0)
    >>> samples_needed(1.0, wide)
    SamplesNeeded(seeds=22, times_items=None)
    """
    systems = [system] if baseline is None else [system, baseline]
    parts = spreads_of(systems)
    if parts is None or min(each.seeds for each in systems) < 2:
        return None
    of_items = [] if any(each.resamples is None for each in systems) else parts[:1]
    of_seeds = parts[len(of_items) :]

    def detectable(seeds: int) -> float:
        expected = list(of_items)
        for spread, each in zip(of_seeds, systems, strict=True):
            doubt = spread.doubt * (each.seeds / seeds) ** 2 * (each.seeds - 1) / (seeds - 1)
            expected.append(Spread(spread.variance * each.seeds / seeds, doubt))
        spread = total(expected)
        return detectable_difference(spread, comparisons) if spread.variance else 0.0

    if detectable(_MOST_SEEDS) <= effect:
        numbers = range(2, _MOST_SEEDS)
        found = bisect_left(numbers, True, key=lambda seeds: detectable(seeds) <= effect)
        return SamplesNeeded(found + 2, None)
    alone = detectable_difference(of_items[0], comparisons) if of_items else 0.0
    return SamplesNeeded(None, (alone / effect) ** 2 if alone > effect else None)
