"""What MoA declares beside its layer: presets and sizes, words of reports, ablations.

What the ablations' `Choosing.weigh` takes are the weights of the chosen experts, `(batch, queries,
top_k)`.
"""

import re
from collections.abc import Callable, Mapping
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
from headwise.heads.system import Place, Words
from headwise.ops.bounds import check_positive

_BARRED = float("-inf")
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "authors": {
        "normalize_weights": False,
        "auxiliary": "per batch",
        "key_gain": 0.5**0.5,
    },
    "jetmoe": {"detach_normalizer": False, "expert_bias": "output"},
}


def check_options(num_experts: int, top_k: int, noisy: bool, noise_floor: float) -> None:
    """Raises `ValueError` for options that do not fit together."""
    check_positive(num_experts=num_experts)
    if not 1 <= top_k <= num_experts:
        raise ValueError(
            f"top_k is {top_k}, expected 1 to num_experts = {num_experts}: a token cannot select "
            f"more experts than there are"
        )
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
    own = ("head_dim", "bias")  # by the equations there are no biases
    settled = {name: value for name, value in place.projections().items() if name not in own}
    each = options.get("num_key_value_heads", settled.get("num_key_value_heads")) or 1
    sizes: dict[str, Any] = {
        **settled,
        "dropout": place.attention_dropout,
        "top_k": max(1, place.num_heads // each),
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


def uniform(layer: Any) -> Choosing:
    """The experts that a token has chosen count alike: each has the mean of their weights."""
    return Choosing(weigh=lambda weights: weights.mean(-1, keepdim=True).expand_as(weights))


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Choosing:
    """All tokens have the same random experts and weights, drawn anew for each layer."""
    generator = system_generator(seed, index, count)
    with torch.device("cpu"):
        experts = torch.randperm(layer.num_experts, generator=generator)[: layer.top_k]
    (weights,) = drawn_weights(layer.top_k, 1, seed, index, count)
    drawn = weights.new_full((layer.num_experts,), _BARRED)
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
WORDS = Words(
    unit="expert",
    units="experts",
    decision="choices",
    measure="choice",
    entropy="says how evenly a position weighs the experts it has chosen: on the dashed line all "
    "count alike, near 0 a single one decides.",
    share="says how many of the choices fall on each expert of a layer: an even row means that "
    "all are in use, a blank cell is an expert that nobody chooses.",
)
