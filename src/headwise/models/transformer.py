"""Encoder and decoder stacks whose attention follows a plan.

Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762.
"""

# PyTorch 2.8 cannot compile functions within functions whose annotations are unions.
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import logging

from headwise.models.attentions import attentions_noted
from headwise.models.cache import DecodingCache
from headwise.models.config import TransformerConfig
from headwise.models.embedding import embed, position_embedding
from headwise.models.layers import (
    DecoderInputs,
    DecoderLayer,
    EncoderLayer,
    WholeDecoderLayer,
    WholeEncoderLayer,
)
from headwise.models.losses import AuxiliaryLoss
from headwise.models.outputs import selected_states
from headwise.models.plan import Spec, system_class
from headwise.ops.masks import of_queries
from headwise.ops.packing import PackedTexts, packed_by_positions
from headwise.ops.shapes import check_sequences, check_token_mask, check_tokens
from headwise.transformers_internals import CACHE, StackHooks

logger = logging.get_logger(__name__)

HiddenStates = bool | int | Sequence[int]  # transformers' `output_hidden_states`


class EncoderStack(StackHooks):
    """Encoder layers over whatever stands for the input.

    Args:
        config: of a model with the site `encoder_self`.
        embedding: what makes the layers' input, in a subclass.
    """

    def __init__(self, config: TransformerConfig, embedding: nn.Module | None = None) -> None:
        super().__init__()
        if embedding is not None:
            self.embedding = embedding
        self.layers = nn.ModuleList(
            (WholeEncoderLayer if _is_whole(spec) else EncoderLayer)(config, spec)
            for spec in config.systems()["encoder_self"]
        )
        self.final_norm = _final_norm(config)
        self.dropout = config.dropout

    def run(
        self,
        x: Tensor,
        padding: Tensor | None,
        losses: AuxiliaryLoss,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """Dropout, all layers and the norm behind them.

        Args:
            x: the input, positions included, `(batch, time, embed_dim)`.
            padding: `(batch, time)`, `True` at padding.
            losses: collects what the attentions ask to add.
            states: a list to which the layers' input and the output of each is added, that of the
                last behind the norm.

        Returns:
            `(batch, time, embed_dim)`.
        """
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            if states is not None:
                states.append(x)
            x = layer(x, padding, losses)
        x = self.final_norm(x)
        if states is not None:
            states.append(x)
        return x


class Encoder(EncoderStack):
    """Embeddings, positions and encoder layers."""

    main_input_name = "input_ids"  # generate() asks

    def __init__(self, config: TransformerConfig, embedding: nn.Module) -> None:
        super().__init__(config, embedding)
        self.width = config.embed_dim
        self.positions = position_embedding(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        losses: AuxiliaryLoss | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: HiddenStates | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Tokens, or their embeddings, to hidden states.

        Args:
            input_ids: tokens, `(batch, time)`.
            attention_mask: `(batch, time)`, 1 at tokens and 0 at padding.
            inputs_embeds: what the embedding gives for the tokens, in their place.
            position_ids: the tokens' positions; see `headwise.models.embedding.embed`.
            losses: collects what the attentions ask to add.
            output_attentions: whether to return attention weights.
            output_hidden_states: whether to return hidden states, or which.

        Raises:
            ValueError: not exactly one of `input_ids` and `inputs_embeds`.
        """
        words = _words(self.embedding, self.width, input_ids, inputs_embeds)
        check_token_mask("attention_mask", attention_mask, *words.shape[:2])
        padding = None if attention_mask is None else attention_mask == 0
        x = embed(words, padding, learned=self.positions, position_ids=position_ids)

        def run(states: list[Tensor] | None) -> Tensor:
            return self.run(x, padding, losses or AuxiliaryLoss(), states)

        return collected(self.layers, run, output_attentions, output_hidden_states)


class DecoderStack(StackHooks):
    """Causal layers over whatever stands for the input, with or without an encoder before them.

    Args:
        config: of a model with the site `decoder_self`; its layers attend over an encoder's output
            where there is the site `decoder_cross` too.
        embedding: what makes the layers' input, in a subclass.
    """

    def __init__(self, config: TransformerConfig, embedding: nn.Module | None = None) -> None:
        super().__init__()
        if embedding is not None:
            self.embedding = embedding
        specs = config.systems()
        no_cross: list[Spec | None] = [None] * len(specs["decoder_self"])
        self.layers = nn.ModuleList(
            WholeDecoderLayer(config, self_spec)
            if _is_whole(self_spec)
            else DecoderLayer(config, self_spec, cross_spec)
            for self_spec, cross_spec in zip(
                specs["decoder_self"], specs.get("decoder_cross", no_cross), strict=True
            )
        )
        self.final_norm = _final_norm(config)
        self.dropout = config.dropout

    def run(
        self,
        x: Tensor,
        padding: Tensor | None,
        losses: AuxiliaryLoss,
        cache: DecodingCache | None = None,
        encoded: Tensor | None = None,
        encoder_padding: Tensor | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """Dropout, all layers and the norm behind them.

        Args:
            x: the input, positions included, `(batch, time, embed_dim)`.
            padding: of cached positions and this call's, `(batch, cached + time)`, `True` at
                padding.
            losses: collects what the attentions ask to add.
            cache: what earlier calls of a decoding remember; this call adds to it.
            encoded: what the encoder gave, `(batch, source time, embed_dim)`.
            encoder_padding: `(batch, source time)`.
            states: a list to which the layers' input and the output of each is added, that of the
                last behind the norm.

        Returns:
            `(batch, time, embed_dim)`.
        """
        query_padding = None
        if padding is not None:
            offset = 0 if cache is None else cache.get_seq_length()
            query_padding = of_queries(padding, offset, x.size(1))
        inputs = DecoderInputs(encoded, padding, query_padding, encoder_padding, losses)
        x = F.dropout(x, self.dropout, self.training)
        for index, layer in enumerate(self.layers):
            self_cache = cross_cache = None
            if cache is not None:
                self_cache = cache.self_attention[index]
                cross_cache = cache.cross_attention[index] if cache.cross_attention else None
            if states is not None:
                states.append(x)
            x = layer(x, inputs, self_cache, cross_cache)
        x = self.final_norm(x)
        if states is not None:
            states.append(x)
        return x

    def usable_cache(self, cache: DecodingCache | None) -> DecodingCache | None:
        """Returns the cache, or None, with a warning, where layers will be computed a second time.

        Raises:
            ValueError: the cache is needed, since it holds something; or it is that of a model with
                more or fewer layers.
        """
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
        if any(layer.get_seq_length() for layer in (*cache.self_attention, *cache.cross_attention)):
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

    def __init__(self, config: TransformerConfig, embedding: nn.Module) -> None:
        super().__init__(config, embedding)
        self.width = config.embed_dim
        self.positions = position_embedding(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: DecodingCache | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        losses: AuxiliaryLoss | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: HiddenStates | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Tokens, or their embeddings, to hidden states.

        Args:
            input_ids: tokens, `(batch, time)`.
            attention_mask: `(batch, cached + time)`, 1 at tokens and 0 at padding.
            cache: the cache of earlier calls in a decoding.
            encoder_hidden_states: what the encoder gave, `(batch, source time, embed_dim)`.
            encoder_attention_mask: `(batch, source time)`.
            inputs_embeds: what the embedding gives for the tokens, in their place.
            position_ids: the tokens' positions; see `headwise.models.embedding.embed`. Without an
                attention mask they also say where packed texts begin: where they do not go on by
                one, as in transformers. Each text is computed by itself.
            losses: collects what the attentions ask to add.
            output_attentions: whether to return attention weights.
            output_hidden_states: whether to return hidden states, or which.

        Raises:
            ValueError: not exactly one of `input_ids` and `inputs_embeds`; packed texts with what
                they do not go with.
        """
        of_target = "" if encoder_hidden_states is None else "decoder_"
        words = _words(self.embedding, self.width, input_ids, inputs_embeds, of_target)
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
        encoder_padding = None if encoder_attention_mask is None else encoder_attention_mask == 0
        texts = None
        if position_ids is not None and attention_mask is None and time > 1:
            texts = packed_by_positions(position_ids.expand(batch, -1))
        if texts is not None:
            _check_packed(of_target, cache, encoder_hidden_states, output_attentions)
            x, padding = texts.apart(x), texts.padding

        def run(states: list[Tensor] | None) -> Tensor:
            sum_of_losses = losses or AuxiliaryLoss()
            return self.run(
                x, padding, sum_of_losses, cache, encoder_hidden_states, encoder_padding, states
            )

        return collected(self.layers, run, output_attentions, output_hidden_states, cache, texts)


def collected(
    layers: Iterable[nn.Module],
    run: Callable[[list[Tensor] | None], Tensor],
    output_attentions: bool | None = None,
    output_hidden_states: HiddenStates | None = None,
    cache: DecodingCache | None = None,
    texts: PackedTexts | None = None,
) -> BaseModelOutputWithPastAndCrossAttentions:
    """Runs a stack and returns its output with all that is asked for.

    Args:
        layers: the layers of the stack.
        run: takes a list for hidden states, or None, and returns the last of them.
        output_attentions: whether to return attention weights.
        output_hidden_states: whether to return hidden states, or which.
        cache: the cache to return.
        texts: the texts that were packed, which the stack computes apart.
    """
    asked = False if output_hidden_states is None else output_hidden_states
    states: list[Tensor] | None = None if asked is False else []  # 0 asks for the first
    with attentions_noted(layers) if output_attentions else nullcontext() as noted:
        last = run(states)
    if texts is not None:
        last = texts.together(last)
        states = None if states is None else [texts.together(state) for state in states]
    return BaseModelOutputWithPastAndCrossAttentions(
        last_hidden_state=last,
        **{CACHE: cache},
        hidden_states=None if states is None else selected_states(states, asked),
        attentions=None if noted is None else tuple(noted.of_self),
        cross_attentions=tuple(noted.of_cross) if noted is not None and noted.of_cross else None,
    )


def _words(
    embedding: nn.Module,
    width: int,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    prefix: str = "",
) -> Tensor:
    """Embeddings of tokens, not scaled, `(batch, time, embed_dim)`.

    `prefix` is how the names of the two arguments begin in the model's `forward`, for errors.
    """
    ids, embeds = f"{prefix}input_ids", f"{prefix}inputs_embeds"
    if inputs_embeds is None and input_ids is not None:
        # The weight may be shared with an embedding that was resized. Adapters and quantised
        # embeddings do not say how many there are.
        size = getattr(embedding, "num_words", None)
        if type(embedding) is nn.Embedding:
            size = len(embedding.weight)
        check_tokens(ids, input_ids, size)
        words: Tensor = embedding(input_ids)
        return words
    if inputs_embeds is not None and input_ids is None:
        check_sequences(embeds, inputs_embeds, width)
        return inputs_embeds
    given = "both are given" if inputs_embeds is not None else "both are None"
    raise ValueError(
        f"{ids} and {embeds}: {given}, expected exactly one of them: tokens (batch, time), or what "
        f"get_input_embeddings() gives for them"
    )


def _check_packed(
    prefix: str,
    cache: DecodingCache | None,
    encoded: Tensor | None,
    output_attentions: bool | None,
) -> None:
    """Raises `ValueError` for what packed texts do not go with.

    `prefix` is how the names of arguments begin in the model's `forward`.
    """
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


def _is_whole(spec: Spec) -> bool:
    return system_class(spec["system"]).replaces == "layer"


def _final_norm(config: TransformerConfig) -> nn.Module:
    # With pre-norm nothing has normalised the last residual sum yet.
    return nn.LayerNorm(config.embed_dim) if config.norm == "pre" else nn.Identity()
