"""How alike the layers of a model decide, and how their decisions go with a quantity.

The decisions of two layers at the same N positions are rows of weights, X of one layer and Y of the
other. Which unit of a layer has which number is chance, so their likeness must not depend on it.
It is the RV coefficient of Robert and Escoufier 1976, https://doi.org/10.2307/2347233, which is
linear CKA (Kornblith et al. 2019, https://arxiv.org/abs/1905.00414): with the covariances S,

    RV = tr(S_xy S_yx) / √(tr(S_xx²) tr(S_yy²)).

It is 1 if one layer's weights are those of the other, renumbered, rotated or scaled. For two units
it is r², the square of the correlation of the weights of any one unit of each layer. Of rows in
random order its mean is not 0 but

    E = √(β_x β_y) / (N − 1),    β = tr(S)² / tr(S²)

(Josse, Pagès and Husson 2008, *Testing the Significance of the RV Coefficient*, Computational
Statistics and Data Analysis 53). As El Ghaziri and Qannari 2015, *Measures of Association between
Two Datasets*, Food Quality and Preference 40, we take that away:

    likeness = (RV − E) / (1 − E),

which is about 0, or a little below, for layers that decide independently.

Lamb et al. 2021, https://arxiv.org/abs/2103.00336, show correlation matrices over layers of a
system with two units (figures 3 and 4). Where there are two, so do we: the plain correlation r of
the weights of the first unit of each layer, and with the quantities that a task knows at each
position, such as the loudness of a frame. For any number of units, the share of the variance of
such a quantity that a linear function of a layer's weights explains is the adjusted

    R² = s_yx S_xx⁺ s_xy / s_yy,    1 − (1 − R²)(N − 1) / (N − k − 1),    k the rank of S_xx.

Systems that decide at each position are compared with each other, and so are those that decide for
each sequence. What is decided once and for all does not vary.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from headwise.analysis.decisions.observing import Observed, Rows, Where
from headwise.analysis.decisions.places import Place
from headwise.tasks.scores import Record

ROUNDING = 1e-12  # a variance below this share of the mean square is rounding

Matrix = list[list[float | None]]


class LevelShares(Record):
    """How much of one quantity the decisions of each layer explain."""

    level: str  # name of the quantity
    # For each place the adjusted R² of the quantity, given the weights there; None where one
    # of them does not vary.
    shares: list[float | None]
    units: Matrix  # for each place the correlation of each unit's weight with the quantity


class StackLikeness(Record):
    """How alike the layers of one stack decide."""

    stack: str  # encoder, decoder, or empty
    of: Rows  # what a row is
    rows: int  # number of rows, N
    places: list[Where]  # the systems, in the order in which they stand
    # The likeness of each two places; None where one of them does not vary, or has diverged.
    likeness: Matrix
    # Where all places have two units: the correlations of the weights of their first units,
    # and behind them of the quantities in `levels`. Else None.
    first_unit: Matrix | None
    levels: list[LevelShares]  # the quantities that the task knows


class Layers:
    """Compares the layers of each stack, from sums of products of their weights."""

    def __init__(self) -> None:
        self._products: dict[_Key, _Products] = {}

    def add(self, observed: list[Observed]) -> None:
        """Counts the decisions of one batch."""
        for group in _at_the_same_rows(observed):
            first = group[0]
            of: Rows = "positions" if first.decides_by_position else "sequences"
            levels = {}
            if of == "positions" and first.described is not None:
                levels = {
                    name: first.at_positions(values).cpu().double()
                    for name, values in first.described.levels.items()
                }
            key = (first.place.stack, of, tuple(each.place for each in group), tuple(levels))
            if key not in self._products:
                units = [each.weights.size(1) for each in group]
                self._products[key] = _Products([*units, *[1] * len(levels)])
            columns = [each.weights.cpu().double() for each in group]
            columns += [values.unsqueeze(1) for values in levels.values()]
            self._products[key].add(torch.cat(columns, 1))

    def result(self) -> list[StackLikeness]:
        """Returns a record for each stack; none of a stack with one layer and no quantity."""
        return [
            _record(key, products)
            for key, products in self._products.items()
            if len(key[2]) > 1 or key[3]
        ]


# Stack, what a row is, the places and the names of the quantities.
_Key = tuple[str, Rows, tuple[Place, ...], tuple[str, ...]]


class _Products:
    """Sums of rows and of their products; a row has the weights of all places side by side.

    Args:
        sizes: how many columns each place has, and each quantity.
    """

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.rows = 0
        self.sums = torch.zeros(sum(sizes), dtype=torch.float64)
        self.products = torch.zeros(sum(sizes), sum(sizes), dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        self.rows += len(rows)
        self.sums += rows.sum(0)
        self.products.addmm_(rows.mT, rows)

    def covariances(self) -> list[list[Tensor]]:
        """The covariance of each two places, as blocks.

        It is 0 for a column that does not vary, and where a run has diverged.
        """
        mean = self.sums / max(self.rows, 1)
        squares = self.products.diagonal() / max(self.rows, 1)
        whole = self.products / max(self.rows, 1) - torch.outer(mean, mean)
        varies = whole.diagonal() > ROUNDING * squares
        whole = whole.masked_fill(~torch.outer(varies, varies), 0.0)
        return [list(row.split(self.sizes, 1)) for row in whole.split(self.sizes, 0)]


def _at_the_same_rows(observed: Iterable[Observed]) -> list[list[Observed]]:
    """Groups decisions of one stack at the same rows; a place is once in a group."""
    groups: list[list[Observed]] = []
    for each in observed:
        if each.sequences is None:
            continue
        for group in groups:
            if _same_rows(group[0], each) and all(each.place != other.place for other in group):
                group.append(each)
                break
        else:
            groups.append([each])
    return groups


def _same_rows(one: Observed, other: Observed) -> bool:
    return (
        one.place.stack == other.place.stack
        and one.decides_by_position == other.decides_by_position
        and len(one.weights) == len(other.weights)
        and torch.equal(one.real, other.real)
    )


def _record(key: _Key, products: _Products) -> StackLikeness:
    stack, of, places, levels = key
    number, rows = len(places), products.rows
    blocks = products.covariances()
    likeness = [[_likeness(blocks, i, j, rows) for j in range(number)] for i in range(number)]
    first_unit = None
    if all(size == 2 for size in products.sizes[:number]):
        everything = range(len(products.sizes))
        first_unit = [
            [_correlation(blocks[i][i], blocks[i][j], blocks[j][j], 0) for j in everything]
            for i in everything
        ]
    found = [
        LevelShares(
            level=name,
            shares=[_explained(blocks, place, at, rows) for place in range(number)],
            units=[
                [
                    _correlation(blocks[place][place], blocks[place][at], blocks[at][at], unit)
                    for unit in range(products.sizes[place])
                ]
                for place in range(number)
            ],
        )
        for at, name in enumerate(levels, number)
    ]
    return StackLikeness(
        stack=stack,
        of=of,
        rows=rows,
        places=[Where.of(place) for place in places],
        likeness=likeness,
        first_unit=first_unit,
        levels=found,
    )


def _likeness(blocks: list[list[Tensor]], i: int, j: int, rows: int) -> float | None:
    """RV of two places without what is expected by chance."""
    one, other, between = blocks[i][i], blocks[j][j], blocks[i][j]
    norm = float(one.square().sum().sqrt() * other.square().sum().sqrt())
    if norm == 0:
        return None
    chance = float(one.trace() * other.trace()) / norm / max(rows - 1, 1)
    if chance >= 1:  # with so few rows, all decisions look alike
        return None
    return (float(between.square().sum()) / norm - chance) / (1 - chance)


def _correlation(one: Tensor, between: Tensor, other: Tensor, unit: int) -> float | None:
    """The correlation of a unit of one place with the first unit of another, or a quantity."""
    scale = float((one[unit, unit] * other[0, 0]).sqrt())
    return float(between[unit, 0]) / scale if scale > 0 else None


def _explained(blocks: list[list[Tensor]], place: int, at: int, rows: int) -> float | None:
    """The adjusted R² of a quantity, given the weights of a place."""
    values, vectors = torch.linalg.eigh(blocks[place][place])
    total = float(blocks[at][at])
    # The weights of a row sum to 1: one direction or more has no variance but by rounding.
    kept = values > max(ROUNDING, 1e-9 * float(values[-1]))
    rank = int(kept.sum())
    if total <= 0 or not rank or rows <= rank + 1:
        return None
    along = vectors[:, kept].mT @ blocks[place][at].squeeze(1)  # (rank,)
    share = min(1.0, float((along.square() / values[kept]).sum()) / total)
    return 1 - (1 - share) * (rows - 1) / (rows - rank - 1)
