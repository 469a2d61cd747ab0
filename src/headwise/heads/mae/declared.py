"""What MAE declares beside its layer: bounds of its options, words of reports, ablations.

Table 5 of the paper uses one expert alone in each layer: the one of the largest gate, or a random
one. Heads left out altogether are those of all attentions.
"""

from collections.abc import Callable
from math import comb
from typing import Any, Literal

import torch

from headwise.heads.ablations import (
    HEADS,
    Changed,
    drawn_weights,
    largest,
    one_of,
    system_generator,
    without,
)
from headwise.heads.system import Words
from headwise.messages import shown_number
from headwise.ops.bounds import MOST_EXPERTS

GateInit = Literal["zero", "default", "xavier"]


def count_experts(num_heads: int, dropped_heads: int) -> int:
    """Returns how many experts there are; raises `ValueError` if it is none, or too many."""
    if not 1 <= dropped_heads < num_heads:
        raise ValueError(
            f"dropped_heads is {dropped_heads}, expected 1 to {num_heads - 1}: an expert keeps at "
            f"least one of num_heads = {num_heads} heads"
        )
    experts = comb(num_heads, dropped_heads)
    if experts > MOST_EXPERTS:
        raise ValueError(
            f"dropped_heads = {dropped_heads} of num_heads = {num_heads} make "
            f"{shown_number(experts)} experts, expected at most {MOST_EXPERTS:,}: leave out fewer "
            f"heads, such as 1 or 2"
        )
    return experts


def mixture(layer: Any) -> None:
    """All experts are mixed by their gates, as in training: no ablation."""


def top_expert(layer: Any) -> Changed:
    """The expert of the largest gate alone, for each sequence or position (table 5)."""
    return Changed(largest)


def random_expert(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Changed:
    """A random expert alone, another one in each layer (table 5)."""
    generator = system_generator(seed, index, count)
    with torch.device("cpu"):
        drawn = int(torch.randint(layer.num_experts, (), generator=generator))
    return only_expert(layer, expert=drawn)


def only_expert(layer: Any, *, expert: int) -> Changed:
    """One expert alone, the same for all sequences and positions."""
    chosen = one_of("expert", expert, "num_experts", layer.num_experts)
    return Changed(lambda gates: chosen.to(gates).expand_as(gates))


def without_expert(layer: Any, *, expert: int) -> Changed:
    """Every gate leaves out one expert; the others keep their proportions and sum to 1."""
    removed = one_of("expert", expert, "num_experts", layer.num_experts)
    return Changed(lambda gates: without(gates, removed))


def without_top_expert(layer: Any) -> Changed:
    """Every gate leaves out its largest expert; the others keep their proportions and sum to 1."""
    return Changed(lambda gates: without(gates, largest(gates)))


def uniform(layer: Any) -> Changed:
    """All gates are equal, so that every head counts fully: standard attention.

    What `scaled_heads` scales by stays as it is.
    """
    return Changed(lambda gates: torch.full_like(gates, 1 / layer.num_experts))


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Changed:
    """The gates are a random point of the simplex, the same everywhere, another in each layer."""
    (drawn,) = drawn_weights(layer.num_experts, 1, seed, index, count)
    return Changed(lambda gates: drawn.to(gates).expand_as(gates))


ABLATIONS: dict[str, Callable[..., Any]] = {
    "mixture": mixture,
    "uniform": uniform,
    "random": random,
    "top-expert": top_expert,
    "random-expert": random_expert,
    "without-top-expert": without_top_expert,
    "without-expert": without_expert,
    "without-head": HEADS["without-head"],
    "only-expert": only_expert,
    "only-head": HEADS["only-head"],
}
WORDS = Words(
    unit="expert",
    units="experts",
    decision="gates",
    measure="lead",
    entropy="says how undecided the gate is: on the dashed line it gives all experts equal weight, "
    "near 0 it relies on a single one.",
    share="says how often each expert has the largest weight in its layer: an even row means that "
    "all are in use.",
)
