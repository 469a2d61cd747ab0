"""Encoders and decoders whose attention follows a plan: models without a head.

Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762.
"""

# PyTorch 2.8 cannot compile functions within functions whose annotations are unions.
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import logging

from headwise.models.base import WithoutHead
from headwise.models.cache import DecodingCache, OwnCacheMixin
from headwise.models.config import TransformerConfig
from headwise.models.decisions import attentions_noted
from headwise.models.embedding import (
    embed,
    position_embedding,
    token_embedding,
    token_positions,
)
from headwise.models.layers import Layer, LayerInputs
from headwise.models.outputs import AuxiliaryLoss
from headwise.ops.masks import of_queries
from headwise.ops.norms import norm_of
from headwise.ops.packing import PackedTexts, packed_by_positions
from headwise.ops.rotary import Rotary
from headwise.ops.shapes import can_be_looked_at, check_sequences, check_token_mask, check_tokens
from headwise.transformers_internals import CACHE, given_cache

logger = logging.get_logger(__name__)

HiddenStates = bool | int | Sequence[int]  # transformers' `output_hidden_states`


@dataclass
class StackOutput(BaseModelOutputWithPastAndCrossAttentions):
    """What transformers returns of one stack, and the sum of the losses that systems add."""

    auxiliary_loss: Tensor | None = None


class Stack(WithoutHead):
    """Embeddings, positions, layers, and the norm behind them.

    Args:
        config: the configuration of the whole model.
        vocab_size: how many tokens there are; by default as many as the configuration says. With 0
            the layers read what `run` is given, and there are no embeddings.
        held: see `WithoutHead`.
    """

    stack_name: ClassVar[str]  # `encoder` or `decoder`

    def __init__(
        self, config: TransformerConfig, vocab_size: int | None = None, *, held: bool = False
    ) -> None:
        super().__init__(config, held=held)
        words = getattr(config, "vocab_size", 0) if vocab_size is None else vocab_size
        if words:
            self.embedding = token_embedding(config, words)
        specs = config.systems()
        own = specs[f"{self.stack_name}_self"]
        cross = specs.get(f"{self.stack_name}_cross", [None] * len(own))
        self.layers = nn.ModuleList(
            Layer(config, *of_layer, is_causal=self.stack_name == "decoder")
            for of_layer in zip(own, cross, strict=True)
        )
        # With pre-norm nothing has normalised the last residual sum yet.
        norm = (config.norm_kind, config.embed_dim, config.norm_eps)
        self.final_norm = norm_of(*norm) if config.norm == "pre" else nn.Identity()
        if words:
            self.positions = position_embedding(config)
        self.embedding_norm = norm_of(*norm) if words and config.embedding_norm else None
        self.post_init()

    def words(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, prefix: str = ""
    ) -> Tensor:
        """Embeddings of tokens, not scaled; the prefix is that of the arguments, for errors."""
        ids, embeds = f"{prefix}input_ids", f"{prefix}inputs_embeds"
        if (input_ids is None) == (inputs_embeds is None):
            given = "both are None" if input_ids is None else "both are given"
            raise ValueError(
                f"{ids} and {embeds}: {given}, expected exactly one of them: tokens (batch, time), "
                f"or what get_input_embeddings() gives for them"
            )
        if inputs_embeds is not None:
            check_sequences(embeds, inputs_embeds, self.config.embed_dim)
            return inputs_embeds
        # The weight may be shared with an embedding that was resized. Adapters and quantised
        # embeddings do not say how many there are.
        assert input_ids is not None
        size = getattr(self.embedding, "num_words", None)
        if type(self.embedding) is nn.Embedding:
            size = len(self.embedding.weight)
        check_tokens(ids, input_ids, size)
        words: Tensor = self.embedding(input_ids)
        return words

    def placed(self, words: Tensor, positions: Tensor) -> Tensor:
        """Embeddings with their positions, where these are no turns, scaled and normed."""
        config = self.config
        scale = config.embed_dim**0.5 if config.scale_embeddings else 1.0
        x = embed(words, positions, config.positions, scale, self.positions)
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def rotary(self, positions: Tensor) -> Rotary | None:
        """The turns of positions, if they are rotary."""
        parameters = self.config.rope_parameters
        return None if parameters is None else Rotary(positions, parameters)

    def through_layers(
        self,
        x: Tensor,
        arguments: Sequence[tuple[Any, ...]],
        losses: AuxiliaryLoss,
        cache: DecodingCache | None = None,
        output_attentions: bool = False,
        output_hidden_states: HiddenStates = False,
    ) -> StackOutput:
        """Dropout, all layers and the norm behind them.

        Args:
            x: the input, positions included, `(batch, time, embed_dim)`.
            arguments: what each layer is called with, beside the output of the one before.
            losses: what the layers collect the losses in that systems add.
            cache: the cache to return.
            output_attentions, output_hidden_states: see `HeadwiseModel`.
        """
        asked = output_hidden_states
        states: list[Tensor] | None = None if asked is False else []  # 0 asks for the first
        with (
            attentions_noted(self, len(self.layers))
            if output_attentions
            else nullcontext() as noted
        ):
            x = F.dropout(x, self.config.dropout, self.training)
            for layer, given in zip(self.layers, arguments, strict=True):
                if states is not None:
                    states.append(x)
                x = layer(x, *given)
            x = self.final_norm(x)
        return StackOutput(
            last_hidden_state=x,
            **{CACHE: cache},
            hidden_states=None if states is None else selected_states([*states, x], asked),
            attentions=None if noted is None else tuple(noted.of_self),
            cross_attentions=None if noted is None else tuple(noted.of_cross) or None,
            auxiliary_loss=losses.without_labels,
        )


