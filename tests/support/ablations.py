"""The one place that names ablations: the names of a convention to those that each system has."""

from contextlib import AbstractContextManager
from typing import Any

from torch import nn

import headwise as hw

# What is the same for all systems is `uniform`, `random`, `without-UNIT` and `only-UNIT`.
_NAMES = {
    "mae": {"largest": "top-expert", "without-largest": "without-top-expert"},
    "moa": {"top-k": "fewer-experts", "without-largest": "without-top-expert"},
    "moh": {"top-k": "fewer-heads", "without-largest": "without-top-head"},
    "gated": {"without-largest": "without-top-head"},
    "agreement": {"without-largest": "without-top-head"},
    "tim": {"largest": "winner", "without-largest": "without-winner"},
}


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
    today = _NAMES.get(system, {}).get(name, name)
    if path is None:
        return hw.ablated(model, {system: {"name": today, **options}})
    return hw.ablated(model, path, today, **options)
