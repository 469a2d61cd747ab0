"""Scaled dot-product attention over masks in `nn.MultiheadAttention`'s sense.

    o = softmax(q kᵀ / √head_dim + mask) v

(Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762.)
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.ops.masks import causal_mask

Known = Literal["sdpa", "eager", "flex_attention"]


class Kernel(Protocol):
    """Attention computed elsewhere, as by transformers' `ALL_ATTENTION_FUNCTIONS`."""

    takes_padding_alone: bool
    """Whether its only mask is padding, boolean `(batch, 1, 1, keys)`, and it is causal with it."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, dropout: float
    ) -> Tensor: ...


Implementation = Known | Kernel


def dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    dropout: float = 0.0,
    implementation: Implementation = "sdpa",
) -> Tensor:
    """Attention by PyTorch's own kernel, or by another implementation of the same.

    Args:
        q: `(batch, heads, queries, head_dim)`.
        k, v: `(batch, key heads, keys, head_dim)`, where key heads divide heads: as many heads of
            queries as there are for each, one behind another, share one.
        mask: broadcasts to `(batch, heads, queries, keys)`; boolean `True` is not attended, a
            float mask is added. A query that may attend to nothing gets zeros, never NaN.
        is_causal: query `t` attends to keys 0 … t; only without `mask`.
        dropout: probability with which an attention weight is dropped.
        implementation: `"sdpa"`, PyTorch's own kernel; `"eager"`, the equation, which keeps all
            weights in memory; `"flex_attention"`, PyTorch's compiled kernel, which has no
            dropout, and on the CPU no backward pass; or a kernel from elsewhere.
    """
    if callable(implementation):
        return implementation(q, k, v, mask, is_causal, dropout)
    if implementation == "eager":
        if is_causal:
            mask = causal_mask(q.size(2), k.size(2), device=q.device)
        weights = attention_weights(q, k, mask).to(v.dtype)
        return F.dropout(weights, dropout) @ share_heads(q, v)
    if implementation == "flex_attention":
        return _flex_attention(q, k, v, mask, is_causal, dropout)
    if mask is not None:
        mask = ~mask if mask.dtype == torch.bool else mask.to(q.dtype)
    grouped = bool(1 < k.size(1) < q.size(1))  # under torch.jit.trace sizes are tensors
    if k.size(1) == 1:
        k, v = share_heads(q, k), share_heads(q, v)
    read = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=grouped
    )
    if mask is None or not torch.compiler.is_exporting():
        return read
    # Another runtime, such as ONNX's, may not have zeros where a query attends to nothing.
    attends = mask if mask.dtype == torch.bool else mask > float("-inf")
    return read.masked_fill(~attends.any(-1, keepdim=True), 0.0)


def _flex_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, dropout: float
) -> Tensor:
    on_cpu = q.device.type == "cpu"
    if dropout:
        raise ValueError(
            f"flex_attention has no dropout of attention weights, but it is {dropout}: use "
            f"attn_implementation='sdpa', or set attention_dropout to 0"
        )
    if on_cpu and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ValueError(
            "flex_attention has no backward pass on the CPU: use attn_implementation='sdpa', or "
            "torch.no_grad()"
        )
    shape = (q.size(0), q.size(1), q.size(2), k.size(2))
    whole = None if mask is None else mask.expand(shape)
    blocks = whole is not None and whole.dtype == torch.bool

    def masked(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if is_causal:
            return torch.where(query >= key, score, float("-inf"))
        if whole is None:
            return score
        there = whole[batch, head, query, key]
        return torch.where(there, float("-inf"), score) if blocks else score + there

    k, v = share_heads(q, k), share_heads(q, v)
    return _flex_kernel(on_cpu)(q, k, v, score_mod=masked)


@cache
def _flex_kernel(on_cpu: bool) -> Callable[..., Tensor]:
    # Imported here, since its import takes long.
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Any = flex_attention
    return kernel if on_cpu else torch.compile(kernel)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """The weights themselves, `(batch, heads, queries, keys)`; rows sum to 1, or to 0 where a
    query may attend to nothing.
    """
    # Queries are scaled first: in float16 the products of long ones would be infinite.
    logits = q / math.sqrt(q.size(-1)) @ share_heads(q, k).transpose(-2, -1)
    if mask is None:
        return logits.softmax(-1)
    blocks = mask.dtype == torch.bool
    logits = logits.masked_fill(mask, float("-inf")) if blocks else logits + mask
    attends = (logits > float("-inf")).any(-1, keepdim=True)
    return logits.masked_fill(~attends, 0.0).softmax(-1) * attends


def share_heads(q: Tensor, k: Tensor) -> Tensor:
    """Key heads as the queries' heads see them: of a single one a view, of groups copies."""
    if k.size(1) == q.size(1):
        return k
    if k.size(1) == 1:
        return k.expand(-1, q.size(1), -1, -1)
    return k.repeat_interleave(q.size(1) // k.size(1), dim=1)
