"""How undecided the systems are: the entropy of their decisions.

The entropy of a row of weights w, which sum to 1, is -Σ w ln w: 0 if a single unit has all weight,
ln N if N units weigh alike.
"""

import math
from collections.abc import Callable, Hashable
from typing import Literal, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.analysis.decisions.observing import Observed, Where
from headwise.analysis.decisions.places import Place
from headwise.analysis.decisions.sums import ClusterSums
from headwise.analysis.statistics.estimates import Estimate
from headwise.tasks.scores import Record

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


class ModuleEntropy(Record):
    """The entropy of the decisions of one system."""

    where: Where
    units: int  # number of units
    # What a decision, a row, holds for: a position, a sequence, or everything.
    decides: Literal["position", "sequence", "everything"]
    spread: EntropySpread


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
        self._modules: dict[Place, _Module] = {}
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

    def __init__(self, place: Place, number: int, units: int) -> None:
        self.where = Where.of(place)
        self.number = number
        self.units = units
        self.uniform = 0.0
        self.decides: Literal["position", "sequence", "everything"] = "position"
        self.rows = Histogram()

    def add(self, made: Observed) -> Tensor:
        """Returns the entropies of each sequence and its number of rows, `(sequences, 2)`."""
        # NaN if a system of one's own has negative weights. Subtracted, so that none is -0.
        entropies = 0.0 - torch.xlogy(made.weights, made.weights).sum(-1).cpu().double()  # (rows,)
        self.uniform = math.log(made.candidates)
        self.rows.add(entropies)
        if made.sequences is None:
            self.decides = "everything"
            return torch.tensor([[float(entropies.sum()), len(entropies)]], dtype=torch.float64)
        self.decides = "position" if made.decides_by_position else "sequence"
        return _by_sequence(entropies, made.sequences.cpu())

    def record(self, spread: EntropySpread) -> ModuleEntropy:
        return ModuleEntropy(
            where=self.where, units=self.units, decides=self.decides, spread=spread
        )


def _by_sequence(entropies: Tensor, sequences: Tensor) -> Tensor:
    """Sums of entropies, and numbers of rows, `(sequences, 2)`."""
    sums = sequences.bincount(entropies)
    return torch.stack([sums, sequences.bincount().double()], -1)


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
