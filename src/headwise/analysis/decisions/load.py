"""How the work is shared among the units: how often each leads, is chosen, and what it weighs."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from headwise.analysis.decisions.observing import Observed, Where
from headwise.analysis.decisions.places import Place
from headwise.analysis.decisions.sums import ClusterSums
from headwise.analysis.words import Measure, measure_of
from headwise.tasks.scores import Record


class Shares(Record):
    """The share of each unit by one measure, and how far from even the shares are."""

    shares: list[float]  # the share of each unit; they sum to 1
    # Standard error of each share over sequences, whose rows are not independent; None with
    # less than two sequences, or if one decision holds for everything.
    errors: list[float] | None
    # Coefficient of variation: standard deviation of the shares, divided by their mean. 0 is
    # even.
    variation: float
    # The coefficient of variation to be expected of so few sequences if the true shares were
    # even: the root of the mean squared error, divided by the mean share.
    variation_by_chance: float | None
    largest: float  # the largest share, in multiples of an even one
    # Entropy of the shares, divided by that of even ones: 1 is even, 0 a single unit. 1 if
    # there is one unit alone.
    entropy: float
    # Effective number of units: the exponential of the entropy of the shares. So many units
    # with even shares would have this entropy.
    effective: float
    unused: int  # number of units whose share is 0

    @classmethod
    def of(cls, shares: list[float], errors: list[float] | None) -> Self:
        """Computes how far from even shares are."""
        units = len(shares)
        entropy = math.nan  # of negative shares, which a system of one's own may have
        if not any(share < 0 for share in shares):
            entropy = -math.fsum(share * math.log(share) for share in shares if share)
        squares = math.fsum((units * share - 1) ** 2 for share in shares)
        by_chance = None
        if errors is not None:
            by_chance = math.sqrt(units * math.fsum(error**2 for error in errors))
        return cls(
            shares=shares,
            errors=errors,
            variation=math.sqrt(squares / units),
            variation_by_chance=by_chance,
            largest=units * max(shares),
            entropy=entropy / math.log(units) if units > 1 else 1.0,
            effective=math.exp(entropy),
            unused=sum(share == 0 for share in shares),
        )


class LoadRecord(Record):
    """How the work of one system is shared among its units."""

    where: Where
    units: int  # number of units
    measure: Measure  # which of the measures is its share
    rows: int  # number of decisions
    # The share of rows in which each unit has the largest weight; units that have it together
    # share the row.
    leads: Shares
    # The share of all choices that falls on each unit; None if the system does not choose.
    chosen: Shares | None
    weight: Shares  # the mean weight of each unit
    # N Σ fᵢ Pᵢ over N units, where f is the share of choices (of leads, if the system does not
    # choose) and P the mean weight, over all data: 1 is balanced, N is all work on one unit.
    # Losses that balance experts in training are of this form, but there P has the probability
    # of units that were not chosen too.
    balance: float

    @property
    def share(self) -> Shares:
        """The shares by the system's own measure."""
        if self.measure == "choice" and self.chosen is not None:
            return self.chosen
        return self.leads if self.measure == "lead" else self.weight


class Load:
    """Counts how the work is shared, batch by batch."""

    def __init__(self) -> None:
        self._modules: dict[Place, _Module] = {}

    def add(self, observed: list[Observed]) -> None:
        """Counts what all systems have decided in a batch."""
        calls: dict[Place, list[Observed]] = {}
        for made in observed:
            calls.setdefault(made.place, []).append(made)
        for place, of_place in calls.items():
            self._modules.setdefault(place, _Module(of_place[0])).add(of_place)

    def result(self) -> list[LoadRecord]:
        """Returns the load of each system, in the order in which they stand."""
        return [module.record() for module in self._modules.values()]


class _Module:
    """What one system has decided so far."""

    def __init__(self, made: Observed) -> None:
        self.where = Where.of(made.place)
        self.measure = measure_of(made.place.module.unit, made.chosen is not None)
        self.units = made.weights.size(-1)
        self.by_sequence = made.sequences is not None
        # Of each: the sums of the units, and last what a row adds to all of them together.
        self.leads, self.weight = ClusterSums(), ClusterSums()
        self.chosen = None if made.chosen is None else ClusterSums()

    def add(self, calls: Sequence[Observed]) -> None:
        """Counts the calls of one batch, which decide for the same sequences."""
        sequences = torch.cat([_sequences(made) for made in calls])
        self.leads.add(_by_sequence(torch.cat([made.leads for made in calls]), sequences))
        self.weight.add(_by_sequence(torch.cat([made.weights for made in calls]), sequences))
        chosen = [made.chosen / made.candidates for made in calls if made.chosen is not None]
        if self.chosen is not None and len(chosen) == len(calls):
            self.chosen.add(_by_sequence(torch.cat(chosen), sequences))

    def record(self) -> LoadRecord:
        leads, weight = self._shares(self.leads), self._shares(self.weight)
        chosen = None if self.chosen is None else self._shares(self.chosen)
        works = leads if chosen is None else chosen
        products = zip(works.shares, weight.shares, strict=True)
        return LoadRecord(
            where=self.where,
            units=self.units,
            measure=self.measure,
            rows=round(self.leads.total(self.units)),
            leads=leads,
            chosen=chosen,
            weight=weight,
            balance=self.units * math.fsum(f * p for f, p in products),
        )

    def _shares(self, sums: ClusterSums) -> Shares:
        ratios = [sums.ratio([(unit, self.units)]) for unit in range(self.units)]
        errors = [math.sqrt(spread.variance) for _, spread in ratios if spread is not None]
        known = self.by_sequence and bool(errors)
        return Shares.of([share for share, _ in ratios], errors if known else None)


def _sequences(made: Observed) -> Tensor:
    """The sequence of each row; one for all where a decision holds for everything."""
    if made.sequences is None:
        return torch.zeros(len(made.weights), dtype=torch.int64)
    return made.sequences.cpu()


def _by_sequence(shares: Tensor, sequences: Tensor) -> Tensor:
    """Sums of each sequence: of each unit, and its number of rows; `(sequences, units + 1)`."""
    values = shares.cpu().double()
    values = torch.cat([values, torch.ones(len(values), 1, dtype=torch.float64)], 1)
    sums = torch.zeros(int(sequences.max()) + 1, values.size(1), dtype=torch.float64)
    return sums.index_add_(0, sequences, values)
