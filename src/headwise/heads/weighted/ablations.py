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

from headwise.heads.ablations import drawn_weights, one_of, without
from headwise.ops.simplex import keep_largest

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
    drawn = drawn_weights(layer.num_branches, 2, seed, index, count)
    return lambda kappa, alpha: (drawn[0].to(kappa), drawn[1].to(alpha))


def top_k(layer: Any, *, top_k: int) -> Callable[[Tensor, Tensor], Weights]:
    """The `top_k` branches of largest α alone count, their α scaled to sum 1."""
    if not 1 <= top_k <= layer.num_branches:
        raise ValueError(f"top_k is {top_k}, expected 1 to num_branches = {layer.num_branches}")
    return lambda kappa, alpha: (kappa, keep_largest(alpha, top_k))


def without_branch(layer: Any, *, branch: int) -> Callable[[Tensor, Tensor], Weights]:
    """One branch has α = 0; the α of the others is scaled to sum 1, and every κ stays."""
    removed = one_of("branch", branch, "num_branches", layer.num_branches)
    if layer.num_branches == 1:
        raise ValueError("num_branches is 1: without its only branch a layer computes nothing")
    return lambda kappa, alpha: (kappa, without(alpha, removed))


def only_branch(layer: Any, *, branch: int) -> Callable[[Tensor, Tensor], Weights]:
    """One branch has α = 1 and the others 0, and every κ stays."""
    kept = one_of("branch", branch, "num_branches", layer.num_branches)
    return lambda kappa, alpha: (kappa, kept.to(alpha))


ABLATIONS: dict[str, Callable[..., Any]] = {
    "uniform": uniform,
    "random": random,
    "top-k": top_k,
    "without-branch": without_branch,
    "only-branch": only_branch,
}
