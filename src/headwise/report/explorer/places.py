"""The systems of a model as the page is given them: decisions and attention as few bytes."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from torch import nn

from headwise.heads.system import Routing, System
from headwise.models.heads_read import heads_sites
from headwise.models.plan import system_name
from headwise.report.explorer.blob import Blob
from headwise.report.explorer.payload import Attention, Place, Stack
from headwise.report.explorer.watching import Reading, Watched

Decides = Literal["position", "sequence", "everything", "nothing"]

# Letters that all attention of a page may take. Without a budget, 144 heads over 512 tokens would
# take 30 million, more than a browser reads in the blink of an eye.
BUDGET = 9_000_000
_LEVELS = (3, 5, 7, 11, 15, 31, 63, 127, 255)
# Attention weights that a browser can hold, of which it inflates those that are looked at.
_MOST = 150_000_000


def check_size(model: nn.Module, stacks: Mapping[str, Stack]) -> None:
    """Raises `ValueError` if no browser could hold the attention of a model over its input.

    Args:
        model: the model.
        stacks: what stands at the positions of the input.
    """
    longest = max(len(stack.tokens) for stack in stacks.values())
    heads = sum(place.module.num_heads for place in heads_sites(model))
    if heads * longest**2 > _MOST:
        raise ValueError(
            f"the input has {longest:,} positions, over which the {heads} heads of the model have "
            f"{heads * longest**2:,} attention weights, expected at most {_MOST:,}; give a shorter "
            f"input"
        )


def recorded_places(
    watched: Sequence[Watched], stacks: Mapping[str, Stack], budget: float = BUDGET
) -> list[Place]:
    """Returns what each system of a model has done in one pass, for the page.

    Attention weights keep steps of 1/255 of the largest of a head if all of them together are few,
    as for some hundred tokens, or compress well, as where heads look at single tokens. Of others
    the steps are coarser.

    Args:
        watched: the systems.
        stacks: the stacks of the model; keys that no stack has the length of belong to none.
        budget: how many letters all attention may take.

    Raises:
        ValueError: a system has other positions than the input.
    """
    number = sum(reading.weights.numel() for seen in watched for reading in seen.readings)
    share = budget / max(1, number)
    return [_place(seen, stacks, share) for seen in watched]


def _place(seen: Watched, stacks: Mapping[str, Stack], share: float) -> Place:
    place = seen.place
    stack = place.stack if place.stack in stacks else next(iter(stacks))
    weights, decides, chosen = _decisions(seen.routing)
    for reading in seen.readings:
        if reading.weights.size(1) != len(stacks[stack].tokens):
            raise ValueError(
                f"the system {place.path!r} reads {reading.weights.size(1)} positions, expected "
                f"{len(stacks[stack].tokens)}: one for each token of the input"
            )
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
            _attention(reading, place.module, stack, stacks, share) for reading in seen.readings
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
    reading: Reading, system: System, stack: str, stacks: Mapping[str, Stack], share: float
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
        heads=[_packed(head.numpy(), triangle, share * head.numel()) for head in reading.weights],
        unit_of_head=system.unit_of_head(),
    )


def _packed(head: np.ndarray, triangle: bool, most: float) -> Blob:
    """The weights of a head, in as many steps as let it take about so many letters at most."""
    sample = head[:: 1 if len(head) < 64 else 4]

    def size(levels: int) -> float:
        return len(Blob.of(sample, levels=levels, power=2).data) * len(head) / len(sample)

    levels = _LEVELS[-1]
    if 4 / 3 * head.size > most and size(levels) > most:  # base64 makes four letters of three bytes
        fitting = bisect_right(_LEVELS[:-1], most, key=size)
        levels = _LEVELS[max(0, fitting - 1)]
    # Of √w the steps are even: those of w are finest near 0, where most weights are.
    return Blob.of(head, levels=levels, power=2, triangle=triangle)
