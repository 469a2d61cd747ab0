"""Gradient checkpointing of a pretrained model's layers, exact for systems that change as they run.

A checkpointed layer of transformers is computed again in the backward pass. Its systems then see
their state, such as running statistics, as it was in the first computation, and do not change it a
second time.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from headwise.ops.recompute import Repeatable
from headwise.transformers_internals import (
    GradientCheckpointingLayer,
    checkpointing_function,
    exchange_checkpointing_function,
)


class ExactCheckpointing:
    """Makes a layer know when it is computed again, whenever its checkpointing is switched on.

    Args:
        caller: the module that calls the layer. Hooks of the layer itself run inside the checkpoint
            up to transformers 5.20, which is too late to exchange the function.
        path: of the layer in the caller. The layer itself is not kept: whoever copies what stands
            over its heads would copy the layer too.
    """

    def __init__(self, caller: nn.Module, path: str) -> None:
        self.path = path
        self.handle = caller.register_forward_pre_hook(self.prepare)

    def prepare(self, caller: nn.Module, args: object) -> None:
        """Exchanges the function that checkpoints the layer, before the caller calls it."""
        layer: Any = self._layer(caller)
        if layer is not None and layer.gradient_checkpointing and layer.training:
            function = checkpointing_function(layer)
            if not isinstance(function, _Repeating):
                exchange_checkpointing_function(layer, _Repeating(function))

    def remove(self) -> None:
        self.handle.remove()

    def _layer(self, caller: nn.Module) -> GradientCheckpointingLayer | None:
        try:
            there = caller.get_submodule(self.path)
        except AttributeError:
            return None  # the user has taken it out of the model
        if isinstance(there, GradientCheckpointingLayer):
            return there
        # FSDP puts wrappers around layers.
        inside = (m for m in there.modules() if isinstance(m, GradientCheckpointingLayer))
        return next(inside, None)


class _Repeating:
    """A checkpointing function, to which every layer comes as `Repeatable`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.function(Repeatable(function), *args)


def exact_checkpointing(model: nn.Module, path: str) -> ExactCheckpointing | None:
    """Has the layer around a module be checkpointed exactly; None if there is no such layer.

    Args:
        model: the model.
        path: of the module in the model.
    """
    names = path.split(".")
    modules = [model.get_submodule(".".join(names[:end])) for end in range(len(names) + 1)]
    layers = [end for end, m in enumerate(modules) if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        return None
    layer = layers[-1]
    callers = (end for end in range(layer) if not isinstance(modules[end], nn.ModuleList))
    caller = max(callers, default=layer)  # a layer without a model is called by its user
    return ExactCheckpointing(modules[caller], ".".join(names[caller:layer]))


def checkpoint_as_before(model: nn.Module) -> None:
    """Gives all layers of a model the functions back by which they are checkpointed."""
    for layer in model.modules():
        function = checkpointing_function(layer)
        if isinstance(function, _Repeating):
            exchange_checkpointing_function(layer, function.function)
