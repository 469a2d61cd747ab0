"""Encoder and decoder stacks whose attention follows a plan.

Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762, with layer norm
after each residual sum as published, or before each sub-layer.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from headwise.heads.cache import AttentionCache
from headwise.heads.system import AttentionOutput, Macs, System
from headwise.models.cache import DecodingCache
from headwise.models.config import TransformerConfig
from headwise.models.embedding import embed, position_embedding
from headwise.models.plan import Spec, build_system, system_class
from headwise.ops.activations import ACTIVATIONS, Activation
from headwise.ops.masks import of_queries


class FeedForward(nn.Module):
    """f(x W₁ + b₁) W₂ + b₂, at each position by itself, where f is an activation."""

    def __init__(
        self, embed_dim: int, ffn_dim: int, dropout: float, activation: Activation = "relu"
    ) -> None:
        super().__init__()
        self.ffn_up = nn.Linear(embed_dim, ffn_dim)
        self.ffn_down = nn.Linear(ffn_dim, embed_dim)
        self.dropout = dropout
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        hidden = ACTIVATIONS[self.activation](self.ffn_up(x))
        hidden = F.dropout(hidden, self.dropout, self.training)
        return self.ffn_down(hidden)

    def macs(self, length: int) -> Macs:
        """Multiply-accumulates for one sequence."""
        return Macs(length * (self.ffn_up.weight.numel() + self.ffn_down.weight.numel()), 0)


class Residual(nn.Module):
    """A sub-layer's residual sum with its layer norm and dropout.

    Post-norm: norm(x + dropout(f(x))). Pre-norm: x + dropout(f(norm(x))).
    """

    def __init__(self, embed_dim: int, norm: str, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed_dim)
        self.pre_norm = norm == "pre"
        self.dropout = dropout

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre_norm:
            return x + F.dropout(sublayer(self.norm(x)), self.dropout, self.training)
        return self.norm(x + F.dropout(sublayer(x), self.dropout, self.training))


class AuxiliaryLoss:
    """The sum of the losses that the attentions of one forward pass ask to add."""

    def __init__(self) -> None:
        self.total: Tensor | None = None

    def collect(self, out: AttentionOutput) -> Tensor:
        """Note the loss of one attention; passes its output on."""
        if out.routing is not None and out.routing.loss is not None:
            loss = out.routing.loss
            self.total = loss if self.total is None else self.total + loss
        return out.output


class DecoderInputs(NamedTuple):
    """What all layers of a decoder see in one forward pass, beside what the layer below gives."""

    encoded: Tensor | None  # (batch, source time, embed_dim), where there is an encoder
    padding: Tensor | None  # (batch, cached + time), `True` at padding, as everywhere here
    query_padding: Tensor | None  # (batch, time), the end of `padding`
    encoder_padding: Tensor | None  # (batch, source time)
    losses: AuxiliaryLoss


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, unless the attention holds that too."""

    def __init__(self, config: TransformerConfig, self_attention: Spec) -> None:
        super().__init__()
        self.self_attention = _system(config, self_attention, "encoder_self")
        self.self_attention_residual = _residual(config)
        self.feed_forward: FeedForward | None = None
        if self.self_attention.replaces == "attention":
            self.feed_forward = _feed_forward(config)
            self.feed_forward_residual = _residual(config)

    def forward(self, x: Tensor, padding: Tensor | None, losses: AuxiliaryLoss) -> Tensor:
        x = self.self_attention_residual(
            x, lambda y: losses.collect(self.self_attention(y, key_padding_mask=padding))
        )
        if self.feed_forward is None:
            return x
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention over the encoder's output if there is an encoder, then
    feed-forward, unless the last of these attentions holds that too.
    """

    def __init__(
        self, config: TransformerConfig, self_attention: Spec, cross_attention: Spec | None = None
    ) -> None:
        super().__init__()
        self.self_attention = last = _system(config, self_attention, "decoder_self")
        self.self_attention_residual = _residual(config)
        self.cross_attention: System | None = None
        if cross_attention is not None:
            self.cross_attention = last = _system(config, cross_attention, "decoder_cross")
            self.cross_attention_residual = _residual(config)
        self.feed_forward: FeedForward | None = None
        if last.replaces == "attention":
            self.feed_forward = _feed_forward(config)
            self.feed_forward_residual = _residual(config)

    def forward(
        self,
        x: Tensor,
        inputs: DecoderInputs,
        self_cache: AttentionCache | None,
        cross_cache: AttentionCache | None,
    ) -> Tensor:
        x = self.self_attention_residual(
            x,
            lambda y: inputs.losses.collect(
                self.self_attention(
                    y,
                    key_padding_mask=inputs.padding,
                    query_padding_mask=inputs.query_padding,
                    is_causal=True,
                    cache=self_cache,
                )
            ),
        )
        cross_attention = self.cross_attention
        if cross_attention is not None:
            x = self.cross_attention_residual(
                x,
                lambda y: inputs.losses.collect(
                    cross_attention(
                        y,
                        inputs.encoded,
                        key_padding_mask=inputs.encoder_padding,
                        query_padding_mask=inputs.query_padding,
                        cache=cross_cache,
                    )
                ),
            )
        if self.feed_forward is None:
            return x
        return self.feed_forward_residual(x, self.feed_forward)


class WholeEncoderLayer(nn.Module):
    """A system that takes the place of an encoder layer, its residual sums and norms included."""

    def __init__(self, config: TransformerConfig, system: Spec) -> None:
        super().__init__()
        self.system = _system(config, system, "encoder_self")

    def forward(self, x: Tensor, padding: Tensor | None, losses: AuxiliaryLoss) -> Tensor:
        return losses.collect(self.system(x, key_padding_mask=padding))


class WholeDecoderLayer(nn.Module):
    """A system that takes the place of a decoder layer."""

    def __init__(self, config: TransformerConfig, system: Spec) -> None:
        super().__init__()
        self.system = _system(config, system, "decoder_self")

    def forward(
        self,
        x: Tensor,
        inputs: DecoderInputs,
        self_cache: AttentionCache | None,
        cross_cache: AttentionCache | None,
    ) -> Tensor:
        out = self.system(
            x,
            inputs.encoded,
            key_padding_mask=inputs.padding,
            query_padding_mask=inputs.query_padding,
            memory_key_padding_mask=inputs.encoder_padding,
            is_causal=True,
            cache=self_cache,
            cross_cache=cross_cache,
        )
        return inputs.losses.collect(out)


class EncoderStack(nn.Module):
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

    def run(self, x: Tensor, padding: Tensor | None, losses: AuxiliaryLoss) -> Tensor:
        """Dropout, all layers and the norm behind them.

        Args:
            x: the input, positions included, `(batch, time, embed_dim)`.
            padding: `(batch, time)`, `True` at padding.
            losses: collects what the attentions ask to add.

        Returns:
            `(batch, time, embed_dim)`.
        """
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x, padding, losses)
        return self.final_norm(x)


class Encoder(EncoderStack):
    """Embeddings, positions and encoder layers."""

    main_input_name = "input_ids"  # generate() asks

    def __init__(self, config: TransformerConfig, embedding: nn.Module) -> None:
        super().__init__(config, embedding)
        self.positions = position_embedding(config)

    def encode(self, input_ids: Tensor, padding: Tensor | None, losses: AuxiliaryLoss) -> Tensor:
        """Token ids `(batch, time)` to `(batch, time, embed_dim)`; `True` is padding."""
        x = embed(self.embedding, input_ids, padding, learned=self.positions)
        return self.run(x, padding, losses)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: object
    ) -> BaseModelOutput:
        """As `generate()` calls it: `attention_mask` is 1 at tokens and 0 at padding."""
        padding = None if attention_mask is None else attention_mask == 0
        hidden = self.encode(input_ids, padding, AuxiliaryLoss())
        return BaseModelOutput(last_hidden_state=hidden)


class DecoderStack(nn.Module):
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
            x = layer(x, inputs, self_cache, cross_cache)
        return self.final_norm(x)


class Decoder(DecoderStack):
    """Embeddings, positions and decoder layers."""

    def __init__(self, config: TransformerConfig, embedding: nn.Module) -> None:
        super().__init__(config, embedding)
        self.positions = position_embedding(config)

    def forward(
        self,
        input_ids: Tensor,
        padding: Tensor | None,
        losses: AuxiliaryLoss,
        cache: DecodingCache | None = None,
        encoded: Tensor | None = None,
        encoder_padding: Tensor | None = None,
    ) -> Tensor:
        """Token ids `(batch, time)` to `(batch, time, embed_dim)`; see `run`."""
        offset: int | Tensor = 0
        if cache is not None:
            offset = cache.get_seq_length()
            if padding is not None:
                padding = cache.of_all_positions(padding, input_ids.size(1))
        x = embed(self.embedding, input_ids, padding, offset, self.positions)
        return self.run(x, padding, losses, cache, encoded, encoder_padding)


def _system(config: TransformerConfig, spec: Spec, site: str) -> System:
    return build_system(spec, config.place(site))


def _is_whole(spec: Spec) -> bool:
    return system_class(spec["system"]).replaces == "layer"


def _feed_forward(config: TransformerConfig) -> FeedForward:
    return FeedForward(config.embed_dim, config.ffn_dim, config.ffn_dropout, config.ffn_activation)


def _residual(config: TransformerConfig) -> Residual:
    return Residual(config.embed_dim, config.norm, config.dropout)


def _final_norm(config: TransformerConfig) -> nn.Module:
    # With pre-norm nothing has normalised the last residual sum yet.
    return nn.LayerNorm(config.embed_dim) if config.norm == "pre" else nn.Identity()
