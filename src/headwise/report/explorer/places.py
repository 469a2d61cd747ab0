"""What the systems of a model do in one pass, decisions and attention, as few bytes."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analysis.decisions.observing import Where
from headwise.heads.heads_read import HeadsRead
from headwise.heads.system import Routing
from headwise.models.decisions import record
from headwise.models.evaluating import evaluating
from headwise.models.heads_read import heads_read
from headwise.models.sites import AttentionSite, HeadsSite, attention_sites, heads_sites
from headwise.report.explorer.payload import Attention, Blob, Place, Stack

Decides = Literal["position", "sequence", "everything", "nothing"]

# Letters that all attention of a page may take. Without a budget, 144 heads over 512 tokens would
# take 30 million, more than a browser reads in the blink of an eye.
BUDGET = 9_000_000
_LEVELS = (3, 5, 7, 11, 15, 31, 63, 127, 255)
# Attention weights that a browser can hold, of which it inflates those that are looked at.
_MOST = 150_000_000


class Reading(NamedTuple):
    """How the heads of one attention have read in its last call.

    Attributes:
        is_cross: whether its keys are of something else than its queries.
        weights: `(heads, queries, keys)` of the first sequence.
    """

    is_cross: bool
    weights: Tensor


class Watched(NamedTuple):
    """What one system has done in one pass; `readings` by the attention's path in the system."""

    place: AttentionSite
    routing: Routing | None
    readings: dict[str, Reading]


@torch.no_grad()
def watch(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Any, list[Watched]]:
    """Runs a model once in evaluation mode on a batch of one sequence."""
    places = attention_sites(model)
    readings: dict[str, dict[str, Reading]] = {place.path: {} for place in places}

    def note(site: HeadsSite, read: HeadsRead) -> None:
        name = site.path.removeprefix(site.system.path).removeprefix(".")
        weights = read.weights(slice(0, 1))[0].float().cpu()
        is_cross = read.inputs.key is not read.inputs.query
        readings[site.system.path][name] = Reading(is_cross, weights)

    with evaluating(model), record(model) as decided, heads_read(model, note):
        output = model(**inputs)
    routings = {place.path: made[-1] for place, made in decided.items()}
    return output, [
        Watched(place, routings.get(place.path), readings[place.path]) for place in places
    ]


def check_size(model: nn.Module, stacks: Mapping[str, Stack]) -> None:
    """Raises `ValueError` if no browser could hold the attention of a model over its input."""
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

    Raises:
        ValueError: a system has other positions than the input.
    """
    read = [reading for seen in watched for reading in seen.readings.values()]
    share = budget / max(1, sum(reading.weights.numel() for reading in read))
    return [_place(seen, stacks, share) for seen in watched]


def _place(seen: Watched, stacks: Mapping[str, Stack], share: float) -> Place:
    place = seen.place
    stack = place.stack if place.stack in stacks else next(iter(stacks))
    weights, decides, chosen = _decisions(seen.routing)
    units = 0 if weights is None else weights.shape[1]
    words = place.module.words
    return Place(
        **Where.of(place).model_dump(),
        stack=stack,
        decides=decides,
        units=units,
        unit_names=[f"{words.unit} {number}" for number in range(units)],
        weights=None if weights is None else Blob.of(weights),
        chosen=chosen,
        attentions=[
            _attention(name, reading, place, stack, stacks, share)
            for name, reading in seen.readings.items()
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
    if weights.dim() == 3:
        chosen = None if routing.indices is None else routing.indices[0].tolist()
        return weights[0].numpy(), "position", chosen
    if weights.dim() == 2:
        return weights[:1].numpy(), "sequence", None
    return weights.unsqueeze(0).numpy(), "everything", None


def _attention(
    name: str,
    reading: Reading,
    place: AttentionSite,
    stack: str,
    stacks: Mapping[str, Stack],
    share: float,
) -> Attention:
    _, queries, keys = reading.weights.shape
    if queries != len(stacks[stack].tokens):
        raise ValueError(
            f"the system {place.path!r} reads {queries} positions, expected "
            f"{len(stacks[stack].tokens)}: one for each token of the input"
        )
    source: str | None = stack
    if reading.is_cross:
        source = next((name for name in stacks if name != stack), None)
    if source is not None and len(stacks[source].tokens) != keys:
        source = None
    triangle = queries == keys and not bool(reading.weights.triu(1).any())
    return Attention(
        name=name,
        queries=stack,
        keys=source,
        heads=[_packed(head.numpy(), triangle, share * head.numel()) for head in reading.weights],
        unit_of_head=place.module.unit_of_head(),
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
