"""The gates as the equation reads, for the tests of the layer."""

import math

import torch
from torch import Tensor


def naive_gated_heads(
    heads: Tensor, x: Tensor, weight: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """What the heads of one position have read, gate by gate, and the mean gate of each head.

    Args:
        heads: `(heads, head_dim)`, what each head has read.
        x: `(embed_dim,)`, the input of the query.
        weight: V, `(heads, embed_dim)`, or `(heads * head_dim, embed_dim)`.
        scale: what the sigmoid is multiplied by.
    """
    number, head_dim = heads.shape
    rows, inputs = weight.tolist(), x.tolist()
    gated = torch.zeros_like(heads)
    means = heads.new_zeros(number)
    for i in range(number):
        for e in range(head_dim):
            row = i if len(rows) == number else i * head_dim + e
            logit = sum(w * value for w, value in zip(rows[row], inputs, strict=True))
            gate = scale / (1 + math.exp(-logit))
            gated[i, e] = heads[i, e] * gate
            means[i] += gate / head_dim
    return gated, means
