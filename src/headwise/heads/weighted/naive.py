"""The Weighted Transformer's numerics as the equations read, for the tests of the fast ones."""

from collections.abc import Callable

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


def naive_keep_largest(alpha: Tensor, top_k: int) -> Tensor:
    """The largest entries of one `(branches,)` over their sum, zeros in place of the others."""
    kept = sorted(range(len(alpha)), key=lambda i: float(alpha[i].detach()), reverse=True)[:top_k]
    total = sum((alpha[i] for i in kept), torch.zeros(()))
    zero = torch.zeros_like(alpha[0])
    return torch.stack([alpha[i] / total if i in kept else zero for i in range(len(alpha))])


def naive_layer_of_streams(
    x: Tensor,
    heads: Tensor,
    branch_output: Tensor,
    kappa: Tensor,
    alpha: Tensor,
    up: tuple[Tensor, Tensor],
    down: tuple[Tensor, Tensor],
    norms: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]],
    *,
    pre_norm: bool = False,
    split: bool = True,
    factor: float = 1.0,
    activation: str = "relu",
) -> Tensor:
    """The layer whose branches have streams, branch by branch; `up` and `down` are W and b."""
    branches, ffn_dim = heads.size(1), len(up[1])
    stream = x if pre_norm else torch.zeros(())
    fed = torch.zeros(())
    for i in range(branches):
        added = branches * kappa[i] * heads[:, i] @ branch_output[i]  # (batch, time, embed_dim)
        read = norms[1 if pre_norm else 0](x + added)
        mine = slice(0, ffn_dim)
        if split:
            mine = slice(i * ffn_dim // branches, (i + 1) * ffn_dim // branches)
        hidden = naive_activation(activation, read @ up[0][mine].t() + up[1][mine])
        stream = stream + alpha[i] * (branches * added if pre_norm else read)
        fed = fed + factor * alpha[i] * (hidden @ down[0][:, mine].t() + down[1] / factor)
    return stream + fed if pre_norm else norms[1](stream + fed)
