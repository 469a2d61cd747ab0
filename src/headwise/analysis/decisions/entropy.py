"""How undecided the systems are: the entropy of their decisions.

The entropy of a row of weights w, which sum to 1, is -Σ w ln w: 0 if a single unit has all weight,
ln N if N units weigh alike.
"""

import math
from collections.abc import Callable, Hashable
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import Self

from headwise.analysis.decisions.explained import doubling
from headwise.analysis.decisions.observing import Observed, Where, warn_if_saturated
from headwise.analysis.decisions.sums import ClusterSums, TokenSums
from headwise.analysis.statistics.estimates import Estimate
from headwise.models.sites import AttentionSite
from headwise.tasks.outcome import Record

Key = TypeVar("Key", bound=Hashable)
PERCENTILES = (10, 50, 90)
STEP = 1 / 2048  # width of a bin


class EntropySpread(Record):
    """The entropy of rows of decisions, in nats."""

    # Mean over rows; of several modules, the mean of their means. Its interval is over
    # sequences, whose rows are not independent; none if a decision holds for everything.
    mean: Estimate
    # The entropy if all units, or all chosen ones, had equal weights; of several modules, the
    # mean.
    uniform: float
    deviation: float  # standard deviation over the rows (of all modules)
    percentiles: dict[int, float]  # percent to nats, over the rows (of all modules)
    rows: int  # number of rows (of all modules)


class AtPositions(Record):
    """The entropy at positions that lie alike in their sequences."""

    first: int  # the first of these positions, counted from 0
    last: int  # the last of these positions
    mean: Estimate  # mean entropy of the rows, as in `EntropySpread`
    rows: int  # number of rows


class AtFrequencies(Record):
    """The entropy at tokens that occur about equally often in the analysed data."""

    fewest: int  # the tokens occur at least so often
    most: int  # they occur at most so often
    tokens: int  # how many different tokens these are
    # Mean entropy of the rows. It has no interval: which tokens are of a class is known at the
    # end alone.
    mean: float
    rows: int  # number of rows


class ModuleEntropy(Record):
    """The entropy of the decisions of one system."""

    where: Where
    units: int  # number of units
    # What a decision, a row, holds for: a position, a sequence, or everything.
    decides: Literal["position", "sequence", "everything"]
    spread: EntropySpread
    # How many units a part of the output listens to, 1 / Σ share², the mean over parts and
    # rows; None for systems whose output has no such parts.
    heard: float | None = None
    # By position in the sequence; empty if positions are not decided separately.
    by_position: list[AtPositions]
    # By frequency of the token, in octaves; empty if positions are not decided separately, or
    # no tokens stand at them.
    by_frequency: list[AtFrequencies]


class GroupEntropy(Record):
    """The entropy of several systems of the same kind: those of a layer, or all of a model."""

    system: str  # the system's name in plans
    stack: str  # encoder or decoder; empty for all of the model
    layer: int | None  # the layer, counted from 0; None for all of the model
    spread: EntropySpread


class EntropyRecord(Record):
    """The entropy of the decisions of all systems of a model."""

    modules: list[ModuleEntropy]
    layers: list[GroupEntropy]
    models: list[GroupEntropy]  # over the model, for each kind of system
    # Percentiles come from counts in bins of this width, in nats, and may be wrong by as much.
    resolution: float


