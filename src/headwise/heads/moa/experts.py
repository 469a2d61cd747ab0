"""MoA's numerics: products with the matrices of each token's own k experts, and the two losses.

With token n assigned to experts e(n, 1) … e(n, k):

    project    y[n, j] = x[n] W[e(n, j)]                      queries of the selected heads
    combine    y[n]    = Σ_j  s[n, j] · o[n, j] W[e(n, j)]    weighted sum of their outputs

Under autocast they work in its dtype, as `nn.Linear` does. Of a few tokens, as in decoding step by
step, these are sums of rows of the matrices: sorting the tokens by expert would take longer.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.ops.expert_products import gather_rows, scatter_rows
from headwise.ops.masks import real_positions
from headwise.ops.precision import as_autocast
from headwise.ops.replicas import sum_over_replicas


class ExpertAssignment(NamedTuple):
    """Which experts each token uses, sorted by expert; made by `assign_experts`.

    Assignment r = n · top_k + j says that the j-th choice of token n is `indices[n, j]`.
    """

    indices: Tensor  # (tokens, top_k) the experts of each token
    order: Tensor  # (tokens * top_k,) the assignments, sorted by expert
    token: Tensor  # (tokens * top_k,) the tokens of the sorted assignments
    ends: Tensor  # (experts,) int32; expert e owns order[ends[e - 1] : ends[e]]


def assign_experts(indices: Tensor, num_experts: int) -> ExpertAssignment:
    """Sorts the tokens by expert, once for all the products that use this choice of experts.

    >>> assign_experts(torch.tensor([[2, 0], [0, 1]]), num_experts=4).ends.tolist()
    [2, 3, 4, 4]
    """
    by_expert, order = indices.reshape(-1).sort(stable=True)
    experts = torch.arange(num_experts, device=indices.device, dtype=indices.dtype)
    ends = torch.searchsorted(by_expert, experts, right=True, out_int32=True)
    return ExpertAssignment(indices, order, order // max(indices.shape[1], 1), ends)


def expert_project(x: Tensor, weight: Tensor, assignment: ExpertAssignment) -> Tensor:
    """Projects each token by the matrices of its experts.

    From x `(tokens, embed_dim)` and W `(experts, embed_dim, head_dim)` to `(tokens, top_k,
    head_dim)`.
    """
    indices, *plan = assignment
    x, weight = as_autocast(x, weight)
    return gather_rows(x, weight, *plan).view(*indices.shape, weight.shape[2])


def expert_combine(
    heads: Tensor, weight: Tensor, assignment: ExpertAssignment, scale: Tensor
) -> Tensor:
    """Sums what the experts of each token make of it.

    From o `(tokens, top_k, head_dim)`, W `(experts, head_dim, embed_dim)` and how much each chosen
    expert counts, `(tokens, top_k)`, to `(tokens, embed_dim)`.
    """
    indices, order, token, ends = assignment
    heads, weight = as_autocast(heads, weight)
    # Scaling the heads costs head_dim per assignment, scaling their products would cost embed_dim.
    rows = (heads * scale.unsqueeze(-1)).to(heads.dtype).reshape(-1, heads.shape[2])
    return scatter_rows(rows, weight, order, token, ends, indices.shape[0])


# Tokens of which sums of rows take less time than sorting, on one thread or two.
_FEW_TOKENS = 32
# Multiplications in float32 up to which a GPU is busier moving rows.
_MANY_MULTIPLICATIONS = 2**35


def computes_all(x: Tensor, weight: Tensor, top_k: int) -> bool:
    """Whether to compute all experts of all tokens, which are then one product of matrices.

    On a GPU that takes less time than moving each token's rows to its experts and back, up to
    several times the multiplications: bounds of an H100 (`benchmarks/gpu.py --parts products`).

    Args:
        x: `(batch, time, embed_dim)`.
        weight: of all experts, `(experts, embed_dim, head_dim)`.
        top_k: how many experts a token chooses.
    """
    times = 1
    if x.is_cuda:
        slow = x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        slow = slow and not torch.is_autocast_enabled("cuda")
        many = x.shape[0] * x.shape[1] * weight.numel() > _MANY_MULTIPLICATIONS
        times = 2 if slow and many else 8
    return len(weight) <= times * top_k


def are_few(indices: Tensor) -> bool:
    """Whether the tokens of choices `(..., top_k)` are so few that they are better not sorted."""
    return indices.device.type == "cpu" and indices[..., 0].numel() <= _FEW_TOKENS


def project_few(x: Tensor, weight: Tensor, indices: Tensor) -> Tensor:
    """`expert_project` of few tokens, which choose experts by `indices` `(tokens, top_k)`.

    A product of a vector and a matrix is a weighted sum of the matrix's rows. A bag of embeddings
    is that too, of rows of any of many matrices, and copies none of them.
    """
    x, weight = as_autocast(x, weight)
    top_k = indices.size(1)
    factors = x.repeat_interleave(top_k, 0)  # (tokens * top_k, embed_dim)
    sums = _sum_rows(indices.reshape(-1, 1), weight, factors)
    return sums.unflatten(0, (-1, top_k))


def combine_few(heads: Tensor, weight: Tensor, indices: Tensor, scale: Tensor) -> Tensor:
    """`expert_combine` of few tokens, of which there may be any number of dimensions.

    It sums rows, as `project_few` does.
    """
    heads, weight = as_autocast(heads, weight)
    factors = (heads * scale.unsqueeze(-1)).to(heads.dtype).flatten(-2)
    sums = _sum_rows(indices.flatten(0, -2), weight, factors.flatten(0, -2))
    return sums.unflatten(0, indices.shape[:-1])


def _sum_rows(experts: Tensor, weight: Tensor, factors: Tensor) -> Tensor:
    """Sums of all rows of some experts' matrices, each row times its factor.

    From experts `(sums, n)`, W `(experts, a, b)` and factors `(sums, n * a)` to `(sums, b)`.
    """
    size = weight.size(1)
    rows = experts.unsqueeze(-1) * size + torch.arange(size, device=experts.device)
    return F.embedding_bag(
        rows.flatten(1), weight.flatten(0, 1), mode="sum", per_sample_weights=factors
    )


def combine_all(heads: Tensor, weight: Tensor, indices: Tensor, scale: Tensor) -> Tensor:
    """`combine_few` of any tokens: one product, with zeros for experts that are not chosen."""
    rows = (heads * scale.unsqueeze(-1)).to(heads.dtype)
    every = rows.new_zeros(*rows.shape[:-2], *weight.shape[:2])
    every = every.scatter(-2, indices.unsqueeze(-1).expand_as(rows), rows)
    return every.flatten(-2) @ weight.flatten(0, 1)


class RouterLosses(NamedTuple):
    """Two losses, and of how many real tokens they are, at least 1: scalars."""

    balance: Tensor
    z: Tensor
    tokens: Tensor


def router_losses(
    logits: Tensor,
    indices: Tensor,
    padding: Tensor | None = None,
    *,
    per_sequence: bool = False,
    shared: bool = True,
) -> RouterLosses:
    """Balance loss and z-loss (equations 13 to 16), without padding.

        L_a = N Σᵢ fᵢ Pᵢ        f, P: tokens and probability given to expert i, each summing to 1
        L_z = mean over tokens of (log Σᵢ exp xᵢ)²

    The sums f and P are over all tokens of a batch, as in the authors' code: an expert may serve
    some sequences and not others. `per_sequence` takes L_a of each sequence that is not padding
    alone, as the paper writes it, and the mean of these.

    Args:
        logits: `(batch, time, experts)`, the router's logits x.
        indices: `(batch, time, top_k)`, the experts chosen.
        padding: boolean `(batch, time)`, `True` at padding.
        per_sequence: balance the experts within each sequence.
        shared: whether all processes of a data-parallel run share the batch.
    """
    experts, top_k = logits.size(-1), indices.size(-1)
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    real = real_positions(logits, padding)
    squares = (logits.logsumexp(-1).square() * real).sum()
    probability = (logits.softmax(-1) * real.unsqueeze(-1)).sum(1)  # (batch, experts)
    load = torch.zeros_like(probability)
    load.scatter_add_(1, indices.flatten(1), real.repeat_interleave(top_k, dim=1))
    tokens = real.sum(1, keepdim=True)  # (batch, 1)
    if per_sequence:
        balance = experts * _balance(load / top_k, probability, tokens)  # (batch,)
        sums = torch.stack([balance.sum(), (tokens > 0).sum().to(balance), squares, tokens.sum()])
        balance, sequences, squares, count = sum_over_replicas(sums, shared=shared)
        count = count.clamp(min=1)
        return RouterLosses(balance / sequences.clamp(min=1), squares / count, count)
    sums = torch.cat([probability.sum(0), load.sum(0), squares.reshape(1), tokens.sum().reshape(1)])
    sums = sum_over_replicas(sums, shared=shared)
    probability, load, squares, count = sums.split([experts, experts, 1, 1])
    balance = experts * _balance(load / top_k, probability, count)
    count = count.clamp(min=1).squeeze()
    return RouterLosses(balance, squares.squeeze() / count, count)


def _balance(load: Tensor, probability: Tensor, tokens: Tensor) -> Tensor:
    """Σᵢ fᵢ Pᵢ over the experts, the last dimension, of sums over so many tokens."""
    tokens = tokens.clamp(min=1)
    return (load / tokens * (probability / tokens)).sum(-1)
