"""The Weighted Transformer evaluated with other κ and α than the learned ones.

Table 3 of the paper replaces the learned weights by uniform and by random ones. Its section 4.5
keeps the branches of largest α alone in training too, which is the layer's option `top_k`. Each
function returns what takes the place of the learned weights, a function from κ and α to κ and α,
`(num_branches,)` each.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.heads.weighted.simplex import keep_largest, random_simplex

Weights = tuple[Tensor, Tensor]


def uniform(layer: Any) -> Callable[[Tensor, Tensor], Weights]:
    """All branches count alike: κ and α are 1/M each (table 3)."""

    def weights(kappa: Tensor, alpha: Tensor) -> Weights:
        same = torch.full_like(alpha, 1 / layer.num_branches)
        return same, same

    return weights


def random(
    layer: Any, *, seed: int = 0, index: int = 0, count: int = 1
) -> Callable[[Tensor, Tensor], Weights]:
    """κ and α are random points of the simplex, others in each layer (table 3)."""
    # Drawn once, so that all steps of a decoding use the same.
    generator = torch.Generator("cpu").manual_seed(seed * count + index)
    with torch.device("cpu"):
        drawn = [random_simplex(layer.num_branches, generator=generator) for _ in range(2)]

    def weights(kappa: Tensor, alpha: Tensor) -> Weights:
        return drawn[0].to(kappa), drawn[1].to(alpha)

    return weights


def top_k(layer: Any, *, top_k: int) -> Callable[[Tensor, Tensor], Weights]:
    """The `top_k` branches of largest α alone count, their α scaled to sum 1."""
    if not 1 <= top_k <= layer.num_branches:
        raise ValueError(f"top_k is {top_k}, expected 1 to num_branches = {layer.num_branches}")

    def weights(kappa: Tensor, alpha: Tensor) -> Weights:
        return kappa, keep_largest(alpha, top_k)

    return weights


ABLATIONS: dict[str, Callable[..., Any]] = {"uniform": uniform, "random": random, "top-k": top_k}
