"""What MoH declares beside its layer: sizes where none are given, words of reports, ablations.

What the ablations' `Choosing.weigh` takes are the gates, `(batch, queries, heads)`, and 1 where a
head is selected or shared, 0 elsewhere. Heads left out altogether are those of all attentions:
nobody selects others in their place.
"""

from collections.abc import Callable, Mapping
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
from headwise.heads.system import Words


def check_options(
    num_heads: int, shared_heads: int, top_k: int, router: str, router_start: str, scaled: bool
) -> None:
    """Raises `ValueError` for options of `MixtureOfHeads` that do not fit together."""
    if not 0 <= shared_heads < max(1, num_heads):
        raise ValueError(
            f"shared_heads is {shared_heads}, expected 0 to {num_heads - 1}: of num_heads = "
            f"{num_heads} at least one is left to select"
        )
    if not 1 <= top_k <= max(1, num_heads - shared_heads):
        raise ValueError(
            f"top_k is {top_k}, expected 1 to {num_heads - shared_heads}: so many of num_heads = "
            f"{num_heads} are not shared"
        )
    if router == "learned":
        return
    of_learned = {"scaled_gates": (scaled, True), "router_start": (router_start, "random")}
    for name, (given, default) in of_learned.items():
        if given != default:
            raise ValueError(
                f"{name} is {given!r}, expected it to be left out: router is 'query-norm', whose "
                f"gates are 0 or 1 and which has no parameters"
            )


def default_sizes(num_heads: int, options: Mapping[str, Any]) -> dict[str, int]:
    """How many heads are shared and selected, where the options do not say it.

    Three quarters of the heads count at a time, as in the paper's language model from a pretrained
    one: half of them are shared, half of the others selected.
    """
    shared = options.get("shared_heads", num_heads // 2)
    return {"shared_heads": shared, "top_k": max(1, (num_heads - shared) // 2)}


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
    shares = weights.new_zeros(layer.num_heads)
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
WORDS = Words(
    unit="head",
    units="heads",
    decision="choices",
    measure="choice",
    entropy="says how evenly a position weighs the heads in force, those that are shared and "
    "those that it has selected. Gates are no distribution, so each is divided by their sum "
    "first: on the dashed line all count alike, near 0 a single one decides.",
    share="says how many of the choices fall on each head of a layer. Shared heads, which are "
    "the first, have the largest share there can be, since every position has them; even "
    "shares of the others mean that all are in use, a blank cell is a head that nobody "
    "selects.",
)