class Entropy:
    """Counts the entropy of decisions, batch by batch."""

    def __init__(self) -> None:
        self._modules: dict[AttentionSite, _Module] = {}
        # Of each module two quantities: the entropies of a sequence, and its number of rows.
        self._sums = ClusterSums()

    def add(self, observed: list[Observed]) -> None:
        """Counts what all systems have decided in a batch."""
        columns: dict[int, Tensor] = {}
        for made in observed:
            module = self._modules.setdefault(
                made.place, _Module(made.place, len(self._modules), made.weights.size(-1))
            )
            sums = module.add(made)  # (sequences, 2)
            # A system that is called twice decides twice for the same sequences.
            columns[module.number] = columns.get(module.number, 0.0) + sums
        if not columns:
            return
        values = torch.zeros(
            max(len(each) for each in columns.values()),
            2 * len(self._modules),
            dtype=torch.float64,
        )
        for number, sums in columns.items():
            values[: len(sums), 2 * number : 2 * number + 2] = sums
        self._sums.add(values)

    def result(self) -> EntropyRecord | None:
        """Returns the entropies; None if no system has decided anything."""
        modules = list(self._modules.values())
        if not modules:
            return None
        return EntropyRecord(
            modules=[module.record(self._spread([module])) for module in modules],
            layers=[
                GroupEntropy(system=name, stack=stack, layer=layer, spread=self._spread(group))
                for (name, stack, layer), group in _grouped(
                    modules, lambda m: (m.where.system, m.where.stack, m.where.layer)
                )
            ],
            models=[
                GroupEntropy(system=name, stack="", layer=None, spread=self._spread(group))
                for name, group in _grouped(modules, lambda m: m.where.system)
            ],
            resolution=STEP,
        )

    def _spread(self, modules: "list[_Module]") -> EntropySpread:
        rows = Histogram.of([module.rows for module in modules])
        pairs = [(2 * module.number, 2 * module.number + 1) for module in modules]
        mean = self._sums.estimate(pairs)
        if all(module.decides == "everything" for module in modules):
            mean = Estimate(value=mean.value, source="items", seeds=1)
        return EntropySpread(
            mean=mean,
            uniform=math.fsum(module.uniform for module in modules) / len(modules),
            deviation=rows.deviation,
            percentiles=rows.percentiles,
            rows=rows.count,
        )


