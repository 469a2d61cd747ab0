"""The masked language model as a Hugging Face model."""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from headwise.models.base import HeadwiseModel
from headwise.models.config import LanguageModelConfig
from headwise.models.outputs import OneStackOutput, of_stack, sum_losses, total_cross_entropy
from headwise.models.transformer import Encoder
from headwise.ops.labels import IGNORED_LABEL
from headwise.ops.shapes import check_labels


class MaskedLMConfig(LanguageModelConfig):
    """The configuration of an encoder that predicts hidden tokens.

    Args:
        mask_token_id: id of the special token that takes the place of a hidden token; None if it
            is not known.
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

    def __init__(
        self, vocab_size: int = 32_000, *, mask_token_id: int | None = 4, **kwargs: Any
    ) -> None:
        self.mask_token_id = mask_token_id
        super().__init__(vocab_size, **kwargs)


class MaskedLMEncoder(Encoder):
    """The encoder of a `MaskedLM`, as its configuration has it."""

    config: MaskedLMConfig
    config_class = MaskedLMConfig
    base_model_prefix = "encoder"  # of the whole model


class MaskedLM(HeadwiseModel):
    """An encoder that predicts hidden tokens, whose attention follows a plan.

    As in Devlin et al. 2019, *BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding*, https://arxiv.org/abs/1810.04805, the encoder is followed by a linear map, GELU,
    a layer norm and the shared weights of the embedding, with a bias for each token. The encoder is
    that of the Transformer; BERT's has `ffn_activation="gelu"` and `positions="learned"`.

    In training it computes logits only at the predicted tokens. This saves some 85% of the product
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
        >>> model(input_ids=read, labels=hidden).logits.shape
        torch.Size([1, 5, 50])
        >>> out = model.train()(input_ids=read, labels=hidden)
        >>> out.logits.shape, out.loss.shape
        (torch.Size([1, 50]), torch.Size([]))
    """

    config: MaskedLMConfig
    config_class = MaskedLMConfig
    base_model_prefix = "encoder"

    def __init__(self, config: MaskedLMConfig) -> None:
        super().__init__(config)
        self.encoder = MaskedLMEncoder(config, held=True)
        self.transform = nn.Linear(config.embed_dim, config.embed_dim)
        self.transform_norm = nn.LayerNorm(config.embed_dim, config.norm_eps)
        self.lm_head = nn.Linear(config.embed_dim, config.vocab_size)
        if config.share_embeddings:
            self._tied_weights_keys = {"lm_head.weight": "encoder.embedding.weight"}
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        all_logits: bool | None = None,
        **others: Any,
    ) -> OneStackOutput | tuple[Any, ...]:
        """Computes the logits and, with labels, the loss.

        Args:
            input_ids: tokens, `(batch, time)`, some of them hidden; or give `inputs_embeds`.
            attention_mask: `(batch, time)`, 1 at tokens and 0 at padding.
            labels: `(batch, time)`, the hidden tokens, -100 where the model predicts nothing.
            all_logits: whether the logits of all positions are computed with labels too, in place
                of those of the predicted tokens; by default in evaluation alone.
            num_items_in_batch, inputs_embeds, position_ids, others: see `HeadwiseModel`.

        Returns:
            An output with `logits` `(batch, time, vocabulary)`; in training with labels only those
            of the predicted tokens, `(tokens, vocabulary)`, sequence by sequence and in order.
            `token_loss` is the cross entropy per hidden token, label-smoothed in training.
        """
        asked = self._asked(others)
        encoded = self.encoder(
            input_ids, attention_mask, inputs_embeds, position_ids, return_dict=True, **asked
        )
        hidden = encoded.last_hidden_state  # (batch, time, embed_dim)
        total = None
        if labels is None:
            logits = self._logits(hidden)
        else:
            check_labels(labels, tuple(hidden.shape[:2]), self.config.vocab_size)
            chosen = labels != IGNORED_LABEL
            if not self.training if all_logits is None else all_logits:
                logits = self._logits(hidden)
                predicted = logits[chosen]  # (tokens, vocabulary)
            else:
                logits = predicted = self._logits(hidden[chosen])
            smoothing = self.config.label_smoothing if self.training else 0.0
            total = total_cross_entropy(predicted, labels[chosen], smoothing)
        losses = sum_losses(total, labels, num_items_in_batch, asked["losses"])
        return self._returned(OneStackOutput(logits=logits, **of_stack(encoded), **losses), others)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(self.transform_norm(F.gelu(self.transform(hidden))))

    def head_macs(self, lengths: Mapping[str, int]) -> int:
        weights = self.transform.weight.numel() + self.lm_head.weight.numel()
        return lengths["encoder"] * weights


AutoConfig.register(MaskedLMConfig.model_type, MaskedLMConfig)
AutoModel.register(MaskedLMConfig, MaskedLMEncoder)
AutoModelForMaskedLM.register(MaskedLMConfig, MaskedLM)
