"""Random points of the probability simplex."""

import torch
from torch import Tensor


def random_simplex(entries: int, *, generator: torch.Generator | None = None) -> Tensor:
    """A random point of the simplex, `(entries,)`, each as likely as any other: Dirichlet(1, …, 1).

    >>> random_simplex(1)
    tensor([1.])
    """
    # Exponential draws divided by their sum. 1 − u is never 0, whose logarithm is infinite.
    draws = -torch.log1p(-torch.rand(entries, generator=generator, dtype=torch.float64))
    return (draws / draws.sum()).float()
