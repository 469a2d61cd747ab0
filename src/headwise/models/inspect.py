"""Finding the systems of a model, and observing what the heads of its attentions compute."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from headwise.heads.attention import Attention, AttentionCall
from headwise.heads.system import System

# What `headwise.gate_heads`, and tools that wrap what it puts on, add to an attention's path.
_HEAD_GATE_PATH = re.compile(r"(^|\.)head_gates\..*")


def find_systems(model: nn.Module) -> dict[str, System]:
    """All systems of a model by their paths, in the order of the model's modules.

    Each knows its `site` and `layer`, if a model of headwise holds it. Parts of a system, such as
    the attentions of TIM, are not listed. A system over the heads of an attention of transformers
    has the path of that attention.

    >>> import headwise as hw
    >>> layers = nn.ModuleDict({"first": hw.MultiHeadAttention(8, 2), "norm": nn.LayerNorm(8)})
    >>> list(find_systems(layers))
    ['first']
    """
    systems_by_path: dict[str, System] = {}
    parts: set[nn.Module] = set()
    for path, module in model.named_modules():
        if isinstance(module, System) and module not in parts:
            systems_by_path[_HEAD_GATE_PATH.sub("", path)] = module
            parts |= set(module.modules())
    return systems_by_path


def find_attentions(model: nn.Module) -> dict[str, Attention]:
    """All attentions of a model by their paths, also those that are parts of a system."""
    return {
        _HEAD_GATE_PATH.sub("", path): module
        for path, module in model.named_modules()
        if isinstance(module, Attention)
    }


def layer_label(path: str, system: Any) -> str:
    """The name of a system in records and pages: `encoder_self.2`, or its path."""
    return f"{system.site}.{system.layer}" if system.site else path


@contextmanager
def observe(model: nn.Module, function: Callable[[str, AttentionCall], None]) -> Iterator[None]:
    """While this context is open, a function sees what the heads of each attention read.

    Compiled models run uncompiled meanwhile. Detach the tensors that you keep.

    Args:
        model: any module that holds attentions of headwise or of your own.
        function: is called with the path of an attention and an `AttentionCall`, at each call.

    Raises:
        ValueError: the model holds no such attention.

    Example:
        >>> import headwise as hw
        >>> layer = hw.MultiHeadAttention(16, num_heads=2)
        >>> def note(path, call):
        ...     print(path, tuple(call.heads.shape), tuple(call.weights().shape))
        >>> with observe(nn.ModuleDict({"first": layer}), note):
        ...     y = layer(torch.randn(3, 5, 16)).output
        first (3, 2, 5, 8) (3, 2, 5, 5)
    """
    attentions_by_path = find_attentions(model)
    if not attentions_by_path:
        raise ValueError(
            f"model is a {type(model).__name__} without any attention of headwise, expected at "
            f"least one module that derives from headwise.systems.Attention"
        )
    with ExitStack() as stack, run_as_written():
        for path, attention in attentions_by_path.items():
            stack.callback(setattr, attention, "observers", attention.observers)
            attention.observers = (*attention.observers, partial(function, path))
        yield


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """A model is in evaluation mode meanwhile; afterwards each module is as it was before."""
    # Each module by itself: parts of a model in training may be in evaluation.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def run_as_written() -> AbstractContextManager[Any]:
    """While this context is open, compiled models run uncompiled, so that their hooks are called.

    Compiled code passes over hooks.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and its import takes long
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def forget_compiled() -> None:
    """Has compiled models compiled anew, after hooks have been put on or taken off.

    Compiled code is not checked against hooks: it would run without those that came later.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
