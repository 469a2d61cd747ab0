"""The options of the Weighted Transformer, and checks of what it is given."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from headwise.ops.activations import check_activation
from headwise.ops.bounds import check_among, check_positive, check_probability

Form = Literal["simplex", "softmax", "random", "uniform", "fixed"]
FeedForwards = Literal["shared", "split", "full"]
Inner = Literal["none", "residual"]
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
    check_among("ffn", ffn, get_args(FeedForwards))
    if ffn == "split" and ffn_dim % num_branches:
        raise ValueError(
            f"ffn_dim is {ffn_dim}, which num_branches = {num_branches} does not divide; choose "
            f"sizes that divide, or ffn='shared'"
        )


def check_weights(weights: Form, start: str, top_k: int | None, num_branches: int) -> None:
    """Raises `ValueError` for forms of κ and α that there are not."""
    check_among("start", start, ("random", "even"))
    check_among("weights", weights, get_args(Form))
    if top_k is None:
        return
    if not 1 <= top_k <= num_branches:
        raise ValueError(f"top_k is {top_k}, expected 1 to num_branches = {num_branches}")
    if weights not in ("simplex", "softmax"):
        raise ValueError(
            f"top_k is {top_k}, but weights={weights!r} learns no α by which to choose: leave "
            f"top_k out, or choose other weights"
        )


def check_layer(
    inner: str, norm: str, output_gain: float | None, activation: str, **dropouts: float
) -> None:
    """Raises `ValueError` for other options that there are not, or are out of bounds."""
    check_among("inner", inner, ("none", "residual"))
    check_among("norm", norm, ("post", "pre"))
    if output_gain is not None:
        check_positive(output_gain=output_gain)
    check_activation(activation)
    for name, probability in dropouts.items():
        check_probability(name, probability)
