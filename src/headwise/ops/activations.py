"""The activations of feed-forwards, by the names that configurations and recipes give them."""

from collections.abc import Callable
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from headwise.ops.bounds import check_among

Activation = Literal["relu", "gelu", "leaky-relu"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # x Φ(x) with the normal distribution itself, not its approximation by tanh
    "leaky-relu": F.leaky_relu,  # of slope 0.01 below zero
}


def check_activation(ffn_activation: str) -> None:
    """Raises `ValueError` if there is no activation of that name."""
    check_among("ffn_activation", ffn_activation, get_args(Activation))
