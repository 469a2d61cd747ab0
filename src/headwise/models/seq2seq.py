"""The encoder-decoder transformer as a Hugging Face model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqModelOutput

from headwise.models.base import HeadwiseModel, WithoutHead
from headwise.models.cache import DecodingCache, DecodingGenerationMixin, OwnCacheMixin
from headwise.models.config import TransformerConfig
from headwise.models.outputs import HeadwiseOutput, sum_losses, total_cross_entropy
from headwise.models.transformer import Decoder, Encoder
from headwise.ops.bounds import check_among
from headwise.ops.labels import IGNORED_LABEL
from headwise.ops.shapes import check_labels, check_tensor
from headwise.transformers_internals import CACHE, CacheOutput, given_cache


class Seq2SeqLMConfig(TransformerConfig):
    """The configuration of an encoder-decoder transformer, by default the base Transformer.

    Args:
        vocab_size: number of source tokens, or of all tokens if the vocabulary is joint.
        target_vocab_size: number of target tokens; `vocab_size` if None.
        encoder_layers, decoder_layers: numbers of layers.
        share_embeddings: which embeddings share their weights: `all` (source, target and output,
            which needs a joint vocabulary), `target` (target and output) or `none`.
        output_bias: whether the map to the target vocabulary has a bias for each token.
        label_smoothing: probability that the training loss spreads over the vocabulary.
        max_target_length: the greatest length of generated sequences, unless generation is called
            with another.
        pad_token_id, bos_token_id, eos_token_id: ids of special tokens.
        decoder_start_token_id: id of the token with which decoding starts; `bos_token_id` if None.
        embed_dim, num_heads, ffn_dim, attention, norm, dropout, attention_dropout, ffn_dropout,
            ffn_activation, positions, max_positions: see `TransformerConfig`; learned positions
            are those of sources and of targets, each with embeddings of its own.

    Raises:
        ValueError: the sizes and the plan do not fit together.
    """

    model_type = "headwise-seq2seq-lm"
    attribute_map = TransformerConfig.attribute_map | {"num_hidden_layers": "encoder_layers"}

    def __init__(
        self,
        vocab_size: int = 32_000,
        target_vocab_size: int | None = None,
        *,
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        share_embeddings: str = "all",
        output_bias: bool = False,
        label_smoothing: float = 0.1,
        max_target_length: int = 256,
        pad_token_id: int = 0,
        bos_token_id: int = 1,
        eos_token_id: int = 2,
        decoder_start_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_among("share_embeddings", share_embeddings, ("all", "target", "none"))
        target_vocab_size = vocab_size if target_vocab_size is None else target_vocab_size
        if share_embeddings == "all" and target_vocab_size != vocab_size:
            raise ValueError(
                f"target_vocab_size is {target_vocab_size}, expected vocab_size = {vocab_size} if "
                f"share_embeddings is 'all', which needs a joint vocabulary; use 'target'"
            )
        self.vocab_size = vocab_size
        self.target_vocab_size = target_vocab_size
        self.encoder_layers = encoder_layers
        self.decoder_layers = decoder_layers
        self.share_embeddings = share_embeddings
        self.output_bias = output_bias
        self.label_smoothing = label_smoothing
        self.max_target_length = max_target_length
        start = bos_token_id if decoder_start_token_id is None else decoder_start_token_id
        kwargs |= {"is_encoder_decoder": True, "tie_word_embeddings": share_embeddings != "none"}
        super().__init__(
            pad_token_id=pad_token_id,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            decoder_start_token_id=start,
            **kwargs,
        )

    def depths(self) -> dict[str, int]:
        return {
            "encoder_self": self.encoder_layers,
            "decoder_self": self.decoder_layers,
            "decoder_cross": self.decoder_layers,
        }


@dataclass
class Seq2SeqOutput(CacheOutput, HeadwiseOutput):
    """The output of `Seq2SeqLM`: losses and logits, and what the two stacks give if asked for.

    `past_key_values` names the cache too.
    """

    decoder_hidden_states: tuple[Tensor | None, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor | None, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None


_OF_STACKS = Seq2SeqOutput.__dataclass_fields__.keys() - HeadwiseOutput.__dataclass_fields__.keys()


@dataclass
class TwoStacksOutput(Seq2SeqModelOutput):
    """What transformers returns of two stacks, and the sum of the losses that systems add."""

    auxiliary_loss: Tensor | None = None


class _ResizableMixin:
    """Both vocabularies of the configuration change where embeddings are resized."""

    config: Seq2SeqLMConfig

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """As in transformers, for a joint vocabulary; with two it is not clear which to resize."""
        if self.config.share_embeddings != "all":
            raise ValueError(
                f"share_embeddings is {self.config.share_embeddings!r}, expected 'all': only a "
                f"vocabulary that source and target share can be resized"
            )
        embeddings: nn.Module = super().resize_token_embeddings(*args, **kwargs)  # type: ignore[misc]
        self.config.target_vocab_size = self.config.vocab_size
        return embeddings


class EncoderDecoder(_ResizableMixin, WithoutHead, OwnCacheMixin):
    """The encoder and the decoder of a `Seq2SeqLM`, as its configuration has them.

    The arguments are those of `Encoder` and `Decoder`.
    """

    config: Seq2SeqLMConfig
    config_class = Seq2SeqLMConfig
    base_model_prefix = "model"  # of the whole model

    def __init__(self, config: Seq2SeqLMConfig, *, held: bool = False) -> None:
        super().__init__(config, held=held)
        self.encoder = Encoder(config, held=True)
        self.decoder = Decoder(config, config.target_vocab_size, held=True)
        if config.share_embeddings == "all":
            self._tied_weights_keys = {"decoder.embedding.weight": "encoder.embedding.weight"}
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        cache: DecodingCache | None = None,
        use_cache: bool | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        **others: Any,
    ) -> TwoStacksOutput | tuple[Any, ...]:
        """Computes the hidden states; see `Seq2SeqLM.forward` for the arguments."""
        cache = given_cache(cache, others)
        asked = self._asked(others)
        if encoder_outputs is None:
            if input_ids is None and inputs_embeds is None:
                raise ValueError(
                    "input_ids is None, expected source tokens, inputs_embeds or encoder_outputs"
                )
            encoder_outputs = self.encoder(
                input_ids, attention_mask, inputs_embeds, position_ids, return_dict=True, **asked
            )
        decoded = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            cache,
            decoder_inputs_embeds,
            decoder_position_ids,
            encoder_outputs[0],
            attention_mask,
            use_cache,
            return_dict=True,
            **asked,
        )
        output = TwoStacksOutput(
            last_hidden_state=decoded.last_hidden_state,
            **{CACHE: decoded.get(CACHE)},
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoder_outputs[0],
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
            encoder_attentions=getattr(encoder_outputs, "attentions", None),
            auxiliary_loss=asked["losses"].without_labels,
        )
        return self._returned(output, others)

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)


class Seq2SeqLM(_ResizableMixin, HeadwiseModel, DecodingGenerationMixin):
    """An encoder-decoder transformer whose attention follows a plan.

    It is the model of Vaswani et al. 2017, *Attention Is All You Need*,
    https://arxiv.org/abs/1706.03762, with `save_pretrained`, `from_pretrained` and `generate()`
    (greedy search, sampling and beam search with a cache). `AutoModelForSeq2SeqLM` can load it if
    headwise is imported.

    Example:
        >>> config = Seq2SeqLMConfig(vocab_size=50, embed_dim=16, num_heads=4, ffn_dim=32,
        ...                        encoder_layers=1, decoder_layers=1, attention="standard")
        >>> model = Seq2SeqLM(config)
        >>> source = torch.tensor([[5, 6, 7, 2]])
        >>> out = model(input_ids=source, labels=torch.tensor([[8, 9, 2]]))
        >>> out.logits.shape
        torch.Size([1, 3, 50])
        >>> translated = model.eval().generate(source, num_beams=2, max_new_tokens=5)
    """

    config: Seq2SeqLMConfig
    config_class = Seq2SeqLMConfig
    base_model_prefix = "model"

    def __init__(self, config: Seq2SeqLMConfig) -> None:
        super().__init__(config)
        self.model = EncoderDecoder(config, held=True)
        words = config.target_vocab_size
        self.lm_head = nn.Linear(config.embed_dim, words, bias=config.output_bias)
        if config.share_embeddings != "none":
            stack = "encoder" if config.share_embeddings == "all" else "decoder"
            self._tied_weights_keys = {"lm_head.weight": f"model.{stack}.embedding.weight"}
        self.post_init()
        self.generation_config = GenerationConfig(
            max_length=config.max_target_length,
            pad_token_id=config.pad_token_id,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        cache: DecodingCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        **others: Any,
    ) -> Seq2SeqOutput | tuple[Any, ...]:
        """Computes the logits and, with labels, the loss.

        Args:
            input_ids: source tokens, `(batch, source time)`; or give `inputs_embeds`.
            attention_mask: `(batch, source time)`, 1 at tokens and 0 at padding.
            decoder_input_ids: target tokens so far, `(batch, target time)`; by default `labels`,
                shifted to the right by one position, with the start token in front.
            decoder_attention_mask: `(batch, cached + target time)`, 1 at tokens.
            encoder_outputs: the output of the encoder, which is computed if it is not given.
            cache: the cache of earlier calls in a decoding, which `past_key_values` names too.
            labels: `(batch, target time)`, -100 where the model predicts nothing.
            use_cache: whether to return a cache; without a given one, a new one.
            decoder_inputs_embeds: what `get_decoder().embedding` gives for the target tokens.
            num_items_in_batch, inputs_embeds, position_ids, decoder_position_ids, others: see
                `HeadwiseModel`; what is to be returned is that of both stacks.
        """
        cache = given_cache(cache, others)
        asked = self._asked(others)
        if labels is not None:
            check_tensor("labels", labels)
            source = inputs_embeds if input_ids is None else input_ids
            source = source if encoder_outputs is None else encoder_outputs[0]
            target = decoder_inputs_embeds if decoder_input_ids is None else decoder_input_ids
            time = labels.shape[-1]
            if isinstance(target, Tensor) and target.dim() > 1:  # else the model says what is wrong
                time = target.size(1)
            # What is wrong with the source the model says.
            known = source if isinstance(source, Tensor) and source.dim() > 1 else labels
            batch = known.size(0)
            check_labels(labels, (batch, time), self.config.target_vocab_size)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if labels is None:
                raise ValueError(
                    "decoder_input_ids, decoder_inputs_embeds and labels are all None, expected "
                    "one of them"
                )
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if decoder_attention_mask is None and labels is not None:
            cached = 0 if cache is None else int(cache.get_seq_length())
            decoder_attention_mask = F.pad(_up_to_last_label(labels), (cached, 0), value=1)
        states = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            cache,
            use_cache,
            inputs_embeds,
            decoder_inputs_embeds,
            position_ids,
            decoder_position_ids,
            return_dict=True,
            **asked,
        )
        logits = self.lm_head(states.last_hidden_state)
        total = None
        if labels is not None:
            smoothing = self.config.label_smoothing if self.training else 0.0
            total = total_cross_entropy(logits, labels, smoothing)
        losses = sum_losses(total, labels, num_items_in_batch, asked["losses"])
        of_stacks = {name: states.get(name) for name in _OF_STACKS}
        return self._returned(Seq2SeqOutput(logits=logits, **of_stacks, **losses), others)

    def head_macs(self, lengths: Mapping[str, int]) -> int:
        return lengths["decoder"] * self.lm_head.weight.numel()

    def example_inputs(self, lengths: Mapping[str, int]) -> dict[str, Tensor]:
        return {
            "input_ids": torch.ones(1, lengths["encoder"], dtype=torch.long),
            "decoder_input_ids": torch.ones(1, lengths["decoder"], dtype=torch.long),
        }

    @property
    def encoder(self) -> Encoder:
        """The encoder of the model that this one holds."""
        return self.model.encoder

    @property
    def decoder(self) -> Decoder:
        """The decoder of the model that this one holds."""
        return self.model.decoder

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Returns the decoder's input: the labels, shifted to the right by one position."""
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)


def shift_right(labels: Tensor, start: int, padding: int) -> Tensor:
    """Returns labels `(batch, time)` as decoder input: a start token and all labels but the last.

    Labels of -100 become padding.

    >>> shift_right(torch.tensor([[7, 8, 2, -100]]), start=1, padding=0)
    tensor([[1, 7, 8, 2]])
    """
    shifted = torch.full_like(labels, start)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == IGNORED_LABEL, padding)


def _up_to_last_label(labels: Tensor) -> Tensor:
    """`True` at the positions of each row up to its last label, also at a -100 before that."""
    return (labels != IGNORED_LABEL).flip(1).cumsum(1).flip(1) != 0


AutoConfig.register(Seq2SeqLMConfig.model_type, Seq2SeqLMConfig)
AutoModel.register(Seq2SeqLMConfig, EncoderDecoder)
AutoModelForSeq2SeqLM.register(Seq2SeqLMConfig, Seq2SeqLM)
