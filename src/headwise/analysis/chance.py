"""What may be chance: intervals and tests over seeds and test items together.

Systems are scored on the same items, and seeds are independent draws of training. The score of a
system is its mean over seeds; its variance has a part of the items and a part of the seeds:

    V = V_items + Σ_systems max(0, s² − e) / S

- V_items is the variance of the mean over seeds, or of the difference of two such means, over
  resamples of the items. Systems and seeds share the items of a resample.
- s² is the variance of a system's scores over its S seeds. It also holds what the finite number
  of items adds to the differences between seeds. The bootstrap says how much that is, e, and
  V_items has it already.

Resampling three seeds would underestimate their variance by a third. So seeds are not resampled:
s² has S − 1 degrees of freedom, and quantiles of Student's t take them into account.
docs/statistics.md has the derivation, the literature and a simulation of how often the test errs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from headwise.tasks.outcome import RECORD, Outcome
from headwise.tasks.significance import LEAST_ITEMS, Statistic, resampled_scores

SIGNIFICANT = 0.05  # a smaller p-value, corrected for the number of comparisons, is significant
POWER = 0.8  # probability with which a difference as large as the detectable one is found

Key = TypeVar("Key")
# Whose chance an interval or a test tells.
Source = Literal["seeds and items", "items", "seeds"]


class Estimate(BaseModel):
    """The mean score of a system over its seeds, with its 95% interval."""

    model_config = RECORD

    value: float = Field(description="The mean over seeds.")
    low: float | None = Field(None, description="Lower end of the 95% interval.")
    high: float | None = Field(None, description="Upper end of the 95% interval.")
    error: float | None = Field(None, description="Standard error of the mean.")
    freedom: float | None = Field(None, description="Degrees of freedom of the standard error.")
    source: Source = Field(
        description="Whose chance the interval holds; with one seed only that of the items."
    )
    seeds: int = Field(description="Number of seeds that count.")


class Difference(BaseModel):
    """The difference of a system's mean score to the baseline's, and whether it may be chance."""

    model_config = RECORD

    value: float = Field(description="The system's mean minus the baseline's.")
    low: float = Field(description="Lower end of the 95% interval.")
    high: float = Field(description="Upper end of the 95% interval.")
    error: float = Field(description="Standard error of the difference.")
    freedom: float = Field(description="Degrees of freedom of the standard error.")
    source: Source = Field(
        description="Whose chance interval and p hold. With `items` they are about the runs at "
        "hand: other seeds may give another difference."
    )
    p_value: float = Field(
        description="Two-sided: the probability of a difference this large without a true one."
    )
    corrected_p_value: float = Field(
        description="By Holm's method, over all comparisons of the table."
    )
    detectable: float | None = Field(
        description="The smallest true difference that so many seeds and items find with "
        "probability 0.8; None with one seed, which finds none, and where no score varies."
    )

    @property
    def significant(self) -> bool:
        """Whether the systems differ, by the corrected p-value; single runs never tell."""
        return self.source != "items" and self.corrected_p_value < SIGNIFICANT


class Resampled(NamedTuple):
    """The scores of one system.

    Attributes:
        scores: of each seed on all items, `(seeds,)`.
        resamples: of each seed on resamples of the items, `(seeds, resamples)`; None of a score
            that is not made from items.
        items: number of items.
    """

    scores: np.ndarray
    resamples: np.ndarray | None
    items: int

    @property
    def seeds(self) -> int:
        return len(self.scores)


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


def compare_outcomes(
    outcomes: Mapping[str, Sequence[Outcome]],
    baseline: str,
    statistic: Callable[[str], Statistic],
    tables: int = 1,
) -> tuple[dict[str, dict[str, Estimate]], dict[str, Difference | None]]:
    """Returns the mean of each score of each system, and the differences of the first score.

    Args:
        outcomes: name of a system to those of its seeds, all on the same test items.
        baseline: name of the system that the others are compared with.
        statistic: returns what computes a score, from the score's name.
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
        found = {name: resampled(of, score, statistic(score)) for name, of in outcomes.items()}
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


def resampled(outcomes: Sequence[Outcome], name: str, statistic: Statistic) -> Resampled:
    """Returns the scores of one system's runs.

    Args:
        outcomes: of its seeds, on the same test items.
        name: of the score; runs that lack it, or have no finite value, are left out.
        statistic: computes the score from the items.
    """
    found = [
        (score.value, outcome.items.get(name))
        for outcome in outcomes
        for score in outcome.scores
        if score.name == name and math.isfinite(score.value)
    ]
    scores = np.array([value for value, _ in found])
    rows = [items for _, items in found if items is not None]
    if len(rows) < len(found) or not rows:
        return Resampled(scores, None, 0)
    return Resampled(scores, resampled_scores(rows, statistic), len(rows[0]))


