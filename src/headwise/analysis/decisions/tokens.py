"""Which tokens each unit works on: pointwise mutual information of tokens and units.

    PMI(token, unit) = ln p(token, unit) / (p(token) p(unit)) = ln p(unit | token) / p(unit)

(Church and Hanks 1990, *Word Association Norms, Mutual Information, and Lexicography*). A token
goes to a unit if the unit is chosen where it stands or, where the system does not choose, leads.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.analysis.decisions.observing import Observed, Where
from headwise.analysis.decisions.places import Place
from headwise.analysis.decisions.sums import TokenSums
from headwise.tasks.scores import Record
from headwise.tasks.task import Positions

LEADING = 10  # tokens listed for each unit
LEAST = 5  # tokens that were decided on less often are left out
_NORMAL = 1.959963984540054  # its quantile for an interval of 95%


class Leader(Record):
    """A token, or a class of positions, that goes to a unit."""

    name: str
    occurrences: int  # how often it occurs
    # How many decisions these are: as many, or less if one decision holds for several
    # positions of a sequence, or all of its positions are of one class.
    decisions: int
    # How many of the occurrences go to the unit; not whole where units that lead together
    # share them.
    with_unit: float
    pmi: float  # its PMI with the unit, in nats
    # Lower end of its 95% interval: Wilson's for the share of the occurrences that go to the
    # unit, with as many trials as there are decisions.
    low: float
    high: float  # upper end of the interval


class UnitTokens(Record):
    """What goes to one unit."""

    # p(unit): the share of all occurrences that go to it, or of all choices where units are
    # chosen; those of rare tokens too.
    share: float
    # Of how many tokens the interval lies above 0. By chance it would of about one in 40.
    standing_out: int
    # Those of highest PMI, ranked by the lower end of the interval, so that rare ones do not
    # lead by chance.
    leading: list[Leader]


class TokensRecord(Record):
    """Which tokens, or classes of positions, go to the units of one system."""

    where: Where
    label: str  # what is told apart: token, colour, loudness
    by: str  # when a token goes to a unit: if the unit is `chosen`, or if it `leads`
    least: int  # tokens with less decisions than these are left out
    kinds: int  # how many tokens have at least as many
    left_out: int  # how many tokens have less
    units: list[UnitTokens]


class Tokens:
    """Counts which tokens go to which units, batch by batch."""

    def __init__(self) -> None:
        self._tables: dict[tuple[Place, str], _Table] = {}

    def add(self, observed: list[Observed]) -> None:
        """Counts what all systems have decided in a batch.

        A system that decides the same for everything tells no tokens apart and is passed over.
        """
        for made in observed:
            if made.described is None or made.sequences is None:
                continue
            for label, (numbers, names) in _labels(made.described).items():
                key = (made.place, label)
                table = self._tables.setdefault(key, _Table(made, label))
                table.add(made, numbers, names)

    def result(self) -> list[TokensRecord]:
        """Returns what goes to which units: of each system its tokens, then its other labels."""
        places = list(dict.fromkeys(place for place, _ in self._tables))
        return [
            record
            for place in places
            for (at, _), table in self._tables.items()
            if at == place and (record := table.record()) is not None
        ]


def _labels(described: Positions) -> dict[str, tuple[Tensor, Mapping[int, str]]]:
    """Returns of each label the number of what stands at each position, and the numbers' names."""
    found: dict[str, tuple[Tensor, Mapping[int, str]]] = {}
    if described.tokens is not None:
        found[described.word] = (described.tokens, described.names)
    for label, (classes, names) in described.classes.items():
        found[label] = (classes, dict(enumerate(names)))
    return found


class _Table:
    """How often each token has gone to each unit of one system so far."""

    def __init__(self, made: Observed, label: str) -> None:
        self.where = Where.of(made.place)
        self.label = label
        self.units = made.weights.size(-1)
        self.chosen = made.chosen is not None
        # Of each token: how often it goes to each unit, its occurrences, and its decisions.
        self.sums = TokenSums(self.units + 2)
        self.names: Mapping[int, str] = {}

    def add(self, made: Observed, numbers: Tensor, names: Mapping[int, str]) -> None:
        self.names = names
        # A sequence that has one class throughout says little more of it than a single row does.
        decision = (made.row_of if numbers.dim() == 2 else made.sequence_of).cpu()
        taken = made.leads if made.chosen is None else made.chosen
        taken = taken.cpu().double()[made.row_of.cpu()]  # (positions, units)
        tokens = made.at_positions(numbers).cpu()
        known = tokens >= 0
        tokens, decision, taken = tokens[known], decision[known], taken[known]
        self.sums.add(tokens, pad(taken, (0, 2)) + self._column(-2))
        kinds = int(tokens.max()) + 1 if len(tokens) else 1
        of_decisions = (decision * kinds + tokens).unique() % kinds  # a token once in each
        self.sums.add(of_decisions, self._column(-1).expand(len(of_decisions), -1))

    def record(self) -> TokensRecord | None:
        # By number, so that the order of the data does not say which of equal tokens are named.
        order = self.sums.tokens.argsort()
        numbers, sums = self.sums.tokens[order], self.sums.sums[order]
        counts, occurrences, decisions = sums[:, : self.units], sums[:, -2], sums[:, -1]
        if not len(sums) or not torch.isfinite(counts).all():
            return None  # nothing has such a label, or the run has diverged
        shares = counts.sum(0) / occurrences.sum()  # p(unit), or k p(unit) with k choices
        often = decisions >= LEAST
        units = []
        for unit, share in enumerate(shares.tolist()):
            low, high = _wilson(counts[:, unit] / occurrences, decisions)
            candidates = often & (counts[:, unit] > 0)
            ranked = torch.where(candidates, low, -1.0).argsort(descending=True, stable=True)
            leading = [
                Leader(
                    name=self._name_of(int(numbers[row])),
                    occurrences=int(occurrences[row]),
                    decisions=int(decisions[row]),
                    with_unit=float(counts[row, unit]),
                    pmi=math.log(float(counts[row, unit] / occurrences[row]) / share),
                    low=math.log(float(low[row]) / share),
                    high=math.log(float(high[row]) / share),
                )
                for row in ranked[: min(LEADING, int(candidates.sum()))].tolist()
            ]
            units.append(
                UnitTokens(
                    share=share / float(shares.sum()),
                    standing_out=int((candidates & (low > share)).sum()),
                    leading=leading,
                )
            )
        return TokensRecord(
            where=self.where,
            label=self.label,
            by="chosen" if self.chosen else "leads",
            least=LEAST,
            kinds=int(often.sum()),
            left_out=int((~often).sum()),
            units=units,
        )

    def _column(self, number: int) -> Tensor:
        """1 in a column of the sums, 0 in the others; `(1, columns)`."""
        ones = torch.zeros(1, self.units + 2, dtype=torch.float64)
        ones[0, number] = 1
        return ones

    def _name_of(self, number: int) -> str:
        return self.names.get(number, str(number))


def _wilson(share: Tensor, trials: Tensor) -> tuple[Tensor, Tensor]:
    """Wilson's 95% interval of a share (Wilson 1927, https://doi.org/10.2307/2276774)."""
    square = _NORMAL**2
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    spread = (share * (1 - share) / trials + square / (4 * trials**2)).clamp(min=0).sqrt()
    half = _NORMAL * spread / (1 + square / trials)
    return (centre - half).clamp(min=0), (centre + half).clamp(max=1)