class Encoder(Stack):
    """The encoder of a model with the site `encoder_self`."""

    stack_name = "encoder"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> StackOutput | tuple[Any, ...]:
        """Tokens, or their embeddings, to hidden states; see `MaskedLM.forward`."""
        asked = self._asked(others)
        words = self.words(input_ids, inputs_embeds)
        check_token_mask("attention_mask", attention_mask, *words.shape[:2])
        padding = None if attention_mask is None else attention_mask == 0
        positions = token_positions(words, padding, 0, self.positions, position_ids)
        inputs = LayerInputs(asked["losses"], padding, rotary=self.rotary(positions))
        x = self.placed(words, positions)
        arguments = [(inputs,)] * len(self.layers)
        return self._returned(self.through_layers(x, arguments, **asked), others)


class Decoder(Stack, OwnCacheMixin):
    """The decoder of a model with the site `decoder_self`.

    It attends over an encoder's output where there is the site `decoder_cross` too.
    """

    stack_name = "decoder"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: DecodingCache | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        **others: Any,
    ) -> StackOutput | tuple[Any, ...]:
        """Tokens, or their embeddings, to hidden states; see `CausalLM.forward`."""
        cache = self.cache_of_call(given_cache(cache, others), use_cache)
        asked = self._asked(others)
        of_target = "" if encoder_hidden_states is None else "decoder_"
        words = self.words(input_ids, inputs_embeds, of_target)
        batch, time = words.shape[:2]
        cache = self.usable_cache(cache)
        offset = 0 if cache is None else cache.get_seq_length()
        known = int(offset) if isinstance(offset, Tensor) and can_be_looked_at(offset) else offset
        whole = cache is not None and cache.takes_whole(attention_mask)
        seen = None if whole or isinstance(known, Tensor) else known + time
        check_token_mask(f"{of_target}attention_mask", attention_mask, batch, seen)
        if encoder_hidden_states is not None:
            sources = encoder_hidden_states.shape[:2]
            check_token_mask("attention_mask", encoder_attention_mask, *sources)
        padding = None if attention_mask is None else attention_mask == 0
        if cache is not None and padding is not None:
            padding = cache.of_all_positions(padding, time)
        positions = token_positions(words, padding, offset, self.positions, position_ids)
        x = self.placed(words, positions)
        texts = None
        if position_ids is not None and attention_mask is None and time > 1:
            texts = packed_by_positions(position_ids.expand(batch, -1))
        if texts is not None:
            shows = asked["output_attentions"]
            _check_packed(of_target, cache, encoder_hidden_states, shows)
            x, padding = texts.apart(x), texts.padding
            positions = texts.apart(positions.expand(batch, -1))
        encoder_padding = None if encoder_attention_mask is None else encoder_attention_mask == 0
        turns = self.rotary(positions)
        decoded = self.run(x, padding, asked, cache, encoder_hidden_states, encoder_padding, turns)
        if texts is not None:
            _put_together(decoded, texts)
        return self._returned(decoded, others)

    def run(
        self,
        x: Tensor,
        padding: Tensor | None,
        asked: Mapping[str, Any],
        cache: DecodingCache | None = None,
        encoded: Tensor | None = None,
        encoder_padding: Tensor | None = None,
        rotary: Rotary | None = None,
    ) -> StackOutput:
        """Runs the layers over `x`, the input `(batch, time, embed_dim)`, positions included.

        `padding` is that of cached positions and this call's, `(batch, cached + time)`; this call
        adds to the cache. `encoded` is what the encoder gave, `(batch, source time, embed_dim)`;
        `asked` is as in `Stack.through_layers`, `rotary` the turns of the positions of `x`.
        """
        query_padding = None
        if padding is not None:
            offset = 0 if cache is None else cache.get_seq_length()
            query_padding = of_queries(padding, offset, x.size(1))
        of_encoder = (encoded, encoder_padding)
        inputs = LayerInputs(asked["losses"], padding, query_padding, *of_encoder, rotary)
        none: list[None] = [None] * len(self.layers)
        of_self = none if cache is None else cache.self_attention
        of_cross = none if cache is None else cache.cross_attention or none
        arguments = [(inputs, *caches) for caches in zip(of_self, of_cross, strict=True)]
        return self.through_layers(x, arguments, cache=cache, **asked)

    def usable_cache(self, cache: DecodingCache | None) -> DecodingCache | None:
        """The cache, or None, with a warning, where layers will be computed a second time."""
        if cache is not None and len(cache.self_attention) != len(self.layers):
            raise ValueError(
                f"{CACHE} is for {len(cache.self_attention)} layers, expected "
                f"{len(self.layers)}, those of this decoder: each model needs its own new_cache()"
            )
        repeats = self.training and torch.is_grad_enabled()
        if not repeats or not any(layer.gradient_checkpointing for layer in self.layers):
            return cache
        if cache is None:
            return None
        if any(layer.get_seq_length() for layer in cache.layers):
            raise ValueError(
                f"{CACHE} holds positions already, expected none with gradient "
                "checkpointing, which computes layers twice: call "
                "model.gradient_checkpointing_disable(), or give the whole sequence"
            )
        logger.warning_once(
            "use_cache=True does not go with gradient checkpointing, which computes layers twice; "
            "no cache is kept"
        )
        return None


