"""Encoder and decoder stacks whose attention follows a plan: a model without its head.

Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762.
"""

# PyTorch 2.8 cannot compile functions within functions whose annotations are unions.
from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import logging

from headwise.models.cache import DecodingCache
from headwise.models.config import TransformerConfig
from headwise.models.embedding import embed, position_embedding
from headwise.models.heads_read import attentions_noted
from headwise.models.layers import Layer, LayerInputs, WholeLayer
from headwise.models.outputs import AuxiliaryLoss
from headwise.models.plan import Spec, system_class
from headwise.ops.masks import of_queries
from headwise.ops.packing import PackedTexts, packed_by_positions
from headwise.ops.shapes import check_sequences, check_token_mask, check_tokens
from headwise.transformers_internals import CACHE, StackHooks

logger = logging.get_logger(__name__)

HiddenStates = bool | int | Sequence[int]  # transformers' `output_hidden_states`


class Stack(StackHooks):
    """Layers over whatever stands for the input, and the norm behind them.

    A subclass may have an `embedding`, which makes the layers' input.
    """

    def __init__(
        self, config: TransformerConfig, layers: Iterable[nn.Module], embedding: nn.Module | None
    ) -> None:
        super().__init__()
        if embedding is not None:
            self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        # With pre-norm nothing has normalised the last residual sum yet.
        self.final_norm = nn.LayerNorm(config.embed_dim) if config.norm == "pre" else nn.Identity()
        self.dropout = config.dropout
        if embedding is not None:
            self.width = config.embed_dim
            self.positions = position_embedding(config)

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
            check_sequences(embeds, inputs_embeds, self.width)
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

    def through_layers(
        self,
        x: Tensor,
        arguments: Sequence[tuple[Any, ...]],
        cache: DecodingCache | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: HiddenStates | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Dropout, all layers and the norm behind them.

        Args:
            x: the input, positions included, `(batch, time, embed_dim)`.
            arguments: what each layer is called with, beside the output of the one before.
            cache: the cache to return.
            output_attentions, output_hidden_states: see `HeadwiseModel`.
        """
        asked = False if output_hidden_states is None else output_hidden_states
        states: list[Tensor] | None = None if asked is False else []  # 0 asks for the first
        with attentions_noted(self.layers) if output_attentions else nullcontext() as noted:
            x = F.dropout(x, self.dropout, self.training)
            for layer, given in zip(self.layers, arguments, strict=True):
                if states is not None:
                    states.append(x)
                x = layer(x, *given)
            x = self.final_norm(x)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=x,
            **{CACHE: cache},
            hidden_states=None if states is None else selected_states([*states, x], asked),
            attentions=None if noted is None else tuple(noted.of_self),
            cross_attentions=None if noted is None else tuple(noted.of_cross) or None,
        )


class EncoderStack(Stack):
    """Encoder layers over whatever stands for the input; the model has the site `encoder_self`."""

    def __init__(self, config: TransformerConfig, embedding: nn.Module | None = None) -> None:
        layers = (
            (WholeLayer if _is_whole(spec) else Layer)(config, spec)
            for spec in config.systems()["encoder_self"]
        )
        super().__init__(config, layers, embedding)

    def run(
        self, x: Tensor, padding: Tensor | None, losses: AuxiliaryLoss, **asked: Any
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Runs the layers over `x`, the input `(batch, time, embed_dim)`, positions included.

        `losses` collects what the attentions ask to add; `asked` is as in `Stack.through_layers`.
        """
        arguments = [(LayerInputs(losses, padding),)] * len(self.layers)
        return self.through_layers(x, arguments, **asked)


class Encoder(EncoderStack):
    """Embeddings, positions and encoder layers."""

    main_input_name = "input_ids"  # generate() asks

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        losses: AuxiliaryLoss | None = None,
        **asked: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Tokens, or their embeddings, to hidden states; see `MaskedLM.forward` and `run`."""
        words = self.words(input_ids, inputs_embeds)
        check_token_mask("attention_mask", attention_mask, *words.shape[:2])
        padding = None if attention_mask is None else attention_mask == 0
        x = embed(words, padding, learned=self.positions, position_ids=position_ids)
        return self.run(x, padding, losses or AuxiliaryLoss(), **asked)


class DecoderStack(Stack):
    """Causal layers over whatever stands for the input, of a model with the site `decoder_self`.

    They attend over an encoder's output where there is the site `decoder_cross` too.
    """

    def __init__(self, config: TransformerConfig, embedding: nn.Module | None = None) -> None:
        specs = config.systems()
        no_cross: list[Spec | None] = [None] * len(specs["decoder_self"])
        layers = (
            WholeLayer(config, self_spec, is_causal=True)
            if _is_whole(self_spec)
            else Layer(config, self_spec, cross_spec, is_causal=True)
            for self_spec, cross_spec in zip(
                specs["decoder_self"], specs.get("decoder_cross", no_cross), strict=True
            )
        )
        super().__init__(config, layers, embedding)

    def run(
        self,
        x: Tensor,
        padding: Tensor | None,
        losses: AuxiliaryLoss,
        cache: DecodingCache | None = None,
        encoded: Tensor | None = None,
        encoder_padding: Tensor | None = None,
        **asked: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Runs the layers over `x`, the input `(batch, time, embed_dim)`, positions included.

        `padding` is that of cached positions and this call's, `(batch, cached + time)`; this call
        adds to the cache. `encoded` is what the encoder gave, `(batch, source time, embed_dim)`;
        the rest is as in `EncoderStack.run`.
        """
        query_padding = None
        if padding is not None:
            offset = 0 if cache is None else cache.get_seq_length()
            query_padding = of_queries(padding, offset, x.size(1))
        inputs = LayerInputs(losses, padding, query_padding, encoded, encoder_padding)
        none: list[None] = [None] * len(self.layers)
        of_self = none if cache is None else cache.self_attention
        of_cross = none if cache is None else cache.cross_attention or none
        arguments = [(inputs, *caches) for caches in zip(of_self, of_cross, strict=True)]
        return self.through_layers(x, arguments, cache, **asked)

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


class Decoder(DecoderStack):
    """Embeddings, positions and decoder layers."""

    main_input_name = "input_ids"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: DecodingCache | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        *,
        losses: AuxiliaryLoss | None = None,
        **asked: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Tokens, or their embeddings, to hidden states; see `CausalLM.forward` and `run`."""
        of_target = "" if encoder_hidden_states is None else "decoder_"
        words = self.words(input_ids, inputs_embeds, of_target)
        batch, time = words.shape[:2]
        cache = self.usable_cache(cache)
        offset = 0 if cache is None else cache.get_seq_length()
        fixed = cache is not None and cache.is_compileable
        seen = None if fixed or isinstance(offset, Tensor) else offset + time
        check_token_mask(f"{of_target}attention_mask", attention_mask, batch, seen)
        if encoder_hidden_states is not None:
            sources = encoder_hidden_states.shape[:2]
            check_token_mask("attention_mask", encoder_attention_mask, *sources)
        padding = None if attention_mask is None else attention_mask == 0
        if cache is not None and padding is not None:
            padding = cache.of_all_positions(padding, time)
        x = embed(words, padding, offset, self.positions, position_ids)
        texts = None
        if position_ids is not None and attention_mask is None and time > 1:
            texts = packed_by_positions(position_ids.expand(batch, -1))
        if texts is not None:
            shows = asked.get("output_attentions")
            _check_packed(of_target, cache, encoder_hidden_states, shows)
            x, padding = texts.apart(x), texts.padding
        decoded = self.run(
            x,
            padding,
            losses or AuxiliaryLoss(),
            cache,
            encoder_hidden_states,
            None if encoder_attention_mask is None else encoder_attention_mask == 0,
            **asked,
        )
        if texts is not None:
            _put_together(decoded, texts)
        return decoded


def selected_states(states: Sequence[Tensor], asked: HiddenStates) -> tuple[Tensor | None, ...]:
    """Returns hidden states as transformers does: all, or None in the place of those not asked for.

    >>> selected_states([torch.zeros(1), torch.ones(1)], -1)
    (None, tensor([1.]))
    """
    if isinstance(asked, bool):
        return tuple(states)
    count = len(states)
    wanted = {index % count for index in ([asked] if isinstance(asked, int) else asked)}
    return tuple(state if index in wanted else None for index, state in enumerate(states))


def _check_packed(
    prefix: str,
    cache: DecodingCache | None,
    encoded: Tensor | None,
    output_attentions: bool | None,
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


def _put_together(decoded: BaseModelOutputWithPastAndCrossAttentions, texts: PackedTexts) -> None:
    """Puts the hidden states of packed texts back into the rows that the texts came from."""
    decoded["last_hidden_state"] = texts.together(decoded.last_hidden_state)
    if decoded.hidden_states is not None:
        decoded["hidden_states"] = tuple(
            None if state is None else texts.together(state) for state in decoded.hidden_states
        )


def _is_whole(spec: Spec) -> bool:
    return system_class(spec["system"]).replaces == "layer"
