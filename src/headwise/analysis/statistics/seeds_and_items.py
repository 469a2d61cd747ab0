"""Means and differences of scores, with the chance of seeds and of test items together."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headwise.analysis.statistics.estimates import (
    Difference,
    Estimate,
    Source,
    Spread,
    corrected,
    estimated,
    judged,
    total,
)
from headwise.tasks.scores import LEAST_ITEMS, Outcome, resampled_scores


class Resampled(NamedTuple):
    """The scores of one system."""

    scores: np.ndarray  # of each seed on all items, `(seeds,)`
    # Of each seed on resamples of the items, `(seeds, resamples)`; None of a score that is not
    # made from items.
    resamples: np.ndarray | None
    items: int  # number of items

    @property
    def seeds(self) -> int:
        return len(self.scores)


def compare_outcomes(
    outcomes: Mapping[str, Sequence[Outcome]],
    baseline: str,
    tables: int = 1,
) -> tuple[dict[str, dict[str, Estimate]], dict[str, Difference | None]]:
    """Returns the mean of each score of each system, and the differences of the first score.

    Args:
        outcomes: name of a system to those of its seeds, all on the same test items.
        baseline: name of the system that the others are compared with.
        tables: number of such comparisons that are made on different data at once; the detectable
            difference is that of a test which is corrected over all of them.

    Returns:
        By system the estimates by score, and by system the difference to the baseline, with
        p-values corrected over all systems.
    """
    estimates: dict[str, dict[str, Estimate]] = {name: {} for name in outcomes}
    scores = [s.name for of in outcomes.values() for o in of for s in o.scores]
    differences: dict[str, Difference | None] = {}
    for number, score in enumerate(dict.fromkeys(scores)):
        found = {name: resampled(of, score) for name, of in outcomes.items()}
        for name, system in found.items():
            if (mean := estimate(system)) is not None:
                estimates[name][score] = mean
        if number == 0 and baseline in found:
            others = [name for name in found if name != baseline]
            differences = {
                name: difference(found[name], found[baseline], tables * len(others))
                for name in others
            }
    return estimates, corrected(differences)


def resampled(outcomes: Sequence[Outcome], name: str) -> Resampled:
    """Returns the scores of one system's runs."""
    found = [
        score
        for outcome in outcomes
        for score in outcome.scores
        if score.name == name and math.isfinite(score.value)
    ]
    scores = np.array([score.value for score in found])
    if not found or not all(score.rows for score in found):
        return Resampled(scores, None, 0)
    return Resampled(scores, resampled_scores(found), len(found[0].rows))


def estimate(system: Resampled) -> Estimate | None:
    """Returns the mean of a system's score with its interval; None without a finite mean."""
    if not system.seeds:
        return None
    value = float(system.scores.mean())
    source: Source = "seeds and items"
    interval = None
    spreads = [_of_seeds(system)] if system.seeds > 1 else []
    if system.resamples is None:
        source = "seeds"
    else:
        if system.seeds == 1:
            source, interval = "items", _percentiles(system.resamples[0])
        if system.items == 1 or not np.isfinite(system.resamples).all():
            spreads = []  # one item, or a resample without a score, such as one without any speech
        else:
            spreads.append(_of_items(system.resamples.mean(0), system.items))
    if not spreads:
        return Estimate(value=value, source=source, seeds=system.seeds)
    return estimated(value, total(spreads), source, system.seeds, interval)


def difference(system: Resampled, baseline: Resampled, comparisons: int = 1) -> Difference | None:
    """Returns the difference of a system's mean score to the baseline's.

    Returns:
        The difference, whose corrected p-value is still p; `corrected` corrects those of a table.
        None if there is nothing to judge it by: no finite scores, single runs of a score that is
        not made from items, or fewer than ten items.

    >>> generator = np.random.default_rng(0)
    >>> items = generator.normal(size=(2, 3, 1000)) / 10  # of two systems with three seeds
    >>> scores = np.array([[5.0, 5.1, 4.9], [4.0, 4.2, 3.9]])
    >>> ours, theirs = (Resampled(s, s[:, None] + i, 100) for s, i in zip(scores, items))
    >>> found = difference(ours, theirs)
    >>> round(found.value, 2), found.significant
    (0.97, True)
    """
    if min(system.seeds, baseline.seeds) != 1:
        return contrast([system, baseline], comparisons)
    parts = spreads_of([system, baseline])
    if parts is None or system.resamples is None or baseline.resamples is None:
        return None
    value = float(system.scores.mean() - baseline.scores.mean())
    return _of_runs(value, system.resamples.mean(0) - baseline.resamples.mean(0), parts[0])


