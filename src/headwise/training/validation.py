"""Computes the loss of a model on held-out data, and lets others look at a model in training."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.models.evaluating import evaluating, summed_loss
from headwise.ops.labels import IGNORED_LABEL
from headwise.ops.replicas import alone, sum_over_replicas


def validation_loss(
    model: PreTrainedModel,
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
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            loss = summed_loss(model, batch)
            total += torch.stack([loss.double(), (batch["labels"] != IGNORED_LABEL).sum().double()])
    loss, count = sum_over_replicas(total).tolist()
    return loss / max(1.0, count)


@contextmanager
def aside_of_training(model: nn.Module) -> Iterator[None]:
    """While this context is open, a process may run the model, and training goes on unchanged.

    The model is in evaluation mode. No gradients are recorded, random draws are not those of
    training, and nothing is shared with other processes.
    """
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(), alone():
        yield
