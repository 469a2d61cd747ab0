"""The loss of a model on held-out data in small groups of sequences, to compare models by."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.models.base import HeadwiseModel
from headwise.models.evaluating import summed_loss
from headwise.ops.labels import IGNORED_LABEL
from headwise.tasks.significance import Statistic, of_totals
from headwise.training.batching import Items

_GROUPS = 50  # at least so many, if there are as many sequences
_LARGEST_GROUP = 16

# The mean over labels, from rows of a group's total loss and its number of labels.
MEAN_LOSS: Statistic = of_totals(lambda totals: totals[0] / max(1.0, totals[1]))


def group_losses(
    model: HeadwiseModel,
    items: Items,
    collate: Callable[[list[Any]], dict[str, Tensor]],
    precision: AbstractContextManager | None = None,
) -> np.ndarray:
    """Returns the total loss and the number of labels of groups of sequences.

    A group has up to 16 sequences of similar length, fewer where there would be less than 50
    groups. The labels are given to the model (teacher forcing), without label smoothing and
    auxiliary losses. `MEAN_LOSS` makes the mean over all labels of it.

    Args:
        model: the model in evaluation mode.
        items: the encoded items of one part.
        collate: joins items into a batch, see `Task.collate`.
        precision: an autocast context for the forward pass.

    Returns:
        An array of shape `(groups, 2)`. The groups are the same for all models.
    """
    lengths = [length if isinstance(length, int) else max(length) for length in items.lengths]
    order = sorted(range(len(items)), key=lengths.__getitem__)
    size = max(1, min(_LARGEST_GROUP, len(order) // _GROUPS))
    rows = []
    with torch.no_grad(), precision or nullcontext():
        for start in range(0, len(order), size):
            batch = collate([items[index] for index in order[start : start + size]])
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            loss = summed_loss(model, batch)
            count = (batch["labels"] != IGNORED_LABEL).sum()
            rows.append(torch.stack([loss.double(), count.double()]))
    return torch.stack(rows).cpu().numpy()
