"""Gated attention evaluated with other gates than its own.

Most functions return `Gates`, which change the gates `(batch, queries, heads, head_dim or 1)`.
Heads left out altogether are those of all attentions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.heads.ablations import HEADS, drawn_weights, largest


class Gates(NamedTuple):
    """What takes the place of the gates."""

    change: Callable[[Tensor], Tensor]


def opened(layer: Any) -> Gates:
    """All gates are 1: standard attention with the same projections."""
    return Gates(torch.ones_like)


def uniform(layer: Any) -> Gates:
    """All gates of a position are their mean, so that its heads count alike."""
    return Gates(lambda gates: gates.mean((-2, -1), keepdim=True).expand_as(gates))


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Gates:
    """The heads share the sum of a position's gates at random, the same everywhere in a layer."""
    (drawn,) = drawn_weights(layer.num_heads, 1, seed, index, count)

    def shared(gates: Tensor) -> Tensor:
        total = gates.mean(-1, keepdim=True).sum(-2, keepdim=True)  # (batch, queries, 1, 1)
        return (drawn.to(gates).unsqueeze(-1) * total).expand_as(gates)

    return Gates(shared)


def without_top_head(layer: Any) -> Gates:
    """At each position the head of largest gate adds nothing; the others stay as they are."""
    return Gates(lambda gates: gates * (1 - largest(gates.mean(-1)).unsqueeze(-1)))


ABLATIONS: dict[str, Callable[..., Any]] = {
    "open": opened,
    "uniform": uniform,
    "random": random,
    "without-top-head": without_top_head,
    **HEADS,
}