class _Module:
    """What one system has decided so far."""

    def __init__(self, place: AttentionSite, number: int, units: int) -> None:
        self.where = Where.of(place)
        self.number = number
        self.units = units
        self.uniform = 0.0
        self.decides: Literal["position", "sequence", "everything"] = "position"
        self.rows = Histogram()
        self._heard: list[float] = []  # sums of batches
        self.place = place
        # Of each class of positions the entropies of a sequence and its number of rows, in turns.
        self._positions = ClusterSums()
        self._tokens = TokenSums(2)  # entropies and number of rows

    def add(self, made: Observed) -> Tensor:
        """Returns the entropies of each sequence and its number of rows, `(sequences, 2)`."""
        # NaN if a system of one's own has negative weights. Subtracted, so that none is -0.
        entropies = 0.0 - torch.xlogy(made.weights, made.weights).sum(-1).cpu().double()  # (rows,)
        self.uniform = math.log(made.candidates)
        if made.heard is not None:
            self._heard.append(float(made.heard.double().sum()))
        self.rows.add(entropies)
        if made.sequences is None:
            self.decides = "everything"
            return torch.tensor([[float(entropies.sum()), len(entropies)]], dtype=torch.float64)
        sequences = made.sequences.cpu()
        if not made.decides_by_position:
            self.decides = "sequence"
            return _by_class(entropies, sequences, torch.zeros_like(sequences)).squeeze(1)
        by_class = _by_class(entropies, sequences, _class_of(made.time_of.cpu()))
        self._positions.add(by_class.flatten(1))
        if made.described is not None and made.described.tokens is not None:
            tokens = made.at_positions(made.described.tokens).cpu()
            self._tokens.add(tokens, torch.stack([entropies, torch.ones_like(entropies)], 1))
        return by_class.sum(1)

    def record(self, spread: EntropySpread) -> ModuleEntropy:
        by_position = self.decides == "position"
        return ModuleEntropy(
            where=self.where,
            units=self.units,
            decides=self.decides,
            spread=spread,
            heard=self._mean_heard(),
            by_position=self._by_position() if by_position else [],
            by_frequency=self._by_frequency() if by_position else [],
        )

    def _mean_heard(self) -> float | None:
        if not self._heard:
            return None
        heard = math.fsum(self._heard) / self.rows.count
        warn_if_saturated(self.place, heard, self.units)
        return heard

    def _by_position(self) -> list[AtPositions]:
        found = []
        for number in range(self._positions.quantities // 2):
            first, last = _positions_of(number)
            rows = int(self._positions.total(2 * number + 1))
            mean = self._positions.estimate([(2 * number, 2 * number + 1)])
            found.append(AtPositions(first=first, last=last, mean=mean, rows=rows))
        return found

    def _by_frequency(self) -> list[AtFrequencies]:
        entropies, counts = self._tokens.sums.unbind(1)
        octaves = doubling(counts) - 1
        found = []
        for octave in octaves.unique().tolist():
            of_class = octaves == octave
            rows = int(counts[of_class].sum())
            found.append(
                AtFrequencies(
                    fewest=2**octave,
                    most=2 ** (octave + 1) - 1,
                    tokens=int(of_class.sum()),
                    mean=float(entropies[of_class].sum()) / rows,
                    rows=rows,
                )
            )
        return found


def _by_class(entropies: Tensor, sequences: Tensor, classes: Tensor) -> Tensor:
    """Sums of entropies, and numbers of rows, `(sequences, classes, 2)`."""
    shape = (int(sequences.max()) + 1, int(classes.max()) + 1)
    place = sequences * shape[1] + classes
    size = shape[0] * shape[1]
    sums = place.bincount(entropies, minlength=size)
    counts = place.bincount(minlength=size).double()
    return torch.stack([sums, counts], -1).view(*shape, 2)


def _class_of(positions: Tensor) -> Tensor:
    """The class of positions: 0, 1, 2, 3, then an octave each: 4 to 7, 8 to 15 and so on."""
    return torch.where(positions < 4, positions, doubling(positions) + 1)


def _positions_of(number: int) -> tuple[int, int]:
    """The first and the last position of a class."""
    return (number, number) if number < 4 else (2 ** (number - 2), 2 ** (number - 1) - 1)


def _grouped(
    modules: list[_Module], key: Callable[[_Module], Key]
) -> list[tuple[Key, list[_Module]]]:
    groups: dict[Key, list[_Module]] = {}
    for module in modules:
        groups.setdefault(key(module), []).append(module)
    return list(groups.items())


class Histogram:
    """Numbers from 0 on, counted in narrow bins.

    A bin also has the sum of its numbers: a percentile is the mean of those in its bin. It is exact
    if they are equal, and otherwise wrong by less than `STEP`.
    """

    def __init__(self) -> None:
        self._counts = torch.zeros(0, dtype=torch.float64)
        self._sums = torch.zeros(0, dtype=torch.float64)
        self._squares = 0.0

    def add(self, values: Tensor) -> None:
        """Counts numbers, `(count,)`, float64."""
        bins = (values / STEP).nan_to_num().long().clamp(min=0)
        self._join(bins.bincount().double(), bins.bincount(values), float(values.square().sum()))

    @classmethod
    def of(cls, parts: list[Self]) -> Self:
        """Returns the histogram of the numbers of several."""
        found = cls()
        for part in parts:
            found._join(part._counts, part._sums, part._squares)
        return found

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return int(self._counts.sum())

    @property
    def deviation(self) -> float:
        """The standard deviation of the numbers."""
        mean = float(self._sums.sum()) / self.count
        variance = self._squares / self.count - mean**2
        return math.sqrt(max(0.0, variance)) if not math.isnan(variance) else math.nan

    @property
    def percentiles(self) -> dict[int, float]:
        """Percent to the number below which so many of the numbers are, by nearest rank."""
        if math.isnan(float(self._sums.sum())):
            return dict.fromkeys(PERCENTILES, math.nan)
        below = self._counts.cumsum(0)
        found = {}
        for percent in PERCENTILES:
            rank = round(percent / 100 * (self.count - 1))
            number = int(torch.searchsorted(below, float(rank), right=True))
            found[percent] = float(self._sums[number] / self._counts[number])
        return found

    def _join(self, counts: Tensor, sums: Tensor, squares: float) -> None:
        more = len(counts) - len(self._counts)
        if more > 0:
            self._counts, self._sums = pad(self._counts, (0, more)), pad(self._sums, (0, more))
        self._counts[: len(counts)] += counts
        self._sums[: len(counts)] += sums
        self._squares += squares
