"""The systems of a model as the page is given them: decisions and attention as few bytes."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from headwise.heads.system import Routing, System
from headwise.inspection.exploring.blob import Blob
from headwise.inspection.exploring.payload import Attention, Place, Stack
from headwise.inspection.exploring.watching import Reading, Watched
from headwise.models.plan import system_name

Decides = Literal["position", "sequence", "everything", "nothing"]

# Bytes that all attention of a run may take; base64 makes four of three.
_BUDGET = 6_000_000
_LEVELS = (255, 127, 63, 31, 15)
# Attention weights that a browser can hold.
_MOST = 150_000_000


def recorded_places(watched: Sequence[Watched], stacks: Mapping[str, Stack]) -> list[Place]:
    """Returns what each system of a model has done in one pass, for the page.

    Args:
        watched: the systems.
        stacks: the stacks of the model; keys that no stack has the length of belong to none.
    """
    readings = [reading for seen in watched for reading in seen.readings]
    number = sum(reading.weights.numel() for reading in readings)
    if number > _MOST:
        queries = max(reading.weights.size(1) for reading in readings)
        raise ValueError(
            f"the input has {queries:,} positions, for which the model's heads have {number:,} "
            f"attention weights, expected at most {_MOST:,}; give a shorter input"
        )
    levels = attention_levels([reading.weights for reading in readings])
    return [_place(seen, stacks, levels) for seen in watched]


def attention_levels(weights: Sequence[Tensor]) -> int:
    """Returns by how many steps attention is told apart, so that all of it stays in budget.

    Up to some hundred positions these are 255. A weight w is stored as √w, so that the steps are
    finest near 0, where most weights of long inputs are.

    Args:
        weights: `(heads, queries, keys)` of each attention.
    """
    for levels in _LEVELS[:-1]:
        if sum(_bits(each, levels) for each in weights) / 8 < _BUDGET:
            return levels
    return _LEVELS[-1]


def _bits(weights: Tensor, levels: int) -> float:
    """About as many as deflate needs, which has a whole number of bits for each byte."""
    sample = weights[:, :: max(1, weights.size(1) // 32)]  # some rows of all heads
    counts = (sample.clamp(min=0).sqrt() * levels + 0.5).long().flatten().bincount().double()
    shares = counts[counts > 0] / counts.sum()
    return weights.numel() * (0.15 + float(-(shares * shares.log2()).sum()))


def _place(seen: Watched, stacks: Mapping[str, Stack], levels: int) -> Place:
    place = seen.place
    stack = place.site.partition("_")[0] or next(iter(stacks))
    weights, decides, chosen = _decisions(seen.routing)
    units = 0 if weights is None else weights.shape[1]
    words = place.module.words
    return Place(
        path=place.path,
        site=place.site,
        layer=place.layer,
        system=system_name(type(place.module)),
        whole_layer=place.module.replaces == "layer",
        stack=stack,
        decides=decides,
        units=units,
        unit_names=[f"{words.unit} {number}" for number in range(units)],
        weights=None if weights is None else Blob.of(weights),
        chosen=chosen,
        attentions=[
            _attention(reading, place.module, stack, stacks, levels) for reading in seen.readings
        ],
    )


def _decisions(
    routing: Routing | None,
) -> tuple[np.ndarray | None, Decides, list[list[int]] | None]:
    """The weights, rows of sum 1, what each row holds for, and what was chosen at each position."""
    if routing is None:
        return None, "nothing", None
    weights = routing.weights.float().cpu()
    weights = weights / weights.sum(-1, keepdim=True)
    chosen = None
    if weights.dim() == 3:
        if routing.indices is not None:
            chosen = routing.indices[0].tolist()
        return weights[0].numpy(), "position", chosen
    if weights.dim() == 2:
        return weights[:1].numpy(), "sequence", chosen
    return weights.unsqueeze(0).numpy(), "everything", chosen


def _attention(
    reading: Reading, system: System, stack: str, stacks: Mapping[str, Stack], levels: int
) -> Attention:
    _, queries, keys = reading.weights.shape
    source: str | None = stack
    if reading.is_cross:
        source = next((name for name in stacks if name != stack), None)
    if source is not None and len(stacks[source].tokens) != keys:
        source = None
    triangle = queries == keys and not bool(reading.weights.triu(1).any())
    return Attention(
        name=reading.name,
        queries=stack,
        keys=source,
        heads=[
            Blob.of(head.numpy(), scale=1.0, levels=levels, power=2, triangle=triangle)
            for head in reading.weights
        ],
        unit_of_head=system.unit_of_head(),
    )
