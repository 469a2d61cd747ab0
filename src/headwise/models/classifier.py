"""An encoder with a small network on top, which predicts a class or a number of a sequence."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from headwise.models.base import HeadwiseModel
from headwise.models.config import StackConfig
from headwise.models.outputs import (
    OneStackOutput,
    of_stack,
    sum_losses,
    total_cross_entropy,
    total_squared_error,
)
from headwise.models.transformer import Encoder
from headwise.ops.bounds import check_among
from headwise.ops.shapes import check_labels

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
}


class SequenceClassifierConfig(StackConfig):
    """The configuration of an encoder, pooled to one vector per sequence, and a perceptron.

    Args:
        vocab_size: number of tokens.
        classes: names of the classes, in the order of the outputs. Their number can be given as
            `num_labels` instead.
        problem: `classification`, or `regression` to one number.
        pooling: the vector of a sequence: the `mean` of the top layer over its tokens, or the
            `first` token's vector.
        hidden_dim: width of the perceptron's hidden layer; `embed_dim` if None.
        activation: activation of the hidden layer: `tanh`, `relu` or `sigmoid`.
        pad_token_id, bos_token_id, eos_token_id: ids of special tokens.
        layers, embed_dim, num_heads, ffn_dim, attention, norm, dropout, attention_dropout,
            ffn_dropout, ffn_activation, positions, max_positions: see `TransformerConfig`;
            `dropout` is also that of the hidden layer.

    Raises:
        ValueError: the sizes and the plan do not fit together.
    """

    model_type = "headwise-sequence-classifier"
    site = "encoder_self"

    def __init__(
        self,
        vocab_size: int = 32_000,
        classes: Sequence[str] | None = None,
        problem: str = "classification",
        pooling: str = "mean",
        hidden_dim: int | None = None,
        activation: str = "tanh",
        pad_token_id: int = 0,
        bos_token_id: int = 1,
        eos_token_id: int = 2,
        **kwargs: Any,
    ) -> None:
        check_among("problem", problem, ("classification", "regression"))
        check_among("pooling", pooling, ("mean", "first"))
        check_among("activation", activation, tuple(ACTIVATIONS))
        if hidden_dim is not None and hidden_dim < 1:
            raise ValueError(f"hidden_dim is {hidden_dim}, expected a positive number or None")
        if classes is not None:
            count = kwargs.pop("num_labels", len(classes))
            if not len(set(classes)) == len(classes) == count:
                raise ValueError(
                    f"classes are {list(classes)} and num_labels is {count}, expected the name of "
                    f"each class once, and as many: leave num_labels out"
                )
            kwargs["id2label"] = dict(enumerate(classes))
            kwargs["label2id"] = {name: index for index, name in enumerate(classes)}
        elif problem == "regression":
            kwargs.setdefault("num_labels", 1)
        self.vocab_size = vocab_size
        self.problem = problem
        self.pooling = pooling
        self.hidden_dim = hidden_dim
        self.activation = activation
        super().__init__(
            pad_token_id=pad_token_id,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            **kwargs,
        )
        if problem == "regression":
            self.problem_type = "regression"  # or a pipeline would make a probability of the number
            if self.num_labels != 1:
                raise ValueError(
                    f"num_labels is {self.num_labels}, expected 1 if problem is 'regression', "
                    f"which predicts one number; leave classes and num_labels out"
                )


class SequenceClassifierEncoder(Encoder):
    """The encoder of a `SequenceClassifier`, as its configuration has it."""

    config: SequenceClassifierConfig
    config_class = SequenceClassifierConfig
    base_model_prefix = "encoder"  # of the whole model


class SequenceClassifier(HeadwiseModel):
    """An encoder whose attention follows a plan, with a classifier on top of it.

    With the mean of the top layer and a perceptron with one hidden layer, it probes sentences as in
    Conneau et al. 2018, *What you can cram into a single $&!#* vector: Probing sentence embeddings
    for linguistic properties*, https://arxiv.org/abs/1805.01070. With the first token, it
    fine-tunes a pretrained encoder as in Devlin et al. 2018, *BERT*,
    https://arxiv.org/abs/1810.04805. `AutoModelForSequenceClassification` can load it if headwise
    is imported.

    Example:
        >>> config = SequenceClassifierConfig(vocab_size=50, embed_dim=16, num_heads=4, ffn_dim=32,
        ...                                   layers=1, attention="standard",
        ...                                   classes=["PAST", "PRES"])
        >>> model = SequenceClassifier(config).eval()
        >>> ids = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
        >>> mask, labels = (ids != 0).long(), torch.tensor([0, 1])
        >>> out = model(input_ids=ids, attention_mask=mask, labels=labels)
        >>> out.logits.shape
        torch.Size([2, 2])
        >>> bool(out.loss == out.token_loss)
        True
    """

    config: SequenceClassifierConfig
    config_class = SequenceClassifierConfig
    base_model_prefix = "encoder"

    def __init__(self, config: SequenceClassifierConfig) -> None:
        super().__init__(config)
        self.encoder = SequenceClassifierEncoder(config, held=True)
        self.hidden = nn.Linear(config.embed_dim, config.hidden_dim or config.embed_dim)
        self.classifier = nn.Linear(self.hidden.out_features, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> OneStackOutput | tuple[Any, ...]:
        """Computes the logits of each sequence and, with labels, the loss.

        Args:
            input_ids: tokens, `(batch, time)`; or give `inputs_embeds`.
            attention_mask: `(batch, time)`, 1 at tokens and 0 at padding.
            labels: `(batch,)`: integer classes, or numbers of any type for a regression, whose
                loss is the squared error; -100 where the model predicts nothing.
            num_items_in_batch, inputs_embeds, position_ids, others: see `HeadwiseModel`.

        Returns:
            An output with `logits` `(batch, classes)`, or `(batch, 1)` for a regression.
        """
        asked = self._asked(others)
        outputs = self.encoder(
            input_ids, attention_mask, inputs_embeds, position_ids, return_dict=True, **asked
        )
        encoded = outputs.last_hidden_state  # (batch, time, embed_dim)
        padding = None if attention_mask is None else attention_mask == 0
        if not encoded.size(1):  # there is no token
            pooled = encoded.sum(1)
        elif self.config.pooling == "first":
            pooled = _first(encoded, padding)
        else:
            pooled = _mean(encoded, padding)
        hidden = ACTIVATIONS[self.config.activation](self.hidden(pooled))
        hidden = F.dropout(hidden, self.config.dropout, self.training)
        logits = self.classifier(hidden)  # (batch, classes)

        total = None
        if labels is not None:
            regression = self.config.problem == "regression"
            check_labels(labels, (logits.size(0),), None if regression else logits.size(-1))
            if regression:
                total = total_squared_error(logits.squeeze(-1), labels)
            else:
                total = total_cross_entropy(logits, labels)
        losses = sum_losses(total, labels, num_items_in_batch, asked["losses"])
        return self._returned(OneStackOutput(logits=logits, **of_stack(outputs), **losses), others)

    def head_macs(self, lengths: Mapping[str, int]) -> int:
        return self.hidden.weight.numel() + self.classifier.weight.numel()


def _mean(encoded: Tensor, padding: Tensor | None) -> Tensor:
    """The mean over the tokens of each sequence, without padding."""
    if padding is None:
        return encoded.mean(1)
    tokens = (~padding).unsqueeze(-1)  # (batch, time, 1)
    # Multiplying with 0 instead would keep a NaN at padding.
    return encoded.masked_fill(~tokens, 0.0).sum(1) / tokens.sum(1).clamp(min=1)


def _first(encoded: Tensor, padding: Tensor | None) -> Tensor:
    """The first token of each sequence; padding may be on either side."""
    if padding is None:
        return encoded[:, 0]
    first = (~padding).int().argmax(1)  # (batch,)
    return encoded[torch.arange(len(encoded), device=encoded.device), first]


AutoConfig.register(SequenceClassifierConfig.model_type, SequenceClassifierConfig)
AutoModel.register(SequenceClassifierConfig, SequenceClassifierEncoder)
AutoModelForSequenceClassification.register(SequenceClassifierConfig, SequenceClassifier)
