"""Differential attention evaluated with other shares than its own.

The functions return `Shares`, which change the shares `(batch, queries, heads)`. Heads left out
altogether are those of all attentions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.heads.ablations import HEADS, drawn_weights


class Shares(NamedTuple):
    """What takes the place of σ(λ(x))."""

    change: Callable[[Tensor], Tensor]


def without_subtraction(layer: Any) -> Shares:
    """Nothing is subtracted: standard attention with the first query of each head."""
    return Shares(torch.zeros_like)


def uniform(layer: Any) -> Shares:
    """All heads of a position subtract their mean share."""
    return Shares(lambda shares: shares.mean(-1, keepdim=True).expand_as(shares))


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Shares:
    """The heads divide the sum of a position's shares at random, the same way in a layer."""
    (drawn,) = drawn_weights(layer.num_heads, 1, seed, index, count)
    return Shares(lambda shares: drawn.to(shares) * shares.sum(-1, keepdim=True))


ABLATIONS: dict[str, Callable[..., Any]] = {
    "without-subtraction": without_subtraction,
    "uniform": uniform,
    "random": random,
    **HEADS,
}
