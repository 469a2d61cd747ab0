"""Finds arguments in calls of a module's forward, however they are passed."""

import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn

from headwise.transformers_internals import CACHE


class Arguments:
    """Where arguments of a module's forward are.

    Args:
        module: the module.
        names: of the arguments to read; those that its forward does not have are None.
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        places = list(inspect.signature(module.forward).parameters)
        self.places = {name: places.index(name) if name in places else -1 for name in names}

    def read(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Returns the arguments of a call; None for those that are not given."""
        return [
            args[place] if 0 <= place < len(args) else _named(name, kwargs)
            for name, place in self.places.items()
        ]


def _named(name: str, kwargs: dict[str, Any]) -> Any:
    # Callers may still give a cache by its former name.
    return kwargs.get(name, kwargs.get("past_key_values") if name == CACHE else None)
