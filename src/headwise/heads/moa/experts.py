"""Products of expert matrices: every token is multiplied by the matrices of its own k experts.

Zhang et al. 2022, *Mixture of Attention Heads: Selecting Attention Heads Per Token*,
https://arxiv.org/abs/2210.05144, needs two of them. With token n assigned to experts
e(n, 1) … e(n, k):

    project    y[n, j] = x[n] W[e(n, j)]                      queries of the selected heads
    combine    y[n]    = Σ_j  s[n, j] · o[n, j] W[e(n, j)]    weighted sum of their outputs

Under autocast they work in its dtype, as `nn.Linear` does.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.ops.expert_products import gather_rows, scatter_rows
from headwise.ops.precision import as_autocast


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
