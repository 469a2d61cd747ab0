"""MAE evaluated with other mixtures than its gates'.

Table 5 of the paper uses one expert alone in each layer: the one of the largest gate, or a random
one. Each function returns an object whose `gates` and `scales` change the gates
`(batch, time, experts)`, and the scales of the heads `(batch, time, heads)` that follow from them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def _as_they_are(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Mixture:
    """What takes the place of the gates, and of the scales of the heads."""

    gates: Callable[[Tensor], Tensor] = _as_they_are
    scales: Callable[[Tensor], Tensor] = _as_they_are


def mixture(layer: Any) -> None:
    """All experts are mixed by their gates, as in training: no ablation."""


def top_expert(layer: Any) -> Mixture:
    """The expert of the largest gate alone, for each sequence or position (table 5)."""

    def gates(gates: Tensor) -> Tensor:
        return torch.zeros_like(gates).scatter(-1, gates.argmax(-1, keepdim=True), 1.0)

    return Mixture(gates)


def random_expert(layer: Any, *, seed: int = 0, index: int = 0, count: int = 1) -> Mixture:
    """A random expert alone, another one in each layer (table 5)."""
    generator = torch.Generator("cpu").manual_seed(seed * count + index)
    with torch.device("cpu"):
        drawn = int(torch.randint(layer.num_experts, (), generator=generator))

    def gates(gates: Tensor) -> Tensor:
        chosen = torch.zeros_like(gates)
        chosen[..., drawn] = 1.0
        return chosen

    return Mixture(gates)


def without_expert(layer: Any, *, expert: int) -> Mixture:
    """Every gate leaves out one expert; the others keep their proportions and sum to 1."""
    _check("expert", expert, "num_experts", layer.num_experts)

    def gates(gates: Tensor) -> Tensor:
        left = gates.clone()
        left[..., expert] = 0.0
        total = left.sum(-1, keepdim=True)
        # A gate that held nothing but this expert has nothing left: then the others count alike.
        even = torch.full_like(left, 1 / (left.size(-1) - 1))
        even[..., expert] = 0.0
        return torch.where(total > 0, left / total.clamp(min=torch.finfo(total.dtype).tiny), even)

    return Mixture(gates)


def without_head(layer: Any, *, head: int) -> Mixture:
    """One head adds nothing to the output; the scales of the others stay."""
    _check("head", head, "num_heads", layer.num_heads)

    def scales(scales: Tensor) -> Tensor:
        left = scales.clone()
        left[..., head] = 0.0
        return left

    return Mixture(scales=scales)


def uniform(layer: Any) -> Mixture:
    """All gates are equal, so that every head counts fully: standard attention."""
    return Mixture(lambda gates: torch.full_like(gates, 1 / layer.num_experts))


def _check(name: str, value: int, size_name: str, size: int) -> None:
    if not 0 <= value < size:
        raise ValueError(f"{name} is {value}, expected 0 to {size - 1}: {size_name} is {size}")


ABLATIONS: dict[str, Callable[..., Any]] = {
    "mixture": mixture,
    "top-expert": top_expert,
    "random-expert": random_expert,
    "without-expert": without_expert,
    "without-head": without_head,
    "uniform": uniform,
}
