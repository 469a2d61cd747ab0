"""Finds arguments in calls of a module's forward, however they are passed."""

import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn


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
            args[place] if 0 <= place < len(args) else kwargs.get(name)
            for name, place in self.places.items()
        ]
