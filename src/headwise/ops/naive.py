"""Attention and activations as they read, for the tests of the fast ones."""

import math

import torch
from torch import Tensor


def naive_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The equation as plain loops, for tests."""
    out = torch.zeros(*q.shape[:-1], v.size(-1), dtype=q.dtype)
    batch, heads, queries, head_dim = q.shape
    keys = k.size(-2)
    if mask is not None:
        mask = mask.expand(batch, heads, queries, keys)
    for b in range(batch):
        for h in range(heads):
            k_h, v_h = k[b, h % k.size(1)], v[b, h % v.size(1)]
            for t in range(queries):
                scores = []
                for s in range(keys):
                    blocked = mask is not None and mask.dtype == torch.bool and mask[b, h, t, s]
                    bias = mask[b, h, t, s] if mask is not None and not blocked else 0.0
                    score = (q[b, h, t] * k_h[s]).sum() / math.sqrt(head_dim) + bias
                    scores.append(torch.full_like(score, float("-inf")) if blocked else score)
                logits = torch.stack(scores)
                if logits.max() == float("-inf"):
                    continue
                weights = torch.exp(logits - logits.max())
                weights = weights / weights.sum()
                out[b, h, t] = sum(weights[s] * v_h[s] for s in range(keys))
    return out


def naive_activation(name: str, x: Tensor) -> Tensor:
    """An activation of `headwise.ops.activations` by its formula."""
    if name == "gelu":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    slope = {"relu": 0.0, "leaky-relu": 0.01}[name]
    return torch.where(x > 0, x, slope * x)
