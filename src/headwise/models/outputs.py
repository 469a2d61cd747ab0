"""What models return, and the losses in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.utils import ModelOutput

from headwise.models.layers import AuxiliaryLoss
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
    """The output of a model with one stack of layers, all of whose positions are read at once.

    Attributes:
        loss, logits, token_loss, auxiliary_loss: see `HeadwiseOutput`.
        hidden_states: if asked for, what the first layer reads and what each layer returns, each
            `(batch, time, embed_dim)`; the last is behind the final norm.
        attentions: if asked for, the attention weights of each layer, see
            `headwise.models.attentions`.
    """

    hidden_states: tuple[Tensor | None, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


def selected_states(
    states: Sequence[Tensor], asked: bool | int | Sequence[int]
) -> tuple[Tensor | None, ...]:
    """Returns hidden states as transformers does: all, or None in the place of those not asked for.

    Args:
        states: all of them.
        asked: `output_hidden_states`: True, or the index of a state, or a list of indices.

    >>> selected_states([torch.zeros(1), torch.ones(1)], -1)
    (None, tensor([1.]))
    """
    if isinstance(asked, bool):
        return tuple(states)
    count = len(states)
    wanted = {index % count for index in ([asked] if isinstance(asked, int) else asked)}
    return tuple(state if index in wanted else None for index, state in enumerate(states))


class Losses(TypedDict):
    """The losses among the fields of `HeadwiseOutput`."""

    loss: Tensor | None
    token_loss: Tensor | None
    auxiliary_loss: Tensor | None


def sum_losses(
    total: Tensor | None,
    labels: Tensor | None,
    num_items: Tensor | int | None,
    auxiliary: AuxiliaryLoss,
) -> Losses:
    """Returns the losses of a `HeadwiseOutput`; without labels at most the auxiliary loss.

    Args:
        total: the loss of the task, summed over all labels that are not -100.
        labels: the labels.
        num_items: the number by which `total` is divided; by default the number of labels that are
            not -100.
        auxiliary: the losses that systems of the plan add.
    """
    if total is None or labels is None:
        return {"loss": None, "token_loss": None, "auxiliary_loss": auxiliary.without_labels}
    count = (labels != IGNORED_LABEL).sum()
    token_loss = total / (count.clamp(min=1) if num_items is None else num_items)
    loss = token_loss
    if auxiliary.total is not None:
        # The step's losses are summed, over accumulated batches and processes: so that the weight
        # of the auxiliary one stays what it is, each batch has its share of it.
        share = 1 if num_items is None else count / num_items
        loss = token_loss + share * auxiliary.total
    return {"loss": loss, "token_loss": token_loss, "auxiliary_loss": auxiliary.total}


def total_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Returns the cross entropy summed over all labels that are not -100, at least in float32.

    Args:
        logits: `(..., classes)`.
        labels: `(...)`.
        label_smoothing: the probability that is spread over all classes.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def total_squared_error(predicted: Tensor, labels: Tensor) -> Tensor:
    """Returns the squared error summed over all labels that are not -100, at least in float32.

    >>> total_squared_error(torch.tensor([1.0, 5.0]), torch.tensor([3.0, -100.0]))
    tensor(4.)
    """
    dtype = torch.promote_types(predicted.dtype, torch.float32)
    errors = predicted.to(dtype) - labels.to(dtype)
    return errors.masked_fill(labels == IGNORED_LABEL, 0.0).square().sum()
