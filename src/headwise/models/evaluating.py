"""Evaluating a model: its mode meanwhile, hooks that are called, and its loss on data."""

import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from headwise.ops.draws import own_draws
from headwise.ops.labels import IGNORED_LABEL
from headwise.ops.replicas import alone, sum_over_replicas


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


def validation_loss(
    model: Any,
    batches: Iterable[dict[str, Tensor]],
    precision: AbstractContextManager | None = None,
) -> float:
    """Returns the mean loss per label, without label smoothing and auxiliary losses.

    The batches are the share of this process; `precision` is an autocast context.
    """
    model.eval()
    total = torch.zeros(2, dtype=torch.float64, device=model.device)
    with torch.no_grad(), precision or nullcontext():
        for batch in batches:
            total += loss_and_labels(model, batch)
    loss, count = sum_over_replicas(total).tolist()
    return loss / max(1.0, count)


def loss_and_labels(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Returns the summed loss of a batch and the number of its labels, in one tensor."""
    batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
    labels = (batch["labels"] != IGNORED_LABEL).sum()
    return torch.stack([summed_loss(model, batch).double(), labels.double()])


@contextmanager
def aside_of_training(model: nn.Module) -> Iterator[None]:
    """While this context is open, a process may run the model, and training goes on unchanged.

    The model is in evaluation mode. No gradients are recorded, random draws are not those of
    training, and nothing is shared with other processes.
    """
    with evaluating(model), torch.no_grad(), own_draws(), alone():
        yield


def run_as_written() -> AbstractContextManager[Any]:
    """While this context is open, compiled models run uncompiled, so that their hooks are called.

    Compiled code passes over hooks.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and its import takes long
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def forget_compiled() -> None:
    """Has compiled models compiled anew, after hooks have been put on or taken off.

    Compiled code is not checked against hooks: it would go on without those that came later.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
