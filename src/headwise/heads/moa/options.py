"""The options of MoA: presets, what fits together, and its sizes at a place of a model."""

import re
from collections.abc import Mapping
from typing import Any

from headwise.heads.system import Place
from headwise.ops.bounds import check_among, check_positive

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "authors": {
        "normalize_weights": False,
        "auxiliary": "per batch",
        "noisy": True,
        "noise_floor": 0.01,
        "key_gain": 0.5**0.5,
    },
}


def check_options(
    num_experts: int, top_k: int, noisy: bool, noise_floor: float, balance: str, auxiliary: str
) -> None:
    """Raises `ValueError` for options of `MixtureOfAttentionHeads` that do not fit together."""
    check_positive(num_experts=num_experts)
    if not 1 <= top_k <= num_experts:
        raise ValueError(
            f"top_k is {top_k}, expected 1 to num_experts = {num_experts}: a token cannot select "
            f"more experts than there are"
        )
    check_among("balance", balance, ("batch", "sequence"))
    check_among("auxiliary", auxiliary, ("per token", "per batch"))
    if noise_floor:
        check_positive(noise_floor=noise_floor)
    if noise_floor and not noisy:
        raise ValueError(
            f"noise_floor is {noise_floor}, but there is no noise: set noisy=True, or leave it out"
        )


def sizes_at(place: Place, size: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of the constructor at a place of a model; those that are given win.

    Heads are twice as wide as the standard ones, as in the paper's MoA base: with one key head for
    all of them, narrow ones lose much (docs/readings.md).
    """
    sizes: dict[str, Any] = {
        "dropout": place.attention_dropout,
        "top_k": place.num_heads,
        "head_dim": max(1, 2 * place.embed_dim // place.num_heads),
        **({} if size is None else moa_size(size)),
        **options,
    }
    sizes.setdefault("num_experts", 2 * sizes["top_k"])
    return sizes


def moa_size(size: str) -> dict[str, Any]:
    """The paper's shorthand for a size as constructor arguments.

    >>> moa_size("8K32E64D")
    {'top_k': 8, 'num_experts': 32, 'head_dim': 64}
    """
    match = re.fullmatch(r"(\d+)K(\d+)E(\d+)D", str(size))
    if match is None:
        raise ValueError(
            f"size is {size!r}, expected the form 8K32E64D (top 8 of 32 experts of 64 dimensions)"
        )
    return dict(zip(("top_k", "num_experts", "head_dim"), map(int, match.groups()), strict=True))
