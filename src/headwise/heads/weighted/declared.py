"""What the Weighted Transformer declares beside its layer: bounds, words of reports, ablations.

Table 3 of the paper replaces the learned weights by uniform and by random ones. Its section 4.5
keeps the branches of largest α alone in training too, which is the layer's option `top_k`. An
ablation is what takes the place of the learned weights.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.heads.ablations import drawn_weights, one_of, without
from headwise.heads.system import Words
from headwise.ops.bounds import check_positive
from headwise.ops.simplex import keep_largest

Form = Literal["simplex", "softmax", "random", "uniform", "fixed"]
FeedForwards = Literal["shared", "split", "full"]
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"inner": "none", "ffn": "shared", "start": "random"}
}


def check_sizes(
    embed_dim: int, num_branches: int, ffn_dim: int, ffn: FeedForwards, head_dim: int | None
) -> None:
    """Raises `ValueError` for sizes that do not fit together."""
    check_positive(num_branches=num_branches, ffn_dim=ffn_dim)
    if head_dim is None and embed_dim % num_branches:
        raise ValueError(
            f"embed_dim is {embed_dim}, which num_branches = {num_branches} does not divide; "
            f"choose sizes that divide, or give head_dim"
        )
    if ffn == "split" and ffn_dim % num_branches:
        raise ValueError(
            f"ffn_dim is {ffn_dim}, which num_branches = {num_branches} does not divide; choose "
            f"sizes that divide, or ffn='shared'"
        )


def check_weights(weights: Form, top_k: int | None, num_branches: int) -> None:
    """Raises `ValueError` for a gate over branches that there cannot be."""
    if top_k is None:
        return
    if not 1 <= top_k <= num_branches:
        raise ValueError(f"top_k is {top_k}, expected 1 to num_branches = {num_branches}")
    if weights not in ("simplex", "softmax"):
        raise ValueError(
            f"top_k is {top_k}, but weights={weights!r} learns no α by which to choose: leave "
            f"top_k out, or choose other weights"
        )


# From κ and α to κ and α, `(num_branches,)` each.
Weigh = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def uniform(layer: Any) -> Weigh:
    """All branches count alike: κ and α are 1/M each (table 3)."""
    return lambda _, alpha: 2 * (torch.full_like(alpha, 1 / layer.num_branches),)


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Weigh:
    """κ and α are random points of the simplex, drawn anew for each layer (table 3)."""
    drawn = drawn_weights(layer.num_branches, 2, seed, index, count)
    return lambda kappa, alpha: (drawn[0].to(kappa), drawn[1].to(alpha))


def top_k(layer: Any, *, top_k: int) -> Weigh:
    """The `top_k` branches of largest α alone count, their α scaled to sum 1."""
    if not 1 <= top_k <= layer.num_branches:
        raise ValueError(f"top_k is {top_k}, expected 1 to num_branches = {layer.num_branches}")
    return lambda kappa, alpha: (kappa, keep_largest(alpha, top_k))


def without_branch(layer: Any, *, branch: int) -> Weigh:
    """One branch has α = 0; the α of the others is scaled to sum 1, and every κ stays."""
    removed = one_of("branch", branch, "num_branches", layer.num_branches)
    if layer.num_branches == 1:
        raise ValueError("num_branches is 1: without its only branch a layer computes nothing")
    return lambda kappa, alpha: (kappa, without(alpha, removed))


def only_branch(layer: Any, *, branch: int) -> Weigh:
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
WORDS = Words(
    unit="branch",
    units="branches",
    decision="branches",
    measure="weight",
    entropy="says how even the weights α are: on the dashed line all branches count alike, near 0 "
    "a single one is left.",
    share="is α, a branch's weight in the sum, the same for all positions.",
    recorded={"kappa": "κ", "alpha": "α"},
    recorded_meaning="κ, by which a branch scales what it feeds into the feed-forward, and α",
)
