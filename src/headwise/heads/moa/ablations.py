"""MoA evaluated with another choice of experts, or with other weights of those chosen.

What `Choosing.weigh` takes are the weights of the chosen experts, `(batch, queries, top_k)`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.heads.ablations import (
    Choosing,
    choosing_fewer,
    drawn_weights,
    largest,
    one_of,
    system_generator,
)

_BARRED = float("-inf")


def uniform(layer: Any) -> Choosing:
    """The experts that a token has chosen count alike: each has the mean of their weights."""
    return Choosing(weigh=lambda weights: weights.mean(-1, keepdim=True).expand_as(weights))


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Choosing:
    """All tokens have the same random experts with random weights, others in each layer."""
    generator = system_generator(seed, index, count)
    with torch.device("cpu"):
        experts = torch.randperm(layer.num_experts, generator=generator)[: layer.top_k]
    (weights,) = drawn_weights(layer.top_k, 1, seed, index, count)
    drawn = torch.full((layer.num_experts,), _BARRED, device="cpu")
    # The router's softmax makes these weights of their logarithms.
    drawn[experts] = weights.log()
    return Choosing(lambda logits, top_k: (drawn.to(logits).expand_as(logits), top_k))


def without_expert(layer: Any, *, expert: int) -> Choosing:
    """No token may choose one of the experts; it chooses the next best in its place."""
    removed = one_of("expert", expert, "num_experts", layer.num_experts)
    return _without(layer, lambda logits: removed.to(logits))


def without_top_expert(layer: Any) -> Choosing:
    """No token may choose its first choice; it chooses the next best in its place."""
    return _without(layer, largest)


def only_expert(layer: Any, *, expert: int) -> Choosing:
    """All tokens choose one expert, and no other."""
    kept = one_of("expert", expert, "num_experts", layer.num_experts)
    return Choosing(lambda logits, _: (_bar(logits, 1 - kept.to(logits)), 1))


def fewer_experts(layer: Any, *, top_k: int) -> Choosing:
    """Every token chooses fewer experts than in training."""
    return choosing_fewer(layer, top_k)


def _without(layer: Any, removed: Callable[[Tensor], Tensor]) -> Choosing:
    if layer.num_experts == 1:
        raise ValueError("num_experts is 1: without its only expert a layer has nothing to choose")
    most = layer.num_experts - 1
    return Choosing(lambda logits, top_k: (_bar(logits, removed(logits)), min(top_k, most)))


def _bar(logits: Tensor, barred: Tensor) -> Tensor:
    return logits.masked_fill(barred > 0, _BARRED)


ABLATIONS: dict[str, Callable[..., Any]] = {
    "uniform": uniform,
    "random": random,
    "fewer-experts": fewer_experts,
    "without-top-expert": without_top_expert,
    "without-expert": without_expert,
    "only-expert": only_expert,
}
