"""Branches that each have a residual stream, as the sub-layers of a Transformer layer have.

    aᵢ = Mκᵢ oᵢWᵢ
    y  = LN(Σᵢ αᵢzᵢ + M Σᵢ αᵢ FFNᵢ(zᵢ)),  zᵢ = LN(x + aᵢ)        post-norm
    y  = x + M Σᵢ αᵢ (aᵢ + FFNᵢ(LN(x + aᵢ)))                    pre-norm

(Ahmed et al. 2017, *Weighted Transformer Network for Machine Translation*,
https://arxiv.org/abs/1711.02132: equations 5 to 7, with the residual connections and norms of a
layer, which section 3 says are retained.) FFNᵢ has the i-th share of the hidden units. Where each
branch has as many units as a layer has, its own or all the same, the factor before its sum is 1.

With pre-norm the stream takes up the sum of what branches add, which for even weights is that of
the ordinary layer. The mean of the streams x + aᵢ would hold an M-th of the attention, and nothing
behind it would restore the scale; behind a post-norm the next norm does.

A norm stands between Wᵢ and W₁, so that their product cannot be made once for a batch, as it is
where there is none. Branches of a share of the units each need no such saving; of all units each,
they cost M products with W₁.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.heads.weighted.branches import weighted_activation
from headwise.ops.activations import ACTIVATIONS, Activation
from headwise.ops.linear_maps import LinearMap


def added_by_branches(
    heads: Tensor, branch_output: Tensor, kappa: Tensor, *, dropout: float = 0.0
) -> Tensor:
    """What each branch adds to the residual stream: Mκᵢ oᵢWᵢ for branch i.

    Args:
        heads: o, what each branch read, `(batch, branches, time, head_dim)`.
        branch_output: W, `(branches, head_dim, embed_dim)`.
        kappa: `(branches,)`.
        dropout: probability with which a unit of what a branch adds is dropped.

    Returns:
        `(branches, batch * time, embed_dim)`.
    """
    branches = len(kappa)
    rows = heads.permute(1, 0, 2, 3).flatten(1, 2)  # (branches, batch * time, head_dim)
    return F.dropout(rows @ (branch_output * (branches * kappa).view(-1, 1, 1)), dropout)


def feed_forward_of_streams(
    z: Tensor,
    alpha: Tensor,
    up: LinearMap,
    down: LinearMap,
    *,
    split: bool = True,
    factor: float = 1.0,
    dropout: float = 0.0,
    activation: Activation = "relu",
) -> Tensor:
    """factor · Σᵢ αᵢ FFNᵢ(zᵢ), or Σᵢ αᵢ FFN(zᵢ) where branches share all units.

    Args:
        z: what each branch feeds in, `(branches, rows, embed_dim)`.
        alpha: `(branches,)`.
        up: W₁ and b₁, `(ffn_dim, embed_dim)` and `(ffn_dim,)`.
        down: W₂ and b₂, `(embed_dim, ffn_dim)` and `(embed_dim,)`. Of b₂ each FFNᵢ has the part
            that makes it b₂ in the sum.
        split: branch i has the i-th share of the hidden units for itself.
        factor: M where the units of all branches together are those of a layer.
        dropout: probability with which a hidden unit is dropped; of shared units, of their sum.
        activation: that of the feed-forward, by its name.

    Returns:
        `(rows, embed_dim)`.
    """
    assert up.bias is not None
    branches = len(alpha)
    if split:
        # (branches, embed_dim, units)
        maps = up.matrix.unflatten(0, (branches, -1)).transpose(1, 2)
        biases = up.bias.unflatten(0, (branches, 1, -1))
        each = ACTIVATIONS[activation](torch.baddbmm(biases.to(maps.dtype), z.to(maps.dtype), maps))
        each = each * (factor * alpha).to(each.dtype).view(-1, 1, 1)
        hidden = each.transpose(0, 1).flatten(1)  # (rows, ffn_dim)
    else:
        shared = up.matrix.t().expand(branches, -1, -1)
        hidden = weighted_activation(z.transpose(0, 1), shared, up.bias, alpha, activation)
    return down(F.dropout(hidden, dropout), bias_factor=alpha.sum())


def weighted_sum(z: Tensor, alpha: Tensor) -> Tensor:
    """Σᵢ αᵢzᵢ over the branches, `(rows, embed_dim)`."""
    return torch.einsum("irc,i->rc", z, alpha.to(z.dtype))


def streams_macs(
    branches: int, head_dim: int, embed_dim: int, ffn_dim: int, *, split: bool = True
) -> int:
    """Multiply-accumulates of one position, from what the heads have read to the output.

    >>> streams_macs(8, 64, 512, 2048) == 512 * 512 + 2 * 512 * 2048  # an ordinary layer's
    True
    """
    products_with_up = 1 if split else branches
    return branches * head_dim * embed_dim + (products_with_up + 1) * embed_dim * ffn_dim
