"""The layers of encoders and decoders, whose attention follows a plan.

Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762, with layer norm
after each residual sum as published, or before each sub-layer.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from headwise.heads.cache import AttentionCache
from headwise.heads.system import Macs, System
from headwise.models.config import TransformerConfig
from headwise.models.losses import AuxiliaryLoss
from headwise.models.plan import Spec, build_system
from headwise.ops.activations import ACTIVATIONS, Activation
from headwise.transformers_internals import GradientCheckpointingLayer


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


class DecoderInputs(NamedTuple):
    """What all layers of a decoder see in one forward pass, beside the layer below's output."""

    encoded: Tensor | None  # (batch, source time, embed_dim), where there is an encoder
    padding: Tensor | None  # (batch, cached + time), `True` at padding, as everywhere here
    query_padding: Tensor | None  # (batch, time), the end of `padding`
    encoder_padding: Tensor | None  # (batch, source time)
    losses: AuxiliaryLoss


class EncoderLayer(GradientCheckpointingLayer):
    """Self-attention, then feed-forward, unless the attention holds that too."""

    def __init__(self, config: TransformerConfig, self_attention: Spec) -> None:
        super().__init__()
        self.self_attention = _system(config, self_attention, "encoder_self")
        self.self_attention_residual = _residual_of(config, self.self_attention)
        self.feed_forward: FeedForward | None = None
        if self.self_attention.replaces == "attention":
            self.feed_forward = _feed_forward(config)
            self.feed_forward_residual = _residual(config)

    def forward(self, x: Tensor, padding: Tensor | None, losses: AuxiliaryLoss) -> Tensor:
        def attend(y: Tensor) -> Tensor:
            return losses.collect(self.self_attention(y, key_padding_mask=padding))

        x = _added(self.self_attention_residual, x, attend)
        if self.feed_forward is None:
            return x
        return self.feed_forward_residual(x, self.feed_forward)


class DecoderLayer(GradientCheckpointingLayer):
    """Causal self-attention, attention over the encoder's output if there is an encoder, then
    feed-forward, unless the last of these attentions holds that too.
    """

    def __init__(
        self, config: TransformerConfig, self_attention: Spec, cross_attention: Spec | None = None
    ) -> None:
        super().__init__()
        self.self_attention = last = _system(config, self_attention, "decoder_self")
        self.self_attention_residual = _residual_of(config, last)
        self.cross_attention: System | None = None
        if cross_attention is not None:
            self.cross_attention = last = _system(config, cross_attention, "decoder_cross")
            self.cross_attention_residual = _residual_of(config, last)
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
        def attend(y: Tensor) -> Tensor:
            return inputs.losses.collect(
                self.self_attention(
                    y,
                    key_padding_mask=inputs.padding,
                    query_padding_mask=inputs.query_padding,
                    is_causal=True,
                    cache=self_cache,
                )
            )

        def attend_to_encoded(y: Tensor) -> Tensor:
            assert self.cross_attention is not None
            return inputs.losses.collect(
                self.cross_attention(
                    y,
                    inputs.encoded,
                    key_padding_mask=inputs.encoder_padding,
                    query_padding_mask=inputs.query_padding,
                    cache=cross_cache,
                )
            )

        x = _added(self.self_attention_residual, x, attend)
        if self.cross_attention is not None:
            x = _added(self.cross_attention_residual, x, attend_to_encoded)
        if self.feed_forward is None:
            return x
        return self.feed_forward_residual(x, self.feed_forward)


class WholeEncoderLayer(GradientCheckpointingLayer):
    """A system that takes the place of an encoder layer, its residual sums and norms included."""

    def __init__(self, config: TransformerConfig, system: Spec) -> None:
        super().__init__()
        self.system = _system(config, system, "encoder_self")

    def forward(self, x: Tensor, padding: Tensor | None, losses: AuxiliaryLoss) -> Tensor:
        return losses.collect(self.system(x, key_padding_mask=padding))


class WholeDecoderLayer(GradientCheckpointingLayer):
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


def _system(config: TransformerConfig, spec: Spec, site: str) -> System:
    return build_system(spec, config.place(site))


def _feed_forward(config: TransformerConfig) -> FeedForward:
    return FeedForward(config.embed_dim, config.ffn_dim, config.ffn_dropout, config.ffn_activation)


def _residual_of(config: TransformerConfig, system: System) -> Residual | None:
    """None where the system adds to the stream by itself."""
    return None if system.holds_residual else _residual(config)


def _added(residual: Residual | None, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    return sublayer(x) if residual is None else residual(x, sublayer)


def _residual(config: TransformerConfig) -> Residual:
    return Residual(config.embed_dim, config.norm, config.dropout)