def selected_states(states: Sequence[Tensor], asked: HiddenStates) -> tuple[Tensor | None, ...]:
    """Returns hidden states as transformers does: all, or None in the place of those not asked for.

    Indices of states that there are not select nothing.

    >>> selected_states([torch.zeros(1), torch.ones(1)], -1)
    (None, tensor([1.]))
    >>> selected_states([torch.zeros(1), torch.ones(1)], [0, 2, -3])
    (tensor([0.]), None)
    """
    if isinstance(asked, bool):
        return tuple(states)
    count = len(states)
    asked = [asked] if isinstance(asked, int) else asked
    wanted = {index % count for index in asked if -count <= index < count}
    return tuple(state if index in wanted else None for index, state in enumerate(states))


def _check_packed(
    prefix: str,
    cache: DecodingCache | None,
    encoded: Tensor | None,
    output_attentions: bool,
) -> None:
    """Raises `ValueError` for what packed texts do not go with."""
    for name, given, reason in (
        (f"{CACHE} (or use_cache=True)", cache is not None, "a cache has one text a row"),
        ("a source", encoded is not None, "it is not known which source is whose"),
        ("output_attentions=True", output_attentions, "each has weights of its own"),
    ):
        if given:
            raise ValueError(
                f"{prefix}position_ids do not go on by one within a row, which says that several "
                f"texts are packed there, since no {prefix}attention_mask is given; {name} is "
                f"given, expected none with packed texts: {reason}. Give each text a row of its "
                f"own, or {prefix}attention_mask if each row is one text"
            )


def _put_together(decoded: StackOutput, texts: PackedTexts) -> None:
    """Puts the hidden states of packed texts back into the rows that the texts came from."""
    decoded["last_hidden_state"] = texts.together(decoded.last_hidden_state)
    if decoded.hidden_states is not None:
        decoded["hidden_states"] = tuple(
            None if state is None else texts.together(state) for state in decoded.hidden_states
        )
