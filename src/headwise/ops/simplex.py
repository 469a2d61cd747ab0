"""The probability simplex: points with no negative entry, whose entries sum to 1."""

import torch
from torch import Tensor


def random_simplex(entries: int, *, generator: torch.Generator | None = None) -> Tensor:
    """A random point of the simplex, `(entries,)`, each as likely as any other: Dirichlet(1, …, 1).

    >>> random_simplex(1)
    tensor([1.])
    """
    # Exponential draws divided by their sum. 1 − u is never 0, whose logarithm is infinite.
    drawn = torch.rand(entries, generator=generator, dtype=torch.float64, device="cpu")
    draws = -torch.log1p(-drawn)
    return (draws / draws.sum()).float()


def project_to_simplex(x: Tensor) -> Tensor:
    """The nearest point of the simplex, over the last dimension.

        argmin_p ‖p − x‖²  subject to  pᵢ ≥ 0, Σᵢ pᵢ = 1

    It is max(x − θ, 0), with the one θ that makes the sum 1. The entries that stay positive are
    the largest ones, so that sorting finds θ (Duchi et al. 2008, *Efficient Projections onto the
    ℓ1-Ball for Learning in High Dimensions*, https://doi.org/10.1145/1390156.1390191).

    >>> project_to_simplex(torch.tensor([[0.9, 0.3], [3.0, -1.0]]))
    tensor([[0.8000, 0.2000],
            [1.0000, 0.0000]])
    """
    dtype = x.dtype
    x = x.to(torch.promote_types(dtype, torch.float32))  # half precision would miss 1 by 3%
    # To add the same to all entries changes nothing; without it large ones would swallow the 1.
    x = x - x.amax(-1, keepdim=True)
    largest_first = x.sort(-1, descending=True).values
    count = torch.arange(1, x.size(-1) + 1, device=x.device)
    # If only the n largest entries stayed positive, this is what θ would be: (..., entries).
    theta = (largest_first.cumsum(-1) - 1) / count
    # At least one, also where NaN compares with nothing.
    positive = (largest_first > theta).sum(-1, keepdim=True).clamp(min=1)
    return (x - theta.gather(-1, positive - 1)).clamp(min=0).to(dtype)
