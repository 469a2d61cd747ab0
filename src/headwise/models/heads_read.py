"""What the heads of a model read while it runs: queries, keys, outputs, attention weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from headwise.heads.attention import Attention
from headwise.heads.heads_read import HeadsRead, Observer, observing
from headwise.models.evaluating import run_as_written
from headwise.models.sites import AttentionSite, heads_sites


@contextmanager
def heads_read(
    model: nn.Module, note: Callable[[AttentionSite, HeadsRead], None]
) -> Iterator[None]:
    """While this context is open, each call of each attention of a model is noted.

    Compiled models run as they are written meanwhile. Whoever keeps what is noted detaches it.

    Args:
        model: a headwise model, or any module that holds attentions of headwise or of your own:
            all that derive from `headwise.systems.Attention`.
        note: called with each call's place and what its heads read, as soon as it is computed.

    Raises:
        ValueError: the model holds no such attention.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> layer = hw.MixtureOfAttentionHeads(16, num_experts=6, top_k=2, head_dim=4)
        >>> def note(place, read):
        ...     print(place.path, tuple(read.outputs.shape), tuple(read.weights().shape))
        ...     print(tuple(read.chosen.shape), tuple(read.every_head().outputs.shape))
        >>> with heads_read(nn.ModuleDict({"first": layer}), note):
        ...     y = layer(torch.randn(3, 5, 16))
        first (3, 2, 5, 4) (3, 2, 5, 5)
        (3, 5, 2) (3, 6, 5, 4)
    """
    places = heads_sites(model)
    if not places:
        raise ValueError(
            f"model is a {type(model).__name__} without any attention of headwise, expected at "
            f"least one module that derives from headwise.systems.Attention"
        )
    observers = ((cast(Attention, place.module), partial(note, place)) for place in places)
    with observing(observers), run_as_written():
        yield


class NotedAttentions(NamedTuple):
    """The weights of one pass through a stack, layer by layer."""

    of_self: list[Tensor]
    of_cross: list[Tensor]


@contextmanager
def attentions_noted(stack: nn.Module, layers: int) -> Iterator[NotedAttentions]:
    """While this context is open, the attentions in the layers of a stack note their weights.

    That is what transformers' `output_attentions` asks for: for every layer
    `(batch, heads, queries, keys)`, the weights by which each head reads, as in evaluation, so that
    in training they are those before dropout. Where each query chooses its own heads, the rows of
    those that it has not chosen are zero. In a layer that a system replaces as a whole, they are
    those of the system's own self-attention and cross-attention.

    Raises:
        ValueError: a layer has no attention that derives from `headwise.systems.Attention`.
    """
    noted = NotedAttentions([], [])
    places = heads_sites(stack)
    for index in range(layers):
        if not any(place.layer == index for place in places):
            raise ValueError(
                f"output_attentions is True, but layer {index} holds no module that derives from "
                f"headwise.systems.Attention, which would say what its attention weights are: "
                f"leave output_attentions out"
            )

    def observer(place: AttentionSite) -> tuple[Attention, Observer]:
        into = noted.of_cross if place.site == "decoder_cross" else noted.of_self
        return cast(Attention, place.module), partial(_note_weights, into)

    with observing(map(observer, places)):
        yield noted


def _note_weights(into: list[Tensor], read: HeadsRead) -> None:
    """Adds `(batch, heads, queries, keys)`, zero where a query has not chosen the head."""
    weights, chosen = read.weights(), read.chosen
    if chosen is None:
        into.append(weights)
        return
    batch, _, queries, keys = weights.shape
    every = torch.zeros(
        batch, queries, read.num_heads, keys, dtype=weights.dtype, device=weights.device
    )
    places = chosen.unsqueeze(-1).expand(-1, -1, -1, keys)  # (batch, queries, chosen, keys)
    into.append(every.scatter(2, places, weights.transpose(1, 2)).transpose(1, 2))