def estimate(system: Resampled) -> Estimate | None:
    """Returns the mean of a system's score with its interval; None without a finite mean."""
    if not system.seeds:
        return None
    value = float(system.scores.mean())
    spreads = [_of_seeds(system)] if system.seeds > 1 else []
    if system.items > 1 and system.resamples is not None and np.isfinite(system.resamples).all():
        spreads.append(_of_items(system.resamples.mean(0), system.items))
    elif system.resamples is not None:
        spreads = []  # resamples of a single item, or some without a score: speech in none of it
    source: Source = "seeds and items"
    if system.resamples is None or system.seeds == 1:
        source = "seeds" if system.resamples is None else "items"
    if not spreads:
        return Estimate(value=value, source=source, seeds=system.seeds)
    spread = total(spreads)
    if source == "items":
        assert system.resamples is not None
        ends = _percentiles(system.resamples[0])
    else:
        ends = _student(value, spread)
    return Estimate(
        value=value,
        low=ends[0],
        high=ends[1],
        error=math.sqrt(spread.variance),
        freedom=spread.freedom,
        source=source,
        seeds=system.seeds,
    )


def difference(system: Resampled, baseline: Resampled, comparisons: int = 1) -> Difference | None:
    """Returns the difference of a system's mean score to the baseline's.

    Args:
        system, baseline: their scores, on the same items.
        comparisons: how many there are in the table; the detectable difference is that of the
            strictest test of Holm's method.

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
    fewest = min(system.seeds, baseline.seeds)
    if not fewest:
        return None
    value = float(system.scores.mean() - baseline.scores.mean())
    if system.resamples is None or baseline.resamples is None:
        if fewest == 1:
            return None
        return judged(value, total([_of_seeds(system), _of_seeds(baseline)]), "seeds", comparisons)
    differences = system.resamples.mean(0) - baseline.resamples.mean(0)
    if system.items < LEAST_ITEMS or not np.isfinite(differences).all():
        return None
    items = _of_items(differences, system.items)
    if fewest == 1:
        return _of_runs(value, differences, items)
    spread = total([items, _of_seeds(system), _of_seeds(baseline)])
    return judged(value, spread, "seeds and items", comparisons)


def mean_difference(differences: Sequence[Difference], comparisons: int = 1) -> Difference | None:
    """Returns the mean of differences on several data sets, each counting alike.

    The runs on different data sets are independent of each other.

    Args:
        differences: one for each data set.
        comparisons: as in `difference`.
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
    spread = total(parts)
    low, high = _student(value, spread)
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
        comparisons: as in `difference`.
    """
    from scipy.stats import t  # imported here: it takes a second

    error = math.sqrt(spread.variance)
    if not error and value:
        return None
    p_value = float(2 * t.sf(abs(value) / error, spread.freedom)) if error else 1.0
    low, high = _student(value, spread)
    detectable = None
    if source != "items" and error:
        detectable = error * _detectable(spread.freedom, SIGNIFICANT / max(1, comparisons))
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


def corrected(differences: Mapping[Key, Difference | None]) -> dict[Key, Difference | None]:
    """Returns the differences of one table with p-values corrected by Holm's method.

    Holm 1979, *A Simple Sequentially Rejective Multiple Test Procedure*,
    https://www.jstor.org/stable/4615733: of m p-values in ascending order the i-th is multiplied by
    m − i + 1, and is at least as large as the one before.
    """
    found = {name: made.p_value for name, made in differences.items() if made is not None}
    adjusted = dict(zip(found, holm(list(found.values())), strict=True))
    return {
        name: made and made.model_copy(update={"corrected_p_value": adjusted[name]})
        for name, made in differences.items()
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected by Holm's method.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    raised = np.maximum.accumulate(np.asarray(p_values, dtype=float)[order] * factors)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(raised, 1.0)
    return adjusted.tolist()


def total(spreads: Sequence[Spread]) -> Spread:
    """Returns the variance of a sum of independent parts.

    >>> total([Spread(1.0, 0.5), Spread(1.0, 0.5)]).freedom
    4.0
    """
    return Spread(sum(part.variance for part in spreads), sum(part.doubt for part in spreads))


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


def _shared_source(parts: Sequence[Estimate] | Sequence[Difference]) -> Source:
    """Whose chance a mean over data sets holds: of all that every one of them holds."""
    sources: set[Source] = {part.source for part in parts}
    if "items" in sources:
        return "items"
    return sources.pop() if len(sources) == 1 else "seeds and items"


def _mean_part(error: float, freedom: float, number: int) -> Spread:
    """What one of `number` data sets adds to the variance of their mean."""
    variance = (error / number) ** 2
    return Spread(variance, variance**2 / freedom)


def _percentiles(values: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _student(value: float, spread: Spread) -> tuple[float, float]:
    from scipy.stats import t

    if not spread.variance:
        return value, value
    half = math.sqrt(spread.variance) * float(t.ppf(0.975, spread.freedom))
    return value - half, value + half


def _detectable(freedom: float, level: float) -> float:
    """The true difference, in standard errors, that the test finds with probability `POWER`."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    critical = float(t.ppf(1 - level / 2, freedom))
    return float(brentq(lambda true: nct.sf(critical, freedom, true) - POWER, 0.0, 4 * critical))
