"""Σᵢ αᵢ f(oᵢ Aᵢ + b) over branches, without keeping the hidden layer of each."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headwise.ops.activations import ACTIVATIONS, Activation
from headwise.ops.precision import without_autocast
from headwise.ops.twins import compute

# Hidden units of all branches at a time: 4 MiB in float32, which stay in the processor's cache. A
# GPU wants more work at once.
_HIDDEN_UNITS = 2**20
_GPU_HIDDEN_UNITS = 2**24


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
