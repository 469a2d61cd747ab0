"""Branches of attention, each through the feed-forward by itself, and their weighted sum.

    y = Σᵢ αᵢ FFN(κᵢ oᵢ Wᵢ),  FFN(z) = ReLU(z W₁ + b₁) W₂ + b₂          (equations 6 and 7)

Branch by branch that is M feed-forwards. Two rearrangements make it cost what one does:

    Σᵢ αᵢ FFN(zᵢ) = (Σᵢ αᵢ ReLU(zᵢ W₁ + b₁)) W₂ + (Σᵢ αᵢ) b₂      one product with W₂
    zᵢ W₁ = κᵢ oᵢ (Wᵢ W₁)                                       which maps head_dim, not embed_dim

The product Wᵢ W₁, here called folding, is made once for a batch, and is left out where there are so
few tokens (in decoding step by step) that it costs more than it saves. Both hold for any activation
in the place of the ReLU. Where each branch has a residual stream, a norm stands between Wᵢ and W₁,
which rules folding out: shared units then cost M products with W₁.

Weights are laid out as the module's parameters are: W as `(branches, head_dim, embed_dim)`, W₁ and
W₂ as in `nn.Linear`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.ops.activations import ACTIVATIONS, Activation
from headwise.ops.linear_maps import LinearMap
from headwise.ops.precision import without_autocast
from headwise.ops.twins import compute, is_transformed

# Hidden units of all branches at a time: 4 MiB in float32, which stay in the processor's cache. A
# GPU wants more work at once.
_HIDDEN_UNITS = 2**20
_GPU_HIDDEN_UNITS = 2**24


def branched_feed_forward(
    heads: Tensor,
    branch_output: Tensor,
    kappa: Tensor,
    alpha: Tensor,
    up: LinearMap,
    down: LinearMap,
    *,
    split: bool = False,
    dropout: float = 0.0,
    activation: Activation = "relu",
) -> Tensor:
    """Σᵢ αᵢ FFN(κᵢ oᵢ Wᵢ) over the branches i, `(batch, time, embed_dim)`.

    Args:
        heads: o, what each branch read, `(batch, branches, time, head_dim)`.
        branch_output: W, `(branches, head_dim, embed_dim)`.
        kappa, alpha: `(branches,)`.
        up: W₁ and b₁, `(ffn_dim, embed_dim)` and `(ffn_dim,)`.
        down: W₂ and b₂, `(embed_dim, ffn_dim)` and `(embed_dim,)`.
        split: branch i has the i-th part of the hidden units for itself.
        dropout, activation: of the summed hidden layer.
    """
    batch, branches, time, head_dim = heads.shape
    assert up.bias is not None and down.bias is not None
    ffn_dim, embed_dim = len(up.bias), len(down.bias)
    rows = heads.transpose(1, 2).reshape(batch * time, branches, head_dim)
    scaled = branch_output * kappa.view(-1, 1, 1)  # κᵢWᵢ
    units = ffn_dim // branches if split else ffn_dim
    sizes = (batch * time, branches, head_dim, embed_dim, units)
    # An exported program goes one way, for batches of any size.
    folds = torch.compiler.is_exporting() or _folded_macs(*sizes) < _unfolded_macs(*sizes)
    x = rows.transpose(0, 1)  # (branches, rows, head_dim)
    if split:
        maps = _maps_of_branches(up, branches)
        x, maps = (x, scaled @ maps) if folds else (x @ scaled, maps)
        hidden = _split_hidden(x, maps, up.bias, alpha, activation)
    elif folds:
        maps = up.product(scaled.flatten(0, 1)).unflatten(0, (branches, head_dim))
        hidden = weighted_activation(rows, maps, up.bias, alpha, activation)
    else:
        each = ACTIVATIONS[activation](up(x @ scaled))  # (branches, rows, ffn_dim)
        hidden = (each * alpha.to(each.dtype).view(-1, 1, 1)).sum(0)
    output = down(F.dropout(hidden, dropout), bias_factor=alpha.sum())
    return output.unflatten(0, (batch, time))


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

    From z `(branches, rows, embed_dim)` to `(rows, embed_dim)`. Of b₂ each FFNᵢ has the part that
    makes it b₂ in the sum.
    """
    assert up.bias is not None
    if split:
        maps = _maps_of_branches(up, len(alpha))
        hidden = _split_hidden(z, maps, up.bias, factor * alpha, activation)
    else:
        maps = up.matrix.t().expand(len(alpha), -1, -1)
        hidden = weighted_activation(z.transpose(0, 1), maps, up.bias, alpha, activation)
    return down(F.dropout(hidden, dropout), bias_factor=alpha.sum())


