"""How well a model predicts data that it has not seen."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from headwise.ops.replicas import sum_over_replicas


def validation_loss(
    model: PreTrainedModel,
    batches: Iterable[dict[str, Tensor]],
    precision: AbstractContextManager | None = None,
) -> float:
    """Mean negative log-likelihood per label, in nats; no smoothing, no auxiliary losses.

    Args:
        model: put into evaluation.
        batches: keyword arguments of its forward, with `labels`; this process's share of them.
        precision: an autocast context for the forward pass.
    """
    model.eval()
    total = torch.zeros(2, dtype=torch.float64, device=model.device)
    with torch.no_grad(), precision or nullcontext():
        for batch in batches:
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            logits, labels = model(**batch).logits, batch["labels"]
            nll = F.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum"
            )
            total += torch.stack([nll.double(), (labels != -100).sum().double()])
    nll, count = sum_over_replicas(total).tolist()
    return nll / max(1.0, count)
