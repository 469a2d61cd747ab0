"""The layers of encoders and decoders, whose attention follows a plan.

Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762, with layer norm
after each residual sum as published, or before each sub-layer.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from headwise.heads.cache import AttentionCache
from headwise.heads.system import Macs, System
from headwise.models.config import TransformerConfig
from headwise.models.outputs import AuxiliaryLoss
from headwise.models.plan import Spec, build_system
from headwise.ops.activations import ACTIVATIONS, Activation, hidden_width
from headwise.ops.norms import norm_of
from headwise.ops.rotary import Rotary
from headwise.transformers_internals import GradientCheckpointingLayer


class FeedForward(nn.Module):
    """f(x W₁ + b₁) W₂ + b₂, at each position by itself, where f is an activation.

    Gated activations take both of their maps from W₁, that of the gate first.
    """

    def __init__(
        self,
        embed_dim: int,
        ffn_dim: int,
        dropout: float,
        activation: Activation = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.ffn_up = nn.Linear(embed_dim, hidden_width(activation, ffn_dim), bias=bias)
        self.ffn_down = nn.Linear(ffn_dim, embed_dim, bias=bias)
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
    """A sub-layer's residual sum with its norm and dropout.

    Post-norm: norm(x + dropout(f(x))). Pre-norm: x + dropout(f(norm(x))).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = norm_of(config.norm_kind, config.embed_dim, config.norm_eps)
        self.pre_norm = config.norm == "pre"
        self.dropout = config.dropout

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre_norm:
            return x + F.dropout(sublayer(self.norm(x)), self.dropout, self.training)
        return self.norm(x + F.dropout(sublayer(x), self.dropout, self.training))


class LayerInputs(NamedTuple):
    """What all layers of a stack see in one forward pass, beside the layer below's output."""

    losses: AuxiliaryLoss
    padding: Tensor | None = None  # (batch, cached + time), `True` at padding, as everywhere here
    query_padding: Tensor | None = None  # of a decoder: (batch, time), the end of `padding`
    encoded: Tensor | None = None  # (batch, source time, embed_dim), where there is an encoder
    encoder_padding: Tensor | None = None  # (batch, source time)
    rotary: Rotary | None = None  # the turns of the positions of this call


class Layer(GradientCheckpointingLayer):
    """Self-attention, attention over the encoder's output if there is any, then feed-forward,
    unless the last of these attentions holds that too. Or a system that takes the place of all
    these, their residual sums and norms included.

    The specs say what stands at the sites of these attentions; a decoder's layer is causal.
    """

    def __init__(
        self,
        config: TransformerConfig,
        self_attention: Spec,
        cross_attention: Spec | None = None,
        *,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        self.is_causal = is_causal
        site = "decoder_self" if is_causal else "encoder_self"
        last = build_system(self_attention, config.place(site))
        self.system: System | None = None
        if last.replaces == "layer":
            self.system = last
            return
        self.self_attention = last
        self.self_attention_residual = _residual(config, last)
        self.cross_attention: System | None = None
        if cross_attention is not None:
            last = build_system(cross_attention, config.place("decoder_cross"))
            self.cross_attention = last
            self.cross_attention_residual = _residual(config, last)
        self.feed_forward: FeedForward | None = None
        if last.replaces == "attention":
            self.feed_forward = FeedForward(
                config.embed_dim,
                config.ffn_dim,
                config.ffn_dropout,
                config.ffn_activation,
                config.bias is True,
            )
            self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        inputs: LayerInputs,
        self_cache: AttentionCache | None = None,
        cross_cache: AttentionCache | None = None,
    ) -> Tensor:
        options: dict[str, Any] = {"key_padding_mask": inputs.padding}
        if inputs.rotary is not None:  # else a system of a user's own need not know of them
            options["rotary"] = inputs.rotary
        if self.is_causal:
            options |= {"query_padding_mask": inputs.query_padding, "is_causal": True}
            options["cache"] = self_cache
        if self.system is not None:
            if not self.is_causal:
                return inputs.losses.collect(self.system(x, **options))
            options |= {"memory_key_padding_mask": inputs.encoder_padding}
            out = self.system(x, inputs.encoded, cross_cache=cross_cache, **options)
            return inputs.losses.collect(out)

        def attend(y: Tensor) -> Tensor:
            return inputs.losses.collect(self.self_attention(y, **options))

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
        feed_forward = self.feed_forward
        if feed_forward is None:
            return x
        # As a function: accelerate moves modules among the arguments, also those that it offloads.
        return self.feed_forward_residual(x, lambda y: feed_forward(y))


def _residual(config: TransformerConfig, system: System) -> Residual | None:
    """None where the system adds to the stream by itself."""
    if system.holds_residual:
        return None
    return Residual(config)


def _added(residual: Residual | None, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    return sublayer(x) if residual is None else residual(x, sublayer)
