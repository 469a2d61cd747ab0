"""The weights of the branches: how κ and α come about, and which branches they leave in.

Ahmed et al. 2017, *Weighted Transformer Network for Machine Translation*,
https://arxiv.org/abs/1711.02132, learn κ and α on the simplex. Sections 3, 4.4 and 4.5 name what
they tried beside that, and found worse: a softmax, random weights, and a gate that keeps the
branches of largest α.
"""

from typing import Literal

import torch
from torch import Tensor

Form = Literal["simplex", "softmax", "random"]


def weights_in_use(parameter: Tensor | None, form: Form, *, like: Tensor, training: bool) -> Tensor:
    """κ or α as a forward pass uses it, `(branches,)`.

    Args:
        parameter: what is learned, `(branches,)`; None if nothing is.
        form: `"simplex"`: the parameter itself, which its rule of training keeps on the simplex;
            `"softmax"`: the softmax of the parameter; `"random"`: a random point of the simplex
            while training, another one at each call, and 1/M otherwise.
        like: has a row for each branch, and the dtype and device of random weights.
        training: whether the module is in training.
    """
    if form == "softmax":
        assert parameter is not None
        return parameter.softmax(0)
    if form == "simplex":
        assert parameter is not None
        return parameter
    branches = like.size(0)
    if not training:
        return like.new_full((branches,), 1 / branches)
    draws = torch.empty_like(like[:, 0, 0], dtype=torch.float32).exponential_()
    return (draws / draws.sum()).to(like.dtype)  # Dirichlet(1, …, 1)


def keep_largest(alpha: Tensor, top_k: int) -> Tensor:
    """α with all but its `top_k` largest entries set to zero, and these scaled to sum 1.

    >>> keep_largest(torch.tensor([0.5, 0.125, 0.25, 0.125]), 2)
    tensor([0.6667, 0.0000, 0.3333, 0.0000])
    """
    kept = alpha.topk(top_k)
    return torch.zeros_like(alpha).scatter(0, kept.indices, kept.values / kept.values.sum())
