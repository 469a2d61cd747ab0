"""The least, mean and greatest weight that frequent tokens get, of all their occurrences.

Figure 4 (left) of Lamb et al. 2021, https://arxiv.org/abs/2103.00336, shows them of a system with
two units. A mean that differs from that of other tokens says that a unit prefers the token. A least
and a greatest weight that are far apart say that this depends on what stands around it.
"""

import torch
from torch import Tensor

from headwise.analysis.decisions.observing import Observed, Where
from headwise.analysis.decisions.places import Place
from headwise.tasks.scores import Record
from headwise.tasks.task import Positions

TOKENS = 16  # how many tokens a record has, the most frequent ones
UNITS = 4  # how many units of each of them


class UnitRange(Record):
    """The weight of one unit over the occurrences of a token."""

    unit: int
    least: float
    mean: float
    greatest: float


class TokenRange(Record):
    """The weights that one token gets."""

    token: int  # its number
    name: str  # as a person reads it
    count: int  # how often it occurs
    units: list[UnitRange]  # the units of greatest mean weight, at most four, in falling order


class PlaceRanges(Record):
    """The weights that frequent tokens get of one system."""

    where: Where
    word: str  # what the tokens are called, in the singular
    units: int  # how many units the system has
    # Root mean square distance of the mean weights of the tokens, all of them, from the mean
    # weights at all positions: how far apart tokens are here.
    spread: float
    tokens: list[TokenRange]  # the most frequent tokens, in falling order


class Ranges:
    """Keeps the least, the greatest and the sum of the weights that each token gets.

    Its memory grows with the vocabulary, and not with the number of batches.
    """

    def __init__(self) -> None:
        self._tables: dict[Place, _Table] = {}

    def add(self, observed: list[Observed]) -> None:
        """Counts the decisions of one batch that are made at positions with tokens."""
        for each in observed:
            described = each.described
            if not each.decides_by_position or described is None or described.tokens is None:
                continue
            tokens = each.at_positions(described.tokens).cpu()
            known = tokens >= 0
            if known.any():
                table = _Table(each.weights.size(1), described)
                self._tables.setdefault(each.place, table).add(
                    each.weights.cpu()[known], tokens[known]
                )

    def result(self) -> list[PlaceRanges]:
        """Returns a record for each system that decides at positions, and has not diverged."""
        return [
            table.record(Where.of(place))
            for place, table in self._tables.items()
            if torch.isfinite(table.sums).all()
        ]


class _Table:
    """Least, greatest and summed weight by token, `(tokens, units)`, and how often it occurs."""

    def __init__(self, units: int, described: Positions) -> None:
        self.described = described
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.sums = torch.zeros(0, units, dtype=torch.float64)
        self.least = torch.zeros(0, units)
        self.greatest = torch.zeros(0, units)

    def add(self, weights: Tensor, tokens: Tensor) -> None:
        missing = int(tokens.max()) + 1 - len(self.counts)
        if missing > 0:
            more = (missing, self.sums.size(1))
            self.counts = torch.cat([self.counts, self.counts.new_zeros(missing)])
            self.sums = torch.cat([self.sums, self.sums.new_zeros(more)])
            self.least = torch.cat([self.least, self.least.new_full(more, torch.inf)])
            self.greatest = torch.cat([self.greatest, self.greatest.new_full(more, -torch.inf)])
        at = tokens.unsqueeze(1).expand_as(weights)
        self.counts += tokens.bincount(minlength=len(self.counts))
        self.sums.index_add_(0, tokens, weights.double())
        self.least.scatter_reduce_(0, at, weights, "amin")
        self.greatest.scatter_reduce_(0, at, weights, "amax")

    def record(self, where: Where) -> PlaceRanges:
        means = self.sums / self.counts.clamp(min=1).unsqueeze(1)
        rows = self.counts.sum()
        around = means - self.sums.sum(0) / rows
        spread = (self.counts.unsqueeze(1) * around.square()).sum() / rows
        frequent = self.counts.argsort(descending=True, stable=True)[:TOKENS]
        return PlaceRanges(
            where=where,
            word=self.described.word,
            units=self.sums.size(1),
            spread=float(spread.sqrt()),
            tokens=[
                self._range(token, means[token])
                for token in frequent.tolist()
                if self.counts[token]
            ],
        )

    def _range(self, token: int, means: Tensor) -> TokenRange:
        units = means.argsort(descending=True, stable=True)[:UNITS].tolist()
        return TokenRange(
            token=token,
            name=self.described.names.get(token, str(token)),
            count=int(self.counts[token]),
            units=[
                UnitRange(
                    unit=unit,
                    least=float(self.least[token, unit]),
                    mean=float(means[unit]),
                    greatest=float(self.greatest[token, unit]),
                )
                for unit in units
            ],
        )
