"""Evaluating a model: its mode meanwhile, hooks that are called, and the loss of a batch."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model is in evaluation mode meanwhile; afterwards each module is as it was before."""
    # Each module by itself: parts of a model in training may be in evaluation.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def summed_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Returns the loss of a batch, summed over its labels, without auxiliary losses.

    Logits that the loss does not need are not computed, where the model can do without.
    """
    given = inspect.signature(model.forward).parameters
    only_loss = {"all_logits": False} if "all_logits" in given else {}
    # With num_items_in_batch=1, the loss is the sum over the labels, not their mean.
    return model(**batch, **only_loss, num_items_in_batch=1).token_loss


def run_as_written() -> AbstractContextManager[Any]:
    """While this context is open, compiled models run uncompiled, so that their hooks are called.

    Compiled code passes over hooks.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and its import takes long
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
