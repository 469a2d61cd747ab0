"""The activations of feed-forwards, by the names that configurations and recipes give them.

Shazeer 2020, *GLU Variants Improve Transformer*, https://arxiv.org/abs/2002.05202, multiplies two
halves of the hidden layer: `swiglu` and `geglu` take twice the width that they give back.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "leaky-relu", "swiglu", "geglu"]


def _gated(gate: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    first, second = hidden.chunk(2, dim=-1)
    return gate(first) * second


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # x Φ(x) with the normal distribution itself
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # as GPT-2
    "silu": F.silu,  # x σ(x), also called swish
    "leaky-relu": F.leaky_relu,  # of slope 0.01 below zero
    "swiglu": partial(_gated, F.silu),
    "geglu": partial(_gated, F.gelu),
}
GATED = ("swiglu", "geglu")


def hidden_width(activation: str, ffn_dim: int) -> int:
    """How wide the map into a hidden layer is that has `ffn_dim` units behind the activation.

    >>> hidden_width("relu", 8), hidden_width("swiglu", 8)
    (8, 16)
    """
    return 2 * ffn_dim if activation in GATED else ffn_dim
