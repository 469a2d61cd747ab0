"""Scaled dot-product attention over masks in `nn.MultiheadAttention`'s sense.

    o = softmax(q kᵀ / √head_dim + mask) v

(Vaswani et al. 2017, *Attention Is All You Need*, https://arxiv.org/abs/1706.03762.)
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Attention by PyTorch's own kernel.

    Args:
        q: `(batch, heads, queries, head_dim)`.
        k, v: `(batch, heads or 1, keys, head_dim)`; a single head is shared by all queries' heads.
        mask: broadcasts to `(batch, heads, queries, keys)`; boolean `True` is not attended, a
            float mask is added. A query that may attend to nothing gets zeros, never NaN.
        is_causal: query `t` attends to keys 0 … t; only without `mask`.
        dropout: probability with which an attention weight is dropped.

    Returns:
        `(batch, heads, queries, head_dim)`.
    """
    if mask is not None:
        mask = ~mask if mask.dtype == torch.bool else mask.to(q.dtype)
    k, v = _share_heads(q, k), _share_heads(q, v)
    read = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
    )
    if mask is None or not torch.compiler.is_exporting():
        return read
    # Another runtime, such as ONNX's, may not have zeros where a query attends to nothing.
    attends = mask if mask.dtype == torch.bool else mask > float("-inf")
    return read.masked_fill(~attends.any(-1, keepdim=True), 0.0)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """The weights themselves, `(batch, heads, queries, keys)`; rows sum to 1, or to 0 where a
    query may attend to nothing.
    """
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is None:
        return logits.softmax(-1)
    blocks = mask.dtype == torch.bool
    logits = logits.masked_fill(mask, float("-inf")) if blocks else logits + mask
    attends = (logits > float("-inf")).any(-1, keepdim=True)
    return logits.masked_fill(~attends, 0.0).softmax(-1) * attends


def _share_heads(q: Tensor, k: Tensor) -> Tensor:
    """One key head, seen by every query head: a view, not a copy."""
    return k.expand(-1, q.size(1), -1, -1) if k.size(1) == 1 and q.size(1) > 1 else k
