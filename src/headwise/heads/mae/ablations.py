"""MAE evaluated with other mixtures than its gates'.

Table 5 of the paper uses one expert alone in each layer: the one of the largest gate, or a random
one. Most functions return a `Mixture`; heads left out altogether are those of all attentions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.heads.ablations import (
    HEADS,
    drawn_weights,
    largest,
    one_of,
    system_generator,
    without,
)


class Mixture(NamedTuple):
    """What takes the place of the gates, `(batch, 1 or queries, experts)`."""

    gates: Callable[[Tensor], Tensor]


def mixture(layer: Any) -> None:
    """All experts are mixed by their gates, as in training: no ablation."""


def top_expert(layer: Any) -> Mixture:
    """The expert of the largest gate alone, for each sequence or position (table 5)."""
    return Mixture(largest)


def random_expert(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Mixture:
    """A random expert alone, another one in each layer (table 5)."""
    generator = system_generator(seed, index, count)
    with torch.device("cpu"):
        drawn = int(torch.randint(layer.num_experts, (), generator=generator))
    return only_expert(layer, expert=drawn)


def only_expert(layer: Any, *, expert: int) -> Mixture:
    """One expert alone, the same for all sequences and positions."""
    chosen = one_of("expert", expert, "num_experts", layer.num_experts)
    return Mixture(lambda gates: chosen.to(gates).expand_as(gates))


def without_expert(layer: Any, *, expert: int) -> Mixture:
    """Every gate leaves out one expert; the others keep their proportions and sum to 1."""
    removed = one_of("expert", expert, "num_experts", layer.num_experts)
    return Mixture(lambda gates: without(gates, removed))


def without_top_expert(layer: Any) -> Mixture:
    """Every gate leaves out its largest expert; the others keep their proportions and sum to 1."""
    return Mixture(lambda gates: without(gates, largest(gates)))


def uniform(layer: Any) -> Mixture:
    """All gates are equal, so that every head counts fully: standard attention."""
    return Mixture(lambda gates: torch.full_like(gates, 1 / layer.num_experts))


def random(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Mixture:
    """The gates are a random point of the simplex, the same everywhere, another in each layer."""
    (drawn,) = drawn_weights(layer.num_experts, 1, seed, index, count)
    return Mixture(lambda gates: drawn.to(gates).expand_as(gates))


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
