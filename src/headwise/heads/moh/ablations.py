"""MoH evaluated with another selection of heads, or with other gates of those selected.

What `Choosing.weigh` takes are the gates, `(batch, queries, heads)`, and 1 where a head is selected
or shared, 0 elsewhere. Heads left out altogether are those of all attentions: nobody selects others
in their place.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.heads.ablations import (
    HEADS,
    Choosing,
    choosing_fewer,
    drawn_weights,
    largest,
    system_generator,
)


def uniform(layer: Any) -> Choosing:
    """The heads that are shared or selected count alike: each has the mean of their gates."""

    def alike(gates: Tensor, in_force: Tensor) -> Tensor:
        return in_force * gates.sum(-1, keepdim=True) / in_force.sum(-1, keepdim=True)

    return Choosing(weigh=alike)


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Choosing:
    """All tokens select the same random heads, which share the sum of the gates at random."""
    generator = system_generator(seed, index, count)
    with torch.device("cpu"):
        routed = torch.randperm(layer.routed_heads, generator=generator)[: layer.top_k]
        heads = torch.cat([torch.arange(layer.shared_heads), layer.shared_heads + routed])
    (weights,) = drawn_weights(len(heads), 1, seed, index, count)
    logits = torch.full((layer.routed_heads,), float("-inf"), device="cpu")
    logits[routed] = 0.0
    shares = torch.zeros(layer.num_heads, device="cpu")
    shares[heads] = weights
    return Choosing(
        lambda learned, top_k: (logits.to(learned).expand_as(learned), top_k),
        lambda gates, in_force: shares.to(gates) * gates.sum(-1, keepdim=True),
    )


def fewer_heads(layer: Any, *, top_k: int) -> Choosing:
    """Every token selects fewer of the routed heads than in training."""
    return choosing_fewer(layer, top_k)


def without_top_head(layer: Any) -> Choosing:
    """At each position the head of largest gate adds nothing; the others stay as they are."""
    return Choosing(weigh=lambda gates, in_force: gates * (1 - largest(gates)))


ABLATIONS: dict[str, Callable[..., Any]] = {
    "uniform": uniform,
    "random": random,
    "fewer-heads": fewer_heads,
    "without-top-head": without_top_head,
    **HEADS,
}
