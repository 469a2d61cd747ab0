"""The Weighted Transformer's numerics as the equations read, for the tests of the fast ones."""

import torch
from torch import Tensor

from headwise.ops.naive import naive_activation


def naive_branched_feed_forward(
    heads: Tensor,
    branch_output: Tensor,
    kappa: Tensor,
    alpha: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    down_weight: Tensor,
    down_bias: Tensor,
    *,
    split: bool = False,
    activation: str = "relu",
) -> Tensor:
    """Σᵢ αᵢ FFN(κᵢ oᵢWᵢ), computed one branch after the other."""
    branches, ffn_dim = heads.size(1), up_weight.size(0)
    total = torch.zeros(())
    for i in range(branches):
        z = kappa[i] * heads[:, i] @ branch_output[i]  # (batch, time, embed_dim)
        mine = slice(0, ffn_dim)
        if split:
            mine = slice(i * ffn_dim // branches, (i + 1) * ffn_dim // branches)
        hidden = naive_activation(activation, z @ up_weight[mine].t() + up_bias[mine])
        total = total + alpha[i] * (hidden @ down_weight[:, mine].t() + down_bias)
    return total


def naive_weighted_activation(
    rows: Tensor, maps: Tensor, bias: Tensor, alpha: Tensor, activation: str = "relu"
) -> Tensor:
    """Σᵢ αᵢ f(oᵢ Aᵢ + b) as it reads."""
    total = torch.zeros(())
    for i in range(len(alpha)):
        total = total + alpha[i] * naive_activation(activation, rows[:, i] @ maps[i] + bias)
    return total


def naive_project_to_simplex(x: Tensor) -> Tensor:
    """The same for one `(entries,)`: entries are left out, smallest first, until none is negative
    when the rest is moved to sum 1.
    """
    kept = sorted(range(len(x)), key=lambda i: float(x[i].detach()), reverse=True)
    while True:
        theta = (sum(x[i] for i in kept) - 1) / len(kept)
        if x[kept[-1]] - theta >= 0:
            break
        kept.pop()
    projected = torch.zeros_like(x)
    for i in kept:
        projected[i] = x[i] - theta
    return projected
