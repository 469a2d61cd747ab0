"""Routing by agreement evaluated with less routing.

Each function returns the number of iterations to take in place of the module's own.
"""

from collections.abc import Callable
from typing import Any


def uniform(layer: Any) -> int:
    """All heads have equal shares in every capsule: the first iteration alone, before agreement."""
    return 1


def fewer_iterations(layer: Any, *, iterations: int) -> int:
    """The routing stops after fewer iterations than in training."""
    if not 1 <= iterations <= layer.iterations:
        raise ValueError(
            f"iterations is {iterations}, expected 1 to {layer.iterations}, as many as in training"
        )
    return iterations


ABLATIONS: dict[str, Callable[..., Any]] = {
    "uniform": uniform,
    "fewer-iterations": fewer_iterations,
}
