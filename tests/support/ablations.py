"""Ablations of a system at a path, or of all of a kind."""

from contextlib import AbstractContextManager
from typing import Any

from torch import nn

import headwise as hw


def ablated(
    model: nn.Module,
    system: str,
    name: str,
    number: int | None = None,
    *,
    path: str | None = "",
    seed: int | None = None,
) -> AbstractContextManager[None]:
    """`headwise.ablated` of the system at a path, or of all of its kind where the path is None.

    Args:
        model: the system itself, or a model.
        system: its name.
        name: `uniform`, `random`, `largest`, `without-largest`, `top-k`, `without-UNIT` or
            `only-UNIT`.
        number: of the unit, or of how many are kept.
        seed: of random weights.
    """
    options: dict[str, Any] = {} if seed is None else {"seed": seed}
    if number is not None:
        options["top_k" if name == "top-k" else name.partition("-")[2]] = number
    if path is None:
        return hw.ablated(model, {system: {"name": name, **options}})
    return hw.ablated(model, path, name, **options)
