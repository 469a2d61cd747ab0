"""The attention weights of a stack, as transformers' `output_attentions` asks for them.

Every layer has `(batch, heads, queries, keys)`: the weights by which each head reads, as in
evaluation, so that in training they are those before dropout. They are computed in addition to the
attention itself, whichever implementation that has.

Where each query chooses its own heads, there is a row for every head that could be chosen, and the
rows of heads that a query has not chosen are zero. In a layer that a system replaces as a whole,
they are those of the system's own self-attention and cross-attention.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headwise.heads.attention import Attention
from headwise.heads.heads_read import HeadsRead, Observer, observing


class NotedAttentions(NamedTuple):
    """The weights of one pass through a stack, layer by layer."""

    of_self: list[Tensor]
    of_cross: list[Tensor]


@contextmanager
def attentions_noted(layers: Iterable[nn.Module]) -> Iterator[NotedAttentions]:
    """While this context is open, the attentions in layers note their weights.

    Raises:
        ValueError: a layer has a system without an attention that derives from
            `headwise.Attention`, so that nothing says what its weights are.
    """
    noted = NotedAttentions([], [])
    observers: list[tuple[Attention, Observer]] = []
    for index, layer in enumerate(layers):
        found = [
            (path, module)
            for path, module in layer.named_modules()
            if isinstance(module, Attention)
        ]
        if not found:
            raise ValueError(
                f"output_attentions is True, but layer {index} holds no module that derives from "
                f"headwise.Attention, which would say what its attention weights are: leave "
                f"output_attentions out"
            )
        for path, module in found:
            is_cross = "cross_attention" in path.split(".")
            into = noted.of_cross if is_cross else noted.of_self

            def note(read: HeadsRead, into: list[Tensor] = into) -> None:
                into.append(weights_of_every_head(read))

            observers.append((module, note))
    with observing(observers):
        yield noted


def weights_of_every_head(read: HeadsRead) -> Tensor:
    """Returns `(batch, heads, queries, keys)`, zero where a query has not chosen the head."""
    weights, chosen = read.weights(), read.chosen
    if chosen is None:
        return weights
    batch, _, queries, keys = weights.shape
    every = torch.zeros(
        batch, queries, read.num_heads, keys, dtype=weights.dtype, device=weights.device
    )
    places = chosen.unsqueeze(-1).expand(-1, -1, -1, keys)  # (batch, queries, chosen, keys)
    return every.scatter(2, places, weights.transpose(1, 2)).transpose(1, 2)
