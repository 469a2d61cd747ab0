"""The activations of feed-forwards, by the names that configurations and recipes give them."""

from collections.abc import Callable
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

Activation = Literal["relu", "gelu", "leaky-relu"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # x Φ(x) with the normal distribution itself, not its approximation by tanh
    "leaky-relu": F.leaky_relu,  # of slope 0.01 below zero
}


def check_activation(ffn_activation: str) -> None:
    """Raises `ValueError` if there is no activation of that name.

    >>> check_activation("gelu")
    >>> check_activation("swish")
    Traceback (most recent call last):
    ValueError: ffn_activation is 'swish', expected one of 'relu', 'gelu', 'leaky-relu'
    """
    if ffn_activation not in ACTIVATIONS:
        expected = ", ".join(map(repr, get_args(Activation)))
        raise ValueError(f"ffn_activation is {ffn_activation!r}, expected one of {expected}")
