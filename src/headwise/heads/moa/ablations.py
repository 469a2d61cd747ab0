"""MoA evaluated with a smaller choice of experts.

Each function returns what changes the router's decision: a function from the logits
`(batch, queries, experts)` and the number of experts per token to logits and number.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Choice = tuple[Tensor, int]


def without_expert(layer: Any, *, expert: int) -> Callable[[Tensor, int], Choice]:
    """No token may choose one of the experts; it chooses the next best in its place."""
    if not 0 <= expert < layer.num_experts:
        raise ValueError(
            f"expert is {expert}, expected 0 to {layer.num_experts - 1}: num_experts is "
            f"{layer.num_experts}"
        )
    if layer.num_experts == 1:
        raise ValueError("num_experts is 1: without its only expert a layer has nothing to choose")

    def choose(logits: Tensor, top_k: int) -> Choice:
        barred = torch.arange(logits.size(-1), device=logits.device) == expert
        return logits.masked_fill(barred, float("-inf")), min(top_k, layer.num_experts - 1)

    return choose


def fewer_experts(layer: Any, *, top_k: int) -> Callable[[Tensor, int], Choice]:
    """Every token chooses fewer experts than in training."""
    if not 1 <= top_k <= layer.top_k:
        raise ValueError(f"top_k is {top_k}, expected 1 to {layer.top_k}, as many as in training")
    return lambda logits, _: (logits, top_k)


ABLATIONS: dict[str, Callable[..., Any]] = {
    "without-expert": without_expert,
    "fewer-experts": fewer_experts,
}
