"""The decisions of one batch, as rows that all questions count, and where systems stand."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.analysis.decisions.places import Place, places_of, stack_of
from headwise.analysis.words import measure_of
from headwise.heads.system import Routing
from headwise.models.inspect import record
from headwise.tasks.scores import Record
from headwise.tasks.task import Positions


class Where(Record):
    """A system and its place in a model."""

    path: str  # the path of the module in the model
    site: str  # encoder_self, decoder_self, decoder_cross, or empty
    layer: int  # the layer, or the number of the system, counted from 0
    system: str  # the system's name in plans, a key of the run's `words`
    whole_layer: bool  # whether the system takes the place of a layer

    @property
    def stack(self) -> str:
        """The stack of the site: `encoder` or `decoder`; empty in any other model."""
        return stack_of(self.site)

    @classmethod
    def of(cls, place: Place) -> "Where":
        """Where a system stands."""
        return cls(
            path=place.path,
            site=place.site,
            layer=place.layer,
            system=place.name,
            whole_layer=place.module.replaces == "layer",
        )


Rows = Literal["positions", "sequences"]  # what rows of decisions that vary are of


@dataclass(frozen=True)
class Observed:
    """What one system decided in one batch.

    A row is one decision: of a position, of a sequence, or of everything. Padding is left out, in
    rows and positions alike.
    """

    place: Place  # the system, and where it stands
    weights: Tensor  # `(rows, units)`, each row scaled to sum 1
    # `(rows, units)`, how the work of each row is shared, see `Words.share`; each row sums to 1.
    shares: Tensor
    # `(rows, units)`, 1 at the unit of largest weight; units that are largest together share
    # it.
    leads: Tensor
    # `(rows, units)`, 1 at each unit that is chosen, where a system chooses; else None.
    chosen: Tensor | None
    # `(rows,)`, which sequence of the batch a row belongs to; None if one decision holds for
    # everything.
    sequences: Tensor | None
    decides_by_position: bool  # whether each real position has a row of its own
    row_of: Tensor  # `(positions,)`, the row that decides for each real position
    sequence_of: Tensor  # `(positions,)`, the sequence of each real position
    time_of: Tensor  # `(positions,)`, its number in the sequence, from 0
    # `(batch, time)`, `False` at padding: picks the positions out of a tensor of the batch.
    real: Tensor
    described: Positions | None  # what stands at the positions; None if that is not known

    @property
    def candidates(self) -> int:
        """How many units have a weight in each row: all, or as many as are chosen."""
        return self.weights.size(-1) if self.chosen is None else int(self.chosen[0].sum())

    def at_positions(self, values: Tensor) -> Tensor:
        """Picks the real positions out of `(batch, time)`, or repeats `(batch,)` for them."""
        values = values.to(self.real.device)
        return values[self.sequence_of] if values.dim() == 1 else values[self.real]


def observe_batch(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    positions: Mapping[str, Positions],
    padding: Mapping[str, Tensor],
) -> list[Observed]:
    """Runs a model on a batch and returns its decisions.

    Raises:
        ValueError: the model holds no system.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with torch.no_grad(), record(model) as decided:
        model(**{name: tensor.to(device) for name, tensor in batch.items()})
    made = {place: decided.get(place.path, []) for place in places_of(model)}
    return observe(made, positions, padding)


def observe(
    decided: Mapping[Place, Iterable[Routing]],
    positions: Mapping[str, Positions],
    padding: Mapping[str, Tensor],
) -> list[Observed]:
    """Returns the decisions of a batch in the order in which their systems stand.

    Args:
        decided: what a forward pass of the batch decided.
        positions: `encoder` or `decoder` to what stands at its positions; `""` for a model that
            is none of headwise's.
        padding: the same to `(batch, time)`, `True` at padding, of stacks that have any.
    """
    found = []
    for place, made in decided.items():
        for routing in made:
            observed = _observed(
                place, routing, positions.get(place.stack), padding.get(place.stack)
            )
            if len(observed.weights):
                found.append(observed)
    return found


def _observed(
    place: Place, routing: Routing, described: Positions | None, padding: Tensor | None
) -> Observed:
    weights = scaled(routing.weights)  # (batch, time, units) or less, see Routing
    padding = routing.padding if routing.padding is not None else padding
    shape = _shape(weights, described)
    if described is not None and described.shape != shape:
        described = None
    real = torch.ones(shape, dtype=torch.bool, device=weights.device)
    if padding is not None and padding.shape == shape:
        real = real & ~padding.to(weights.device)
    sequence_of = real.nonzero()[:, 0]
    chosen = None if routing.indices is None else _ones_at(weights, routing.indices)
    if weights.dim() == 3:
        rows, row_of = weights[real], torch.arange(len(sequence_of), device=weights.device)
        sequences = sequence_of
        chosen = None if chosen is None else chosen[real]
    elif weights.dim() == 2:
        rows, row_of = weights, sequence_of
        sequences = torch.arange(len(weights), device=weights.device)
    else:
        rows, row_of, sequences = weights.unsqueeze(0), torch.zeros_like(sequence_of), None
        chosen = None if chosen is None else chosen.unsqueeze(0)
    leads = (rows == rows.amax(-1, keepdim=True)).float()
    leads = leads / leads.sum(-1, keepdim=True)
    measure = measure_of(place.module.unit, chosen is not None)
    shares = leads if measure == "lead" else rows
    if chosen is not None:
        shares = chosen / chosen.sum(-1, keepdim=True)
    return Observed(
        place=place,
        weights=rows,
        shares=shares,
        leads=leads,
        chosen=chosen,
        sequences=sequences,
        decides_by_position=weights.dim() == 3,
        row_of=row_of,
        sequence_of=sequence_of,
        time_of=real.cumsum(1)[real] - 1,  # padding may stand on the left
        real=real,
        described=described,
    )


def scaled(weights: Tensor) -> Tensor:
    """Scales the weights of each decision to sum 1; if all are 0, none is preferred to another.

    >>> scaled(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))  # an ablation may leave nothing
    tensor([[0.2500, 0.7500],
            [0.5000, 0.5000]])
    """
    weights = weights.float()
    total = weights.sum(-1, keepdim=True)
    return (weights / total).where(total != 0, 1 / weights.size(-1))


def _shape(weights: Tensor, described: Positions | None) -> tuple[int, int]:
    """Batch and time: of the decisions, or where these are of no position, of what stands there.

    If that is not known either, there are no positions.
    """
    if weights.dim() == 3:
        return weights.size(0), weights.size(1)
    if described is not None:
        return described.shape
    return (weights.size(0) if weights.dim() == 2 else 1), 0


def _ones_at(weights: Tensor, indices: Tensor) -> Tensor:
    return torch.zeros_like(weights).scatter(-1, indices, 1.0)
