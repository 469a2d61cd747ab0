"""The activations of feed-forwards, by the names that configurations and recipes give them."""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Activation = Literal["relu", "gelu", "leaky-relu"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # x Φ(x) with the normal distribution itself, not its approximation by tanh
    "leaky-relu": F.leaky_relu,  # of slope 0.01 below zero
}
