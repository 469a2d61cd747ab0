"""Activations and norms, by the names that recipes give them, and ways to compute layers."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "leaky-relu", "swiglu", "geglu"]
NormKind = Literal["layer", "rms"]


def _gated(gate: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    first, second = hidden.chunk(2, dim=-1)
    return gate(first) * second


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # x Φ(x) with the normal distribution itself
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # as GPT-2
    "silu": F.silu,  # x σ(x), also called swish
    "leaky-relu": F.leaky_relu,  # of slope 0.01 below zero
    # Shazeer 2020, https://arxiv.org/abs/2002.05202: two halves of the hidden layer, multiplied.
    "swiglu": partial(_gated, F.silu),
    "geglu": partial(_gated, F.gelu),
}


def hidden_width(activation: str, ffn_dim: int) -> int:
    """The width of the map into a hidden layer with `ffn_dim` units behind the activation.

    >>> hidden_width("relu", 8), hidden_width("swiglu", 8)
    (8, 16)
    """
    return 2 * ffn_dim if activation in ("swiglu", "geglu") else ffn_dim


def make_norm(kind: NormKind, width: int, eps: float = 1e-5) -> nn.Module:
    """A layer norm, or a norm by the root mean square, which has no mean and no shift.

        layer   (x - mean x) / √(var x + ε) · γ + β
        rms     x / √(mean x² + ε) · γ

    Zhang & Sennrich 2019, *Root Mean Square Layer Normalization*, https://arxiv.org/abs/1910.07467.
    """
    return RMSNorm(width, eps) if kind == "rms" else nn.LayerNorm(width, eps)


class RMSNorm(nn.RMSNorm):
    """PyTorch's, with the output in the type of the input, as of all maps under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        # PyTorch has a fused kernel only where input and weight are of one type.
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """While this context is open, products on a tensor's device have the dtype of their factors."""
    device = x.device.type  # of which "meta" has no autocast
    is_autocast = not x.is_meta and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_autocast else nullcontext()


def at_least_float32(x: Tensor) -> Tensor:
    """A tensor in float32, or in float64 if it is; half precision has too few digits for sums."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def in_weight_dtype(linear: nn.Module, x: Tensor) -> Tensor:
    """An input of a linear map in the type of its weight, unless that is quantised."""
    dtype = getattr(linear.weight, "dtype", None)
    return x if dtype is None or not dtype.is_floating_point else x.to(dtype)


def in_float32(linear: nn.Module, x: Tensor) -> Tensor:
    """A linear map in the type of its weight, under autocast too; the result in float32 at least.

    Routers decide by it: half precision would choose otherwise where units are nearly equal.
    """
    with without_autocast(x):
        y: Tensor = linear(in_weight_dtype(linear, x))
    return at_least_float32(y)


def is_traced() -> bool:
    """Whether a compiler or `torch.func` asks for one way, whatever the values and sizes."""
    # PyTorch has no public way to ask whether a transform of `torch.func` is being applied.
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def checkpointed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The function, which a backward pass computes once more, so that its inputs alone are kept."""
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
