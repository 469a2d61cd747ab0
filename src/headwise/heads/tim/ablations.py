"""TIM evaluated with another competition than the learned one.

Each function returns what takes the place of the competition c, `(batch, time, mechanisms)`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def uniform(layer: Any) -> Callable[[Tensor], Tensor]:
    """All mechanisms count alike at every position: c is 1/n_s."""
    _check(layer)
    return lambda competition: torch.full_like(competition, 1 / layer.num_mechanisms)


def winner(layer: Any) -> Callable[[Tensor], Tensor]:
    """The mechanism that wins a position has it for itself: c is 1 for it and 0 for the others."""
    _check(layer)

    def alone(competition: Tensor) -> Tensor:
        best = competition.argmax(-1, keepdim=True)
        return torch.zeros_like(competition).scatter(-1, best, 1.0)

    return alone


def _check(layer: Any) -> None:
    if layer.competition_weight is None:
        raise ValueError(
            "the layer was built with competition=False: it has no competition to change"
        )


ABLATIONS: dict[str, Callable[..., Any]] = {"uniform": uniform, "winner": winner}