def branched_macs(
    tokens: int,
    branches: int,
    head_dim: int,
    embed_dim: int,
    ffn_dim: int,
    up_dim: int,
    *,
    split: bool = False,
) -> int:
    """Multiply-accumulates of `branched_feed_forward`, whichever way it takes.

    `up_dim` is the width of the map into the hidden layer, `ffn_dim` that of the map out of it.

    >>> branched_macs(2048, 8, 64, 512, 2048, 2048) == 2048 * (512 * 512 + 2 * 512 * 2048)  # folded
    True
    """
    units = up_dim // branches if split else up_dim
    sizes = (tokens, branches, head_dim, embed_dim, units)
    return min(_folded_macs(*sizes), _unfolded_macs(*sizes)) + tokens * ffn_dim * embed_dim


def streams_macs(
    tokens: int,
    branches: int,
    head_dim: int,
    embed_dim: int,
    ffn_dim: int,
    up_dim: int,
    *,
    split: bool = True,
) -> int:
    """Multiply-accumulates from what the heads have read to the output, with residual streams."""
    into = up_dim if split else branches * up_dim
    return tokens * embed_dim * (branches * head_dim + into + ffn_dim)


def _maps_of_branches(up: LinearMap, branches: int) -> Tensor:
    """The i-th part of the hidden units for branch i, `(branches, embed_dim, units)`."""
    return up.matrix.unflatten(0, (branches, -1)).transpose(1, 2)


def _split_hidden(
    x: Tensor, maps: Tensor, bias: Tensor, alpha: Tensor, activation: Activation
) -> Tensor:
    """αᵢ f(xᵢ Aᵢ + bᵢ) of all branches side by side, `(rows, ffn_dim)`."""
    bias = bias.unflatten(0, (len(alpha), 1, -1))
    each = torch.baddbmm(bias.to(maps.dtype), x.to(maps.dtype), maps)  # (branches, rows, units)
    each = ACTIVATIONS[activation](each)
    return (each * alpha.to(each.dtype).view(-1, 1, 1)).transpose(0, 1).flatten(1)


def _folded_macs(tokens: int, branches: int, head_dim: int, embed_dim: int, units: int) -> int:
    """oᵢ (Wᵢ W₁) of all branches, for `units` hidden units each."""
    return branches * head_dim * units * (embed_dim + tokens)


def _unfolded_macs(tokens: int, branches: int, head_dim: int, embed_dim: int, units: int) -> int:
    """(oᵢ Wᵢ) W₁ of all branches."""
    return tokens * branches * embed_dim * (head_dim + units)


def weighted_activation(
    rows: Tensor, maps: Tensor, bias: Tensor, alpha: Tensor, activation: Activation = "relu"
) -> Tensor:
    """Σᵢ αᵢ f(oᵢ Aᵢ + b), `(rows, ffn_dim)`, without keeping the hidden layer of each branch.

    The shapes are o `(rows, branches, head_dim)`, A `(branches, head_dim, ffn_dim)`, b `(ffn_dim,)`
    and α `(branches,)`.
    """
    rows, bias = rows.to(maps.dtype), bias.to(maps.dtype)  # which autocast may have lowered
    way = _WeightedActivation(activation)
    if activation == "relu":
        return compute(way, rows, maps, bias, alpha)[0]
    # A compiler decides by itself what to keep, and `torch.func` knows no checkpoints.
    if torch.compiler.is_compiling() or is_transformed():
        return way.plain(rows, maps, bias, alpha)[0]
    again: tuple[Tensor] = checkpoint(
        way.plain, rows, maps, bias, alpha, use_reentrant=False, preserve_rng_state=False
    )
    return again[0]


