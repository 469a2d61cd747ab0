"""What the ablations of several systems share: units left out, units alone, random weights.

The names of ablations follow a convention, by which tools find them: `without-UNIT` removes one
unit, which its option UNIT numbers; `only-UNIT` leaves that unit alone in force.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.ops.simplex import random_simplex


@dataclass(frozen=True)
class Heads:
    """What takes the place of the outputs of heads: kept is `(heads,)`, 0 for a head left out."""

    kept: Tensor

    def __call__(self, heads: Tensor) -> Tensor:
        """`(batch, heads, time, head_dim)` to the same."""
        return heads * self.kept.to(heads).view(-1, 1, 1)


@dataclass(frozen=True)
class Changed:
    """What takes the place of the weights that a system has decided: a function of them."""

    weights: Callable[[Tensor], Tensor]


def without_head(layer: Any, *, head: int) -> Heads:
    """One head adds nothing to the output; the others stay as they are."""
    return Heads(1 - one_of("head", head, "num_heads", layer.num_heads))


def only_head(layer: Any, *, head: int) -> Heads:
    """One head alone counts; the others add nothing to the output."""
    return Heads(one_of("head", head, "num_heads", layer.num_heads))


HEADS: dict[str, Callable[..., Any]] = {"without-head": without_head, "only-head": only_head}


@dataclass(frozen=True)
class Choosing:
    """What takes the place of a router's choice, and of the weights of what it has chosen.

    `choose` gets the logits, `(batch, queries, units)`, and how many units each position chooses,
    and returns both; `weigh` gets the weights, and what else the system says there.
    """

    choose: Callable[[Tensor, int], tuple[Tensor, int]] = lambda logits, top_k: (logits, top_k)
    weigh: Callable[..., Tensor] = lambda weights, *_: weights


def choosing_fewer(layer: Any, top_k: int) -> Choosing:
    """Each position chooses fewer units than in training."""
    if not 1 <= top_k <= layer.top_k:
        raise ValueError(f"top_k is {top_k}, expected 1 to {layer.top_k}, as many as in training")
    return Choosing(lambda logits, _: (logits, top_k))


def one_of(option: str, unit: int, size_name: str, size: int) -> Tensor:
    """Returns `(size,)`, 1 at the unit and 0 elsewhere; the names are for the error.

    >>> one_of("head", 1, "num_heads", 3)
    tensor([0., 1., 0.])
    """
    if not 0 <= unit < size:
        raise ValueError(f"{option} is {unit}, expected 0 to {size - 1}: {size_name} is {size}")
    # On the CPU wherever the caller's device is: a module moves it where its inputs are.
    chosen = torch.zeros(size, device="cpu")
    chosen[unit] = 1.0
    return chosen


def without(weights: Tensor, removed: Tensor) -> Tensor:
    """Leaves the units where `removed` is 1 out of a distribution; the others keep proportions.

    Where the others have no weight at all, they count alike.

    >>> removed = torch.tensor([0.0, 0.0, 1.0])
    >>> without(torch.tensor([[0.1, 0.3, 0.6], [0.0, 0.0, 1.0]]), removed)
    tensor([[0.2500, 0.7500, 0.0000],
            [0.5000, 0.5000, 0.0000]])
    """
    kept = 1 - removed.to(weights)
    left = weights * kept
    total = left.sum(-1, keepdim=True)
    even = kept / kept.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total.clamp(min=torch.finfo(total.dtype).tiny), even)


def largest(weights: Tensor) -> Tensor:
    """Returns 1 at the largest weight of each row, the first of equal ones, and 0 elsewhere.

    >>> largest(torch.tensor([[0.1, 0.3, 0.6], [0.4, 0.4, 0.2]]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    return torch.zeros_like(weights).scatter(-1, weights.argmax(-1, keepdim=True), 1.0)


def drawn_weights(units: int, draws: int, seed: int, index: int, count: int) -> list[Tensor]:
    """Random points of the simplex, others for each of a model's `count` systems of a kind.

    They are drawn once, so that all steps of a decoding use the same.
    """
    generator = system_generator(seed, index, count)
    with torch.device("cpu"):
        return [random_simplex(units, generator=generator) for _ in range(draws)]


def system_generator(seed: int, index: int, count: int) -> torch.Generator:
    """Returns the random numbers of one of a model's systems; see `drawn_weights`."""
    return torch.Generator("cpu").manual_seed(seed * count + index)
