"""What models return, and the losses in it: that of the task, and those that systems add."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.utils import ModelOutput

from headwise.heads.auxiliary_loss import mark_as_added
from headwise.heads.system import AttentionOutput
from headwise.ops.labels import IGNORED_LABEL


@dataclass
class HeadwiseOutput(ModelOutput):
    """The output of every model; some add fields.

    Attributes:
        loss: the training loss, `token_loss` plus `auxiliary_loss`; None without labels. If
            `num_items_in_batch` is given, which counts the labels of further batches too, the
            latter is multiplied by this batch's share of them.
        logits: the predictions of the model.
        token_loss: the loss of the task: the sum over all labels that are not -100, divided by
            `num_items_in_batch`, or by their number.
        auxiliary_loss: the sum of the losses that systems of the plan add, or None.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    token_loss: Tensor | None = None
    auxiliary_loss: Tensor | None = None


@dataclass
class OneStackOutput(HeadwiseOutput):
    """The output of a model with one stack of layers.

    Attributes:
        loss, logits, token_loss, auxiliary_loss: see `HeadwiseOutput`.
        hidden_states: if asked for, what the first layer reads and what each layer returns, each
            `(batch, time, embed_dim)`; the last is behind the final norm.
        attentions: if asked for, the attention weights of each layer, see
            `headwise.models.decisions.attentions_noted`.
    """

    hidden_states: tuple[Tensor | None, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


def of_stack(states: Any) -> dict[str, Any]:
    """What a `OneStackOutput` has of its stack."""
    return {"hidden_states": states.hidden_states, "attentions": states.attentions}


class AuxiliaryLoss:
    """Sums the auxiliary losses that the attentions return in one forward pass."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.added: list[Tensor] = []

    def collect(self, out: AttentionOutput) -> Tensor:
        """Note the loss of one attention; passes its output on."""
        if out.routing is not None and out.routing.loss is not None:
            loss = out.routing.loss
            # Layers may be on several devices.
            self.total = loss if self.total is None else self.total + loss.to(self.total.device)
            self.added.append(loss)
        return out.output

    @property
    def without_labels(self) -> Tensor | None:
        """The sum for an output without labels; None if gradients are disabled.

        All that such an output holds has a row for each item, which transformers' pipelines expect.
        """
        return self.total if torch.is_grad_enabled() else None


def sum_losses(
    total: Tensor | None,
    labels: Tensor | None,
    num_items: Tensor | int | None,
    auxiliary: AuxiliaryLoss,
) -> dict[str, Any]:
    """The losses of a `HeadwiseOutput`; without labels at most the auxiliary loss.

    `total` is the loss of the task, summed over all labels that are not -100, and `num_items` what
    it is divided by: their number, if it is not given.
    """
    if total is None or labels is None:
        return {"loss": None, "token_loss": None, "auxiliary_loss": auxiliary.without_labels}
    count = (labels != IGNORED_LABEL).sum()
    token_loss = total / (count.clamp(min=1) if num_items is None else num_items)
    loss = token_loss
    if auxiliary.total is not None:
        share = share_of_step(labels, num_items, shifted=False)
        loss = token_loss + share * auxiliary.total.to(token_loss.device)
        mark_as_added(auxiliary.added)
    return {"loss": loss, "token_loss": token_loss, "auxiliary_loss": auxiliary.total}


def share_of_step(
    labels: Tensor, num_items: Tensor | int | None, *, shifted: bool
) -> Tensor | float:
    """The part of a step's labels that a batch has: what its auxiliary loss counts in it.

    The losses of a step are summed over accumulated batches and processes. So the weight of the
    auxiliary one stays what it is. If labels are `shifted`, the first is not predicted.
    """
    if num_items is None:
        return 1.0
    predicted = labels[..., 1:] if shifted else labels
    return (predicted != IGNORED_LABEL).sum() / num_items


def total_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """The cross entropy summed over all labels that are not -100, at least in float32."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def total_squared_error(predicted: Tensor, labels: Tensor) -> Tensor:
    """The squared error summed over all labels that are not -100, at least in float32."""
    dtype = torch.promote_types(predicted.dtype, torch.float32)
    errors = predicted.to(dtype) - labels.to(dtype)
    return errors.masked_fill(labels == IGNORED_LABEL, 0.0).square().sum()
