"""How well a model predicts data that it has not seen."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.ops.labels import IGNORED_LABEL
from headwise.ops.replicas import sum_over_replicas


def validation_loss(
    model: PreTrainedModel,
    batches: Iterable[dict[str, Tensor]],
    precision: AbstractContextManager | None = None,
) -> float:
    """Mean loss per label, such as nats per token; no smoothing, no auxiliary losses.

    Args:
        model: put into evaluation, where its `token_loss` is without smoothing.
        batches: keyword arguments of its forward, with `labels`; this process's share of them.
        precision: an autocast context for the forward pass.
    """
    model.eval()
    total = torch.zeros(2, dtype=torch.float64, device=model.device)
    with torch.no_grad(), precision or nullcontext():
        for batch in batches:
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            # Divided by 1, the mean over the batch's labels is their sum.
            loss = model(**batch, num_items_in_batch=1).token_loss
            total += torch.stack([loss.double(), (batch["labels"] != IGNORED_LABEL).sum().double()])
    loss, count = sum_over_replicas(total).tolist()
    return loss / max(1.0, count)
