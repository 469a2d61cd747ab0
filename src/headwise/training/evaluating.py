"""The loss of a model on data, and looks at a model in the middle of its training."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from headwise.models.inspect import evaluating
from headwise.ops.labels import IGNORED_LABEL
from headwise.training.processes import alone, own_draws, summed


def summed_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Returns the loss of a batch for a model in evaluation mode, summed over its labels.

    Logits that the loss does not need are not computed, where the model can do without.
    """
    takes = inspect.signature(model.forward).parameters
    only_loss = {"all_logits": False} if "all_logits" in takes else {}
    # Over 1 it is the sum, not the mean.
    loss: Tensor = model(**batch, **only_loss, num_items_in_batch=1).loss
    return loss


def loss_and_labels(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Returns the summed loss of a batch and the number of its labels, in one tensor."""
    batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
    labels = (batch["labels"] != IGNORED_LABEL).sum()
    return torch.stack([summed_loss(model, batch).double(), labels.double()])


def validation_loss(
    model: Any,
    batches: Iterable[dict[str, Tensor]],
    precision: AbstractContextManager | None = None,
) -> float:
    """Returns the mean loss per label, without label smoothing and auxiliary losses.

    The batches are the share of this process; `precision` is an autocast context. The model is left
    in evaluation mode.
    """
    model.eval()
    total = torch.zeros(2, dtype=torch.float64, device=model.device)
    with torch.no_grad(), precision or nullcontext():
        for batch in batches:
            total += loss_and_labels(model, batch)
    loss, count = summed(total).tolist()
    return float(loss / max(1.0, count))


@contextmanager
def aside_of_training(model: nn.Module) -> Iterator[None]:
    """While this context is open, a process may run the model, and training goes on unchanged.

    The model is in evaluation mode. No gradients are recorded, random draws are not those of
    training, and nothing is shared with other processes.
    """
    with evaluating(model), torch.no_grad(), own_draws(), alone():
        yield
