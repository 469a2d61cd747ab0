"""The masked language model as a Hugging Face model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM

from headwise.models.base import (
    HeadwiseModel,
    HeadwiseOutput,
    sum_losses,
    total_cross_entropy,
)
from headwise.models.config import LanguageModelConfig
from headwise.models.embedding import token_embedding
from headwise.models.transformer import AuxiliaryLoss, Encoder
from headwise.ops.labels import IGNORED_LABEL


class MaskedLMConfig(LanguageModelConfig):
    """The configuration of an encoder that predicts hidden tokens.

    Args:
        mask_token_id: id of the special token that takes the place of a hidden token.
        vocab_size, share_embeddings, label_smoothing, max_length, pad_token_id, bos_token_id,
            eos_token_id: see `LanguageModelConfig`.
        layers, embed_dim, num_heads, ffn_dim, attention, norm, dropout, attention_dropout,
            ffn_dropout, ffn_activation, positions, max_positions: see `TransformerConfig`; the
            site is `encoder_self`.

    Raises:
        ValueError: the sizes and the plan do not fit together.
    """

    model_type = "headwise-masked-lm"
    site = "encoder_self"

    def __init__(self, vocab_size: int = 32_000, *, mask_token_id: int = 4, **kwargs: Any) -> None:
        self.mask_token_id = mask_token_id
        super().__init__(vocab_size, **kwargs)


@dataclass
class MaskedLMOutput(HeadwiseOutput):
    """The output of `MaskedLM`.

    Attributes:
        loss: the training loss: cross entropy per hidden token, label-smoothed in training, plus
            `auxiliary_loss`; only if labels were given.
        logits: `(batch, time, vocabulary)`; with labels only those of the predicted tokens,
            `(tokens, vocabulary)`, sequence by sequence and in order.
        token_loss: the cross-entropy part of `loss`.
        auxiliary_loss: the sum of the losses that systems of the plan add, or None.
    """


class MaskedLM(HeadwiseModel):
    """An encoder that predicts hidden tokens, whose attention follows a plan.

    As in Devlin et al. 2019, *BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding*, https://arxiv.org/abs/1810.04805, the encoder is followed by a linear map, GELU,
    a layer norm and the shared weights of the embedding, with a bias for each token. The encoder is
    that of the Transformer; BERT's has `ffn_activation="gelu"` and `positions="learned"`.

    With labels, it computes logits only at the predicted tokens. This saves some 85% of the product
    with the vocabulary, which is the largest of all. `AutoModelForMaskedLM` can load it if headwise
    is imported.

    Example:
        >>> import torch
        >>> config = MaskedLMConfig(vocab_size=50, embed_dim=16, num_heads=4, ffn_dim=32, layers=1,
        ...                         attention="standard")
        >>> model = MaskedLM(config).eval()
        >>> read = torch.tensor([[1, 9, 4, 7, 2]])
        >>> model(input_ids=read).logits.shape
        torch.Size([1, 5, 50])
        >>> hidden = torch.tensor([[-100, -100, 8, -100, -100]])
        >>> out = model(input_ids=read, labels=hidden)
        >>> out.logits.shape, out.loss.shape
        (torch.Size([1, 50]), torch.Size([]))
    """

    config: MaskedLMConfig
    config_class = MaskedLMConfig

    def __init__(self, config: MaskedLMConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config, token_embedding(config, config.vocab_size))
        self.transform = nn.Linear(config.embed_dim, config.embed_dim)
        self.transform_norm = nn.LayerNorm(config.embed_dim)
        self.lm_head = nn.Linear(config.embed_dim, config.vocab_size)
        if config.share_embeddings:
            self._tied_weights_keys = {"lm_head.weight": "encoder.embedding.weight"}
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
        **unused: Any,
    ) -> MaskedLMOutput | tuple[Any, ...]:
        """Computes the logits and, with labels, the loss.

        Args:
            input_ids: tokens, `(batch, time)`, some of them hidden.
            attention_mask: `(batch, time)`, 1 at tokens and 0 at padding, as in transformers; the
                attention modules take masks as PyTorch does.
            labels: `(batch, time)`, the hidden tokens, -100 where the model predicts nothing.
            num_items_in_batch: the number by which the sum of token losses is divided; by default
                the number of labels that are not -100.
        """
        self._refuse(unused)
        losses = AuxiliaryLoss()
        padding = None if attention_mask is None else attention_mask == 0
        hidden = self.encoder.encode(input_ids, padding, losses)  # (batch, time, embed_dim)
        total = predicted = None
        if labels is not None:
            chosen = labels != IGNORED_LABEL
            hidden, predicted = hidden[chosen], labels[chosen]  # (tokens, embed_dim), (tokens,)
        logits = self.lm_head(self.transform_norm(F.gelu(self.transform(hidden))))
        if predicted is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            total = total_cross_entropy(logits, predicted, smoothing)
        output = MaskedLMOutput(
            logits=logits, **sum_losses(total, labels, num_items_in_batch, losses)
        )
        return output if return_dict is not False else output.to_tuple()

    def head_macs(self, lengths: Mapping[str, int]) -> int:
        weights = self.transform.weight.numel() + self.lm_head.weight.numel()
        return lengths["encoder"] * weights


AutoConfig.register(MaskedLMConfig.model_type, MaskedLMConfig)
AutoModelForMaskedLM.register(MaskedLMConfig, MaskedLM)
