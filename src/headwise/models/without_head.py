"""Models without their heads, as transformers' AutoModel gives them: tokens to hidden states.

Each holds the stacks that the whole model holds, under the same names. So `AutoModel` loads its
weights from a whole model's folder, and a whole model loads its, with a head drawn anew.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import AutoModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqModelOutput,
)

from headwise.models.base import HeadwiseModel
from headwise.models.cache import DecodingCache, OwnCacheMixin
from headwise.models.causal_lm import CausalLMConfig, decoder_embedding
from headwise.models.classifier import SequenceClassifierConfig
from headwise.models.config import StackConfig
from headwise.models.embedding import token_embedding
from headwise.models.masked_lm import MaskedLMConfig
from headwise.models.seq2seq import Seq2SeqLMConfig, of_both_stacks
from headwise.models.transformer import Decoder, Encoder
from headwise.transformers_internals import given_cache


@dataclass
class StackOutput(BaseModelOutputWithPastAndCrossAttentions):
    """What transformers returns of one stack, and the sum of the losses that systems add."""

    auxiliary_loss: Tensor | None = None


@dataclass
class TwoStacksOutput(Seq2SeqModelOutput):
    """What transformers returns of two stacks, and the sum of the losses that systems add."""

    auxiliary_loss: Tensor | None = None


class WithoutHead(HeadwiseModel):
    """The base of models without a head: `headwise.models.base.model_class` does not find them."""


class EncoderModel(WithoutHead):
    """The encoder of a `MaskedLM` or `SequenceClassifier`, as its configuration has it."""

    config: StackConfig

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config, token_embedding(config, config.vocab_size))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> StackOutput | tuple[Any, ...]:
        """Computes the hidden states; see `MaskedLM.forward` for the arguments."""
        asked = self._asked(others)
        encoded = self.encoder(input_ids, attention_mask, inputs_embeds, position_ids, **asked)
        loss = asked["losses"].without_labels
        return self._returned(StackOutput(**encoded, auxiliary_loss=loss), others)


class MaskedLMEncoder(EncoderModel):
    """`EncoderModel` of a `MaskedLMConfig`."""

    config_class = MaskedLMConfig


class SequenceClassifierEncoder(EncoderModel):
    """`EncoderModel` of a `SequenceClassifierConfig`."""

    config_class = SequenceClassifierConfig


class CausalLMDecoder(WithoutHead, OwnCacheMixin):
    """The decoder of a `CausalLM`, as its configuration has it.

    Example:
        >>> import torch
        >>> from transformers import AutoModel
        >>> config = CausalLMConfig(vocab_size=50, embed_dim=16, num_heads=4, ffn_dim=32, layers=1)
        >>> AutoModel.from_config(config)(torch.tensor([[5, 6, 7]])).last_hidden_state.shape
        torch.Size([1, 3, 16])
    """

    config: CausalLMConfig
    config_class = CausalLMConfig

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__(config)
        self.decoder = Decoder(config, decoder_embedding(config))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: DecodingCache | None = None,
        use_cache: bool | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> StackOutput | tuple[Any, ...]:
        """Computes the hidden states; see `CausalLM.forward` for the arguments."""
        cache = self.cache_of_call(given_cache(cache, others), use_cache)
        asked = self._asked(others)
        decoded = self.decoder(
            input_ids, attention_mask, cache, inputs_embeds, position_ids, **asked
        )
        loss = asked["losses"].without_labels
        return self._returned(StackOutput(**decoded, auxiliary_loss=loss), others)


class Seq2SeqModel(WithoutHead, OwnCacheMixin):
    """The encoder and the decoder of a `Seq2SeqLM`, as its configuration has them."""

    config: Seq2SeqLMConfig
    config_class = Seq2SeqLMConfig

    def __init__(self, config: Seq2SeqLMConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config, token_embedding(config, config.vocab_size))
        self.decoder = Decoder(config, token_embedding(config, config.target_vocab_size))
        if config.share_embeddings == "all":
            self._tied_weights_keys = {"decoder.embedding.weight": "encoder.embedding.weight"}
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        cache: DecodingCache | None = None,
        use_cache: bool | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        **others: Any,
    ) -> TwoStacksOutput | tuple[Any, ...]:
        """Computes the hidden states; see `Seq2SeqLM.forward` for the arguments."""
        cache = self.cache_of_call(given_cache(cache, others), use_cache)
        asked = self._asked(others)
        encoded = self.encoder(input_ids, attention_mask, inputs_embeds, position_ids, **asked)
        decoded = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            cache,
            decoder_inputs_embeds,
            decoder_position_ids,
            encoded.last_hidden_state,
            attention_mask,
            **asked,
        )
        output = TwoStacksOutput(
            last_hidden_state=decoded.last_hidden_state,
            **of_both_stacks(encoded, decoded),
            auxiliary_loss=asked["losses"].without_labels,
        )
        return self._returned(output, others)


for model in (MaskedLMEncoder, SequenceClassifierEncoder, CausalLMDecoder, Seq2SeqModel):
    AutoModel.register(model.config_class, model)