class _WeightedActivation(NamedTuple):
    """`weighted_activation` in its two implementations; the fast one has ReLU alone.

    It takes some rows at a time, whose hidden layers are computed again: kept, those of all
    branches would be M times what a feed-forward keeps. With G the gradient and Dᵢ = G where
    oᵢAᵢ + b > 0, else 0:

        ∂oᵢ = αᵢ Dᵢ Aᵢᵀ,  ∂Aᵢ = αᵢ oᵢᵀ Dᵢ,  ∂b = Σᵢ αᵢ 1ᵀDᵢ,  ∂αᵢ = ⟨oᵢ, Dᵢ Aᵢᵀ⟩ + ⟨b, 1ᵀDᵢ⟩
    """

    activation: Activation

    def plain(self, rows: Tensor, maps: Tensor, bias: Tensor, alpha: Tensor) -> tuple[Tensor]:
        each = ACTIVATIONS[self.activation](torch.baddbmm(bias, rows.transpose(0, 1), maps))
        return ((each * alpha.to(each.dtype).view(-1, 1, 1)).sum(0),)

    def fast(self, rows: Tensor, maps: Tensor, bias: Tensor, alpha: Tensor) -> tuple[Tensor]:
        hidden = rows.new_empty(rows.size(0), maps.size(2))
        weights = alpha.to(rows.dtype).unsqueeze(0)  # (1, branches)
        with without_autocast(rows):
            for some in _chunks(rows, maps):
                each = torch.baddbmm(bias, rows[some].transpose(0, 1), maps).relu_()
                # (branches, rows, ffn_dim), summed over the branches as a product with α
                torch.mm(weights, each.flatten(1), out=hidden[some].view(1, -1))
        return (hidden,)

    def gradients(
        self, grad: Tensor, rows: Tensor, maps: Tensor, bias: Tensor, alpha: Tensor
    ) -> tuple[Tensor, ...]:
        # Sums over all rows want more digits than half precision has.
        exact = torch.promote_types(rows.dtype, torch.float32)
        grad_rows = torch.empty_like(rows, memory_format=torch.contiguous_format)
        grad_maps = torch.zeros_like(maps, dtype=exact, memory_format=torch.contiguous_format)
        columns = torch.zeros(maps.size(0), maps.size(2), dtype=exact, device=maps.device)
        grad_alpha = torch.zeros_like(alpha, dtype=exact)
        with without_autocast(rows):
            for some in _chunks(rows, maps):
                x = rows[some].transpose(0, 1)  # (branches, rows, head_dim)
                passed = torch.baddbmm(bias, x, maps)  # (branches, rows, ffn_dim)
                torch.ops.aten.threshold_backward.grad_input(
                    grad[some].expand_as(passed), passed, 0, grad_input=passed
                )
                back = passed @ maps.transpose(1, 2)  # (branches, rows, head_dim)
                grad_maps += x.transpose(1, 2) @ passed
                columns += passed.sum(1, dtype=exact)
                grad_alpha += (x * back).sum((1, 2), dtype=exact)
                grad_rows[some] = (back * alpha.to(back.dtype).view(-1, 1, 1)).transpose(0, 1)
        weights = alpha.to(exact)
        grad_maps *= weights.view(-1, 1, 1)
        grad_alpha += columns @ bias.to(exact)
        found = ((grad_maps, maps), (weights @ columns, bias), (grad_alpha, alpha))
        return grad_rows, *(gradient.to(like.dtype) for gradient, like in found)


def _chunks(rows: Tensor, maps: Tensor) -> Iterator[slice]:
    """Yields slices of rows, short enough that the hidden layers of all branches stay small."""
    units = _GPU_HIDDEN_UNITS if rows.is_cuda else _HIDDEN_UNITS
    size = max(1, units // max(1, maps.size(0) * maps.size(2)))
    return (slice(start, start + size) for start in range(0, rows.size(0), size))
