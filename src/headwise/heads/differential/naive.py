"""The difference of two softmax maps as the equation reads, for the tests of the layer."""

import math

import torch
from torch import Tensor


def naive_difference(
    first: Tensor, second: Tensor, logit: float, keys: Tensor, values: Tensor
) -> Tensor:
    """What one head reads at one position.

    Args:
        first, second: `(head_dim,)`, its two queries.
        logit: λ of the head at the position.
        keys, values: `(keys, head_dim)`, those that it sees.
    """
    share = 1 / (1 + math.exp(-logit))
    read = torch.zeros_like(values[0])
    for query, sign in ((first, 1.0), (second, -share)):
        scores = [(query @ key).item() / math.sqrt(len(key)) for key in keys]
        total = sum(math.exp(score) for score in scores)
        for score, value in zip(scores, values, strict=True):
            read = read + sign * math.exp(score) / total * value
    return read
