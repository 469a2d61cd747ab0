"""Encoder and decoder stacks whose attention follows a plan.

Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762, with layer norm
after each residual sum as published, or before each sub-layer.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from headwise.heads.cache import AttentionCache
from headwise.heads.system import AttentionOutput, Macs, System
from headwise.models.cache import DecodingCache
from headwise.models.config import Seq2SeqConfig
from headwise.models.plan import Spec, build_system, system_class


class FeedForward(nn.Module):
    """ReLU(x W₁ + b₁) W₂ + b₂, at each position by itself."""

    def __init__(self, embed_dim: int, ffn_dim: int, dropout: float) -> None:
        super().__init__()
        self.ffn_up = nn.Linear(embed_dim, ffn_dim)
        self.ffn_down = nn.Linear(ffn_dim, embed_dim)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(F.relu(self.ffn_up(x)), self.dropout, self.training)
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

    encoded: Tensor  # (batch, source time, embed_dim)
    padding: Tensor | None  # (batch, cached + time), `True` at padding, as everywhere here
    query_padding: Tensor | None  # (batch, time), the end of `padding`
    encoder_padding: Tensor | None  # (batch, source time)
    losses: AuxiliaryLoss


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, unless the attention holds that too."""

    def __init__(self, config: Seq2SeqConfig, self_attention: Spec) -> None:
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
    """Causal self-attention, attention over the encoder's output, then feed-forward."""

    def __init__(self, config: Seq2SeqConfig, self_attention: Spec, cross_attention: Spec) -> None:
        super().__init__()
        self.self_attention = _system(config, self_attention, "decoder_self")
        self.self_attention_residual = _residual(config)
        self.cross_attention = _system(config, cross_attention, "decoder_cross")
        self.cross_attention_residual = _residual(config)
        self.feed_forward: FeedForward | None = None
        if self.cross_attention.replaces == "attention":
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
        x = self.cross_attention_residual(
            x,
            lambda y: inputs.losses.collect(
                self.cross_attention(
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

    def __init__(self, config: Seq2SeqConfig, system: Spec) -> None:
        super().__init__()
        self.system = _system(config, system, "encoder_self")

    def forward(self, x: Tensor, padding: Tensor | None, losses: AuxiliaryLoss) -> Tensor:
        return losses.collect(self.system(x, key_padding_mask=padding))


class WholeDecoderLayer(nn.Module):
    """A system that takes the place of a decoder layer."""

    def __init__(self, config: Seq2SeqConfig, system: Spec) -> None:
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


class Encoder(nn.Module):
    """Embeddings, positions and encoder layers."""

    main_input_name = "input_ids"  # generate() asks

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.embed_dim, config.pad_token_id)
        self.layers = nn.ModuleList(
            (WholeEncoderLayer if _is_whole(spec) else EncoderLayer)(config, spec)
            for spec in config.systems()["encoder_self"]
        )
        self.final_norm = _final_norm(config)
        self.dropout = config.dropout

    def encode(self, input_ids: Tensor, padding: Tensor | None, losses: AuxiliaryLoss) -> Tensor:
        """Token ids `(batch, time)` to `(batch, time, embed_dim)`; `True` is padding."""
        x = embed(self.embedding, input_ids)
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x, padding, losses)
        return self.final_norm(x)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: object
    ) -> BaseModelOutput:
        """As `generate()` calls it: `attention_mask` is 1 at tokens and 0 at padding."""
        padding = None if attention_mask is None else attention_mask == 0
        hidden = self.encode(input_ids, padding, AuxiliaryLoss())
        return BaseModelOutput(last_hidden_state=hidden)


class Decoder(nn.Module):
    """Embeddings, positions and decoder layers."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(
            config.target_vocab_size, config.embed_dim, config.pad_token_id
        )
        specs = config.systems()
        self.layers = nn.ModuleList(
            WholeDecoderLayer(config, self_spec)
            if _is_whole(self_spec)
            else DecoderLayer(config, self_spec, cross_spec)
            for self_spec, cross_spec in zip(
                specs["decoder_self"], specs["decoder_cross"], strict=True
            )
        )
        self.final_norm = _final_norm(config)
        self.dropout = config.dropout

    def forward(
        self,
        input_ids: Tensor,
        encoded: Tensor,
        padding: Tensor | None,
        encoder_padding: Tensor | None,
        cache: DecodingCache | None,
        losses: AuxiliaryLoss,
    ) -> Tensor:
        """Target ids `(batch, time)` to `(batch, time, embed_dim)`.

        `padding` covers cached positions and this call's, `(batch, cached + time)`.
        """
        offset = 0 if cache is None else cache.get_seq_length()
        time = input_ids.size(1)
        query_padding = None if padding is None else padding[:, -time:]
        inputs = DecoderInputs(encoded, padding, query_padding, encoder_padding, losses)
        x = embed(self.embedding, input_ids, offset)
        x = F.dropout(x, self.dropout, self.training)
        for index, layer in enumerate(self.layers):
            x = layer(
                x,
                inputs,
                None if cache is None else cache.self_attention[index],
                None if cache is None else cache.cross_attention[index],
            )
        return self.final_norm(x)


def embed(embedding: nn.Embedding, input_ids: Tensor, offset: int = 0) -> Tensor:
    """Embeddings times √d plus sinusoidal positions; the first token stands at `offset`."""
    x = embedding(input_ids) * math.sqrt(embedding.embedding_dim)
    positions = torch.arange(offset, offset + input_ids.size(1), device=x.device)
    return x + sinusoids(positions, embedding.embedding_dim).to(x.dtype)


def sinusoids(positions: Tensor, embed_dim: int) -> Tensor:
    """Sinusoidal positions: sin(t / 10000^(2i/d)) in channel 2i, its cosine in channel 2i + 1.

    >>> sinusoids(torch.tensor([0, 1]), 2)
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    """
    channels = torch.arange(0, embed_dim, 2, device=positions.device)
    rates = torch.exp(channels * (-math.log(10_000) / embed_dim))
    angles = positions.unsqueeze(-1) * rates  # (time, ceil(embed_dim / 2))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :embed_dim]


def _system(config: Seq2SeqConfig, spec: Spec, site: str) -> System:
    return build_system(spec, config.place(site))


def _is_whole(spec: Spec) -> bool:
    return system_class(spec["system"]).replaces == "layer"


def _feed_forward(config: Seq2SeqConfig) -> FeedForward:
    return FeedForward(config.embed_dim, config.ffn_dim, config.ffn_dropout)


def _residual(config: Seq2SeqConfig) -> Residual:
    return Residual(config.embed_dim, config.norm, config.dropout)


def _final_norm(config: Seq2SeqConfig) -> nn.Module:
    # With pre-norm nothing has normalised the last residual sum yet.
    return nn.LayerNorm(config.embed_dim) if config.norm == "pre" else nn.Identity()