def contrast(systems: Sequence[Resampled], comparisons: int = 1) -> Difference | None:
    """Returns a contrast of the mean scores of systems, with its test.

    Of one system it is the mean itself, of two their difference, of four the difference of the
    first two minus that of the others. All runs are independent, so that the variances of their
    seeds add up. The test items are the same: their resamples are taken of the contrast as a whole,
    in which much of what an item does to all runs cancels.

    Returns:
        As `difference`; None also for single runs.
    """
    parts = spreads_of(systems)
    if parts is None or min(each.seeds for each in systems) < 2:
        return None
    has_items = all(each.resamples is not None for each in systems)
    source: Source = "seeds and items" if has_items else "seeds"
    value = float(_contrasted([each.scores.mean() for each in systems]))
    return judged(value, total(parts), source, comparisons)


def _contrasted(means: Sequence[Any]) -> Any:
    half = len(means) // 2
    return _contrasted(means[:half]) - _contrasted(means[half:]) if half else means[0]


def spreads_of(systems: Sequence[Resampled]) -> list[Spread] | None:
    """Returns the variance that the items add, if scores are made from them, and each system's.

    None if a system has no finite score, or the items say nothing: there are too few, or a resample
    has no score.
    """
    if not all(system.seeds for system in systems):
        return None
    of_seeds = [_of_seeds(system) for system in systems if system.seeds > 1]
    resamples = [each.resamples.mean(0) for each in systems if each.resamples is not None]
    if len(resamples) < len(systems):
        return of_seeds
    values = _contrasted(resamples)
    if systems[0].items < LEAST_ITEMS or not np.isfinite(values).all():
        return None
    return [_of_items(values, systems[0].items), *of_seeds]


def change(changed: Resampled, unchanged: Resampled) -> tuple[float, Spread | None]:
    """Returns how the score of one model changes under other conditions, and its variance.

    The model is the same, so that the items are all that may be chance; if the conditions are
    drawn, so are the draws.

    Returns:
        The change of the mean, NaN without a finite score; and its variance, None if there is
        nothing to judge it by.

    Raises:
        ValueError: they are not on equally many items.
    """
    if not changed.seeds or not unchanged.seeds:
        return math.nan, None
    if changed.items != unchanged.items:
        raise ValueError(
            f"the model is scored on {changed.items} items under a change and on "
            f"{unchanged.items} without it, expected the same items in the same order"
        )
    value = float(changed.scores.mean() - unchanged.scores.mean())
    if changed.resamples is None or unchanged.resamples is None:
        return value, None
    changes = changed.resamples.mean(0) - unchanged.resamples.mean(0)
    if changed.items < LEAST_ITEMS or not np.isfinite(changes).all():
        return value, None
    spreads = [_of_items(changes, changed.items)]
    if changed.seeds > 1:
        spreads.append(_of_seeds(changed))
    return value, total(spreads)


def _of_items(values: np.ndarray, items: int) -> Spread:
    """The variance of a score over resamples of the items."""
    variance = float(np.var(values, ddof=1))
    return Spread(variance, variance**2 / (items - 1))


def _of_seeds(system: Resampled) -> Spread:
    """The variance of a mean over seeds that the seeds add to that of the items."""
    seeds = system.seeds
    among = float(np.var(system.scores, ddof=1))
    by_items = 0.0
    if system.resamples is not None:
        # Deviations from the mean over seeds: what all seeds share is no difference between them.
        own = system.resamples - system.resamples.mean(0)
        by_items = float(own.var(axis=1, ddof=1).sum() / (seeds - 1))
    # The difference is as doubtful as its first term: the bootstrap knows the second one well.
    return Spread(max(0.0, among - by_items) / seeds, (among / seeds) ** 2 / (seeds - 1))


def _of_runs(value: float, differences: np.ndarray, items: Spread) -> Difference:
    """The difference of single runs over items: percentiles, and the paired bootstrap's p.

    The p-value is the share of resamples whose difference deviates from the mean over all
    resamples by at least the observed difference; the observed items count as one resample more.
    """
    low, high = _percentiles(differences)
    strayed = np.abs(differences - differences.mean()) >= abs(value)
    p_value = float((strayed.sum() + 1) / (len(differences) + 1)) if value else 1.0
    return Difference(
        value=value,
        low=low,
        high=high,
        error=math.sqrt(items.variance),
        freedom=items.freedom,
        source="items",
        p_value=p_value,
        corrected_p_value=p_value,
        detectable=None,
    )


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
