"""TIM's numerics as the equations read, row by row and group by group, for the tests."""

import math

import torch
from torch import Tensor

from headwise.ops.naive import naive_activation


def naive_grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`grouped_linear` as the equation reads, row by row and group by group."""
    biases = torch.zeros(len(weight), 1).to(x) if bias is None else bias
    rows = []
    for row in x.flatten(0, -2):
        groups = row.unflatten(0, (weight.size(0), -1))  # (groups, in)
        rows.append(torch.cat([h @ w + b for h, w, b in zip(groups, weight, biases, strict=True)]))
    return torch.stack(rows).unflatten(0, x.shape[:-1])


def naive_grouped_feed_forward(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str = "relu",
) -> Tensor:
    """`grouped_feed_forward` as the equations read: two maps, and the activation in between."""
    hidden = naive_activation(activation, naive_grouped_linear(x, up, up_bias))
    return naive_grouped_linear(hidden, down, down_bias)


def naive_grouped_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """`grouped_layer_norm` as the equation reads, row by row and group by group."""
    rows = []
    for row in x.flatten(0, -2):
        parts = []
        for h, w, b in zip(row.unflatten(0, weight.shape), weight, bias, strict=True):
            mean = h.sum() / len(h)
            variance = ((h - mean) ** 2).sum() / len(h)
            parts.append((h - mean) / torch.sqrt(variance + eps) * w + b)
        rows.append(torch.cat(parts))
    return torch.stack(rows).unflatten(0, x.shape[:-1])


def naive_attention_between_groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`attention_between_groups` as plain loops."""
    groups, heads, head_dim = q.shape[-3:]
    rows = []
    for q_, k_, v_ in zip(*(x.flatten(0, -4) for x in (q, k, v)), strict=True):
        out = torch.zeros_like(q_)
        for i in range(groups):
            for h in range(heads):
                scores = [q_[i, h] @ k_[j, h] / math.sqrt(head_dim) for j in range(groups)]
                exponentials = [torch.exp(score) for score in scores]
                total = sum(exponentials)
                out[i, h] = sum(exponentials[j] / total * v_[j, h] for j in range(groups))
        rows.append(out)
    return torch.stack(rows).unflatten(0, q.shape[:-3])
