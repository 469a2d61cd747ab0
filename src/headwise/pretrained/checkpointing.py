"""Gradient checkpointing of a pretrained model's layers, exact for systems that change as they run.

A checkpointed layer of transformers is computed again in the backward pass. Its systems then see
their state, such as running statistics, as it was in the first computation, and do not change it a
second time.
"""

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from headwise.ops.recompute import Repeatable


class ExactCheckpointing:
    """Has a layer be checkpointed by `Repeatable`, whenever its checkpointing is switched on.

    Args:
        layer: the layer.
        caller: the module that calls it. Hooks of the layer itself run inside the checkpoint up to
            transformers 5.20, which is too late to exchange the function.
    """

    def __init__(self, layer: GradientCheckpointingLayer, caller: nn.Module) -> None:
        self.layer = layer
        self.handle = caller.register_forward_pre_hook(self.prepare)

    def prepare(self, caller: nn.Module, args: object) -> None:
        """Before the caller, and so before the call of the function that checkpoints the layer."""
        layer: Any = self.layer
        if layer.gradient_checkpointing and layer.training:
            # Where transformers keeps the function; it has no public way to exchange it.
            function = layer._gradient_checkpointing_func
            if not isinstance(function, _Repeating):
                layer._gradient_checkpointing_func = _Repeating(function)

    def remove(self) -> None:
        self.handle.remove()


class _Repeating:
    """A function that checkpoints, whose function knows when it computes again."""

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
    around = [model.get_submodule(".".join(names[:end])) for end in range(len(names), -1, -1)]
    for at, layer in enumerate(around):
        if isinstance(layer, GradientCheckpointingLayer):
            callers = (m for m in around[at + 1 :] if not isinstance(m, nn.ModuleList))
            return ExactCheckpointing(layer, next(callers))
    return None


def checkpoint_as_before(model: nn.Module) -> None:
    """Gives all layers of a model the functions back by which they are checkpointed."""
    layer: Any
    for layer in model.modules():
        function = getattr(layer, "_gradient_checkpointing_func", None)
        if isinstance(function, _Repeating):
            layer._gradient_checkpointing_func = function.function
