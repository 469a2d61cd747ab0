"""The loss of each item of a batch, of any model that gives logits and a mean loss."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.ops.labels import IGNORED_LABEL


def item_losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Returns the total loss of each item's labels, and how many it has, `(items,)` each.

    Of labels that are classes the loss is the cross entropy, of real numbers the squared error.
    Whether a model predicts the label at a position from the tokens before it, or from all tokens,
    no argument says: what agrees with the mean loss that the model gives is taken.

    Args:
        model: gives `logits` and `loss` of a batch with `labels`.
        batch: arguments of the model, tensors with an item in each row; labels of -100 do not
            count.

    Raises:
        ValueError: the batch has no labels, or the loss of the model is another one.
    """
    if not isinstance(batch, Mapping) or not isinstance(batch.get("labels"), Tensor):
        raise ValueError(
            f"a batch of data is a {type(batch).__name__} without a tensor of labels, expected a "
            f"mapping of tensors with labels, or an argument loss"
        )
    device = next(model.parameters()).device
    batch = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}
    output, labels = model(**batch), batch["labels"]
    found = [_totals(output.logits, labels)]
    if labels.dim() == output.logits.dim() - 1 == 2:  # tokens: the model may shift their labels
        found.append(_totals(output.logits[:, :-1], labels[:, 1:]))
    own = getattr(output, "token_loss", None)  # of headwise's models: without what systems add
    own = float((output.loss if own is None else own).detach())
    near = 1e-3 if output.logits.dtype.itemsize > 2 else 2e-2
    # Where the model knows nothing yet, both are near it.
    for totals, counts in sorted(found, key=lambda each: abs(_mean(*each) - own)):
        has_no_label = not counts.any() and (math.isnan(own) or own == 0)
        if has_no_label or math.isclose(_mean(totals, counts), own, rel_tol=near):
            return totals, counts
    means = " or ".join(f"{_mean(*each):.4g}" for each in found)
    raise ValueError(
        f"the loss of the model is {own:.4g}, but the mean loss of its labels {means}, expected "
        f"both finite and alike, or an argument loss"
    )


def _totals(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    real = (labels != IGNORED_LABEL).unsqueeze(-1).flatten(1)  # also of one label for each item
    if labels.is_floating_point():
        each = (logits.reshape(labels.shape) - labels).square()
    else:
        flat = logits.reshape(-1, logits.size(-1)), labels.flatten()
        each = F.cross_entropy(*flat, ignore_index=IGNORED_LABEL, reduction="none")
    return (each.reshape(real.shape) * real).sum(1), real.sum(1)


def _mean(totals: Tensor, counts: Tensor) -> float:
    return float(totals.detach().sum() / counts.sum())
