r"""Expert matrix products: every token is multiplied by the matrices of its own k experts.

Mixture of Attention Heads: Selecting Attention Heads Per Token (Zhang et al., EMNLP 2022),
https://arxiv.org/abs/2210.05144, needs two of them. With token n assigned to experts
e(n, 1) ... e(n, k):

    project    y[n, j] = x[n] W[e(n, j)]                         queries of the selected heads
    combine    y[n]    = Σ_j  s[n, j] · o[n, j] W[e(n, j)]       weighted sum of their outputs

Both are products over the k·n assignments, sorted by expert: see `products`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.heads.moa.products import gather_rows, scatter_rows
from headwise.ops.precision import as_autocast


class ExpertAssignment(NamedTuple):
    """Which experts each token uses, sorted by expert. Made by :func:`assign_experts`.

    An assignment r = n * top_k + j says that the j-th choice of token n is ``indices[n, j]``.
    """

    indices: Tensor  # (tokens, top_k) the experts of each token
    order: Tensor  # (tokens * top_k,) the assignments, sorted by expert
    token: Tensor  # (tokens * top_k,) the tokens of the sorted assignments
    ends: Tensor  # (experts,) int32; expert e owns order[ends[e - 1] : ends[e]]


def assign_experts(indices: Tensor, num_experts: int) -> ExpertAssignment:
    """Sort the tokens by expert, once for all the products that use this choice of experts.

    Args:
        indices: experts of each token, ``(tokens, top_k)``, integers in ``[0, num_experts)``.
            A value out of range raises an error on the CPU; on other devices, where looking at
            values would stall the queue of kernels, it is the caller's to avoid.
        num_experts: how many experts there are, chosen or not.

    Raises:
        ValueError: if ``indices`` is not an integer matrix, or has a value out of range.

    Example:
        >>> assign_experts(torch.tensor([[2, 0], [0, 1]]), num_experts=4).ends.tolist()
        [2, 3, 4, 4]
    """
    if num_experts < 1:
        raise ValueError(f"num_experts must be at least 1, got {num_experts}")
    if indices.dim() != 2 or indices.is_floating_point() or indices.dtype == torch.bool:
        raise ValueError(
            f"indices must be integers of shape (tokens, top_k), got {indices.dtype} "
            f"of shape {tuple(indices.shape)}"
        )
    if indices.device.type == "cpu" and indices.numel() and not torch.compiler.is_compiling():
        low, high = (int(bound) for bound in indices.aminmax())
        if low < 0 or high >= num_experts:
            raise ValueError(
                f"indices must lie in [0, num_experts) = [0, {num_experts}), "
                f"got values from {low} to {high}"
            )
    return sort_by_expert(indices, num_experts)


def sort_by_expert(indices: Tensor, num_experts: int) -> ExpertAssignment:
    """What :func:`assign_experts` returns, of indices that are known to be in range."""
    by_expert, order = indices.reshape(-1).sort(stable=True)
    experts = torch.arange(num_experts, device=indices.device, dtype=indices.dtype)
    ends = torch.searchsorted(by_expert, experts, right=True, out_int32=True)
    return ExpertAssignment(indices, order, order // max(indices.shape[1], 1), ends)


def expert_project(x: Tensor, weight: Tensor, assignment: ExpertAssignment) -> Tensor:
    """Project each token by the matrices of its experts: ``y[n, j] = x[n] @ weight[e(n, j)]``.

    Under autocast it works in autocast's dtype, as ``nn.Linear`` does.

    Args:
        x: ``(tokens, embed_dim)``.
        weight: ``(experts, embed_dim, head_dim)``.
        assignment: the experts of each token, from :func:`assign_experts`.

    Returns:
        ``(tokens, top_k, head_dim)``.

    Raises:
        ValueError: if the shapes do not fit each other.

    Example:
        >>> assignment = assign_experts(torch.tensor([[2, 0], [0, 1], [1, 2]]), num_experts=4)
        >>> expert_project(torch.randn(3, 8), torch.randn(4, 8, 5), assignment).shape
        torch.Size([3, 2, 5])
    """
    tokens, top_k = assignment.indices.shape
    _check_shape("x", x, (tokens, weight.shape[1] if weight.dim() == 3 else None))
    _check_shape("weight", weight, (assignment.ends.numel(), x.shape[1], None))
    x, weight = as_autocast(x, weight)
    rows = gather_rows(x, weight, assignment.order, assignment.token, assignment.ends)
    return rows.view(tokens, top_k, weight.shape[2])


def expert_combine(
    heads: Tensor, weight: Tensor, assignment: ExpertAssignment, scale: Tensor
) -> Tensor:
    """Sum what a token's experts make of it: ``y[n] = Σ_j scale[n, j] * heads[n, j] @ W[e(n, j)]``.

    Under autocast it works in autocast's dtype, as ``nn.Linear`` does.

    Args:
        heads: ``(tokens, top_k, head_dim)``.
        weight: ``(experts, head_dim, embed_dim)``.
        assignment: the experts of each token, from :func:`assign_experts`.
        scale: ``(tokens, top_k)``, how much each chosen expert counts.

    Returns:
        ``(tokens, embed_dim)``.

    Raises:
        ValueError: if the shapes do not fit each other.

    Example:
        >>> assignment = assign_experts(torch.tensor([[2, 0], [0, 1], [1, 2]]), num_experts=4)
        >>> heads, scale = torch.randn(3, 2, 5), torch.full((3, 2), 0.5)
        >>> expert_combine(heads, torch.randn(4, 5, 8), assignment, scale).shape
        torch.Size([3, 8])
    """
    tokens, top_k = assignment.indices.shape
    _check_shape("heads", heads, (tokens, top_k, weight.shape[1] if weight.dim() == 3 else None))
    _check_shape("weight", weight, (assignment.ends.numel(), heads.shape[2], None))
    _check_shape("scale", scale, (tokens, top_k))
    heads, weight = as_autocast(heads, weight)
    # Scaling the heads costs head_dim per assignment, scaling their products would cost embed_dim.
    rows = (heads * scale.unsqueeze(-1)).to(heads.dtype).reshape(tokens * top_k, heads.shape[2])
    plan = (assignment.order, assignment.token, assignment.ends)
    return scatter_rows(rows, weight, *plan, tokens)


def _check_shape(name: str, value: Tensor, expected: tuple[int | None, ...]) -> None:
    """Compare a shape to the expected one, in which None may be any size."""
    fits = value.dim() == len(expected) and all(
        size in (None, given) for size, given in zip(expected, value.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in expected)
        raise ValueError(f"{name} must have the shape ({wanted}), got {tuple(value.shape)}")
