"""What models return."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers.utils import ModelOutput


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

    >>> import torch
    >>> selected_states([torch.zeros(1), torch.ones(1)], -1)
    (None, tensor([1.]))
    """
    if isinstance(asked, bool):
        return tuple(states)
    count = len(states)
    wanted = {index % count for index in ([asked] if isinstance(asked, int) else asked)}
    return tuple(state if index in wanted else None for index, state in enumerate(states))
