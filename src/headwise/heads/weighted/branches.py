"""Branches of attention, each through the feed-forward by itself, and their weighted sum.

    y = Σᵢ αᵢ FFN(κᵢ oᵢ Wᵢ),  FFN(z) = ReLU(z W₁ + b₁) W₂ + b₂

(Ahmed et al. 2017, *Weighted Transformer Network for Machine Translation*,
https://arxiv.org/abs/1711.02132, equations 6 and 7.)

Branch by branch that is M feed-forwards. Two rearrangements make it cost what one does:

    Σᵢ αᵢ FFN(zᵢ) = (Σᵢ αᵢ ReLU(zᵢ W₁ + b₁)) W₂ + (Σᵢ αᵢ) b₂      one product with W₂
    zᵢ W₁ = κᵢ oᵢ (Wᵢ W₁)                                       which maps head_dim, not embed_dim

The product Wᵢ W₁, here called folding, is made once for a batch, and is left out where there are so
few tokens (in decoding step by step) that it costs more than it saves. Both hold for any activation
in the place of the ReLU: they change nothing behind W₁ or before W₂.

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
from headwise.ops.twins import compute

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
    """Σᵢ αᵢ FFN(κᵢ oᵢ Wᵢ) over the branches i.

    Args:
        heads: o, what each branch read, `(batch, branches, time, head_dim)`.
        branch_output: W, `(branches, head_dim, embed_dim)`.
        kappa, alpha: `(branches,)`.
        up: W₁ and b₁, `(ffn_dim, embed_dim)` and `(ffn_dim,)`.
        down: W₂ and b₂, `(embed_dim, ffn_dim)` and `(embed_dim,)`.
        split: branch i has the i-th part of the hidden units for itself, rather than a turn with
            all of them.
        dropout: probability with which a unit of the summed hidden layer is dropped.
        activation: that of the feed-forward, by its name in `headwise.ops.activations`.

    Returns:
        `(batch, time, embed_dim)`.
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
    if split:
        hidden = _split_hidden(rows, scaled, alpha, up.matrix, up.bias, folds, activation)
    elif folds:
        maps = up.product(scaled.flatten(0, 1)).unflatten(0, (branches, head_dim))
        hidden = weighted_activation(rows, maps, up.bias, alpha, activation)
    else:
        z = rows.transpose(0, 1) @ scaled  # (branches, rows, embed_dim)
        each = ACTIVATIONS[activation](up(z))  # (branches, rows, ffn_dim)
        hidden = (each * alpha.to(each.dtype).view(-1, 1, 1)).sum(0)
    hidden = F.dropout(hidden, dropout)
    output = down(hidden, bias_factor=alpha.sum())
    return output.unflatten(0, (batch, time))


def branched_macs(
    tokens: int, branches: int, head_dim: int, embed_dim: int, ffn_dim: int, *, split: bool = False
) -> int:
    """Multiply-accumulates of `branched_feed_forward`, whichever way it takes.

    >>> branched_macs(10, 8, 64, 512, 2048)  # unfolded: eight products with W₁
    96993280
    >>> branched_macs(2048, 8, 64, 512, 2048)  # folded: those of one feed-forward
    4831838208
    >>> 2048 * (512 * 512 + 2 * 512 * 2048)
    4831838208
    """
    units = ffn_dim // branches if split else ffn_dim
    sizes = (tokens, branches, head_dim, embed_dim, units)
    return min(_folded_macs(*sizes), _unfolded_macs(*sizes)) + tokens * ffn_dim * embed_dim


def weighted_activation(
    rows: Tensor, maps: Tensor, bias: Tensor, alpha: Tensor, activation: Activation = "relu"
) -> Tensor:
    """Σᵢ αᵢ f(oᵢ Aᵢ + b), without keeping the hidden layer of each branch.

    Args:
        rows: o, `(rows, branches, head_dim)`.
        maps: A, `(branches, head_dim, ffn_dim)`.
        bias: b, `(ffn_dim,)`.
        alpha: `(branches,)`.
        activation: f, by its name.

    Returns:
        `(rows, ffn_dim)`.
    """
    rows, bias = rows.to(maps.dtype), bias.to(maps.dtype)  # which autocast may have lowered
    way = _WeightedActivation(activation)
    if activation == "relu":
        return compute(way, rows, maps, bias, alpha)[0]
    if torch.compiler.is_compiling():  # the compiler decides by itself what to keep
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
        grad_bias = weights @ columns
        return (
            grad_rows,
            grad_maps.to(maps.dtype),
            grad_bias.to(bias.dtype),
            grad_alpha.to(alpha.dtype),
        )


def _chunks(rows: Tensor, maps: Tensor) -> Iterator[slice]:
    """Yields slices of rows, short enough that the hidden layers of all branches stay small."""
    units = _GPU_HIDDEN_UNITS if rows.is_cuda else _HIDDEN_UNITS
    size = max(1, units // max(1, maps.size(0) * maps.size(2)))
    return (slice(start, start + size) for start in range(0, rows.size(0), size))


def _split_hidden(
    rows: Tensor,
    scaled: Tensor,
    alpha: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    folds: bool,
    activation: Activation,
) -> Tensor:
    """αᵢ f(zᵢ W₁ᵢ + b₁ᵢ) of all branches side by side, `(rows, ffn_dim)`."""
    branches = len(alpha)
    up = up_weight.unflatten(0, (branches, -1)).transpose(1, 2)  # (branches, embed_dim, units)
    x = rows.transpose(0, 1)  # (branches, rows, head_dim)
    x, maps = (x, scaled @ up) if folds else (x @ scaled, up)
    bias = up_bias.unflatten(0, (branches, 1, -1))
    each = ACTIVATIONS[activation](torch.baddbmm(bias, x, maps))  # (branches, rows, units)
    each = each * alpha.to(each.dtype).view(-1, 1, 1)
    return each.transpose(0, 1).flatten(1)


def _folded_macs(tokens: int, branches: int, head_dim: int, embed_dim: int, units: int) -> int:
    """oᵢ (Wᵢ W₁) of all branches, for `units` hidden units each."""
    return branches * head_dim * units * (embed_dim + tokens)


def _unfolded_macs(tokens: int, branches: int, head_dim: int, embed_dim: int, units: int) -> int:
    """(oᵢ Wᵢ) W₁ of all branches."""
    return tokens * branches * embed_dim * (head_dim + units)
