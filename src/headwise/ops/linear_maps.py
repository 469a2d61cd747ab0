"""x Wᵀ + b, for equations that rearrange it and so cannot just call the linear module.

What a module computes need not be a product with its `weight`: an adapter (LoRA) adds to it, a
quantised map has no such tensor, a hook may change what goes in or out. Then the module is called.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LinearMap:
    """x Wᵀ + b of tensors W, `(out, in)`, and b, `(out,)`."""

    def __init__(self, matrix: Tensor, bias: Tensor | None) -> None:
        self.matrix = matrix
        self.bias = bias

    def __call__(self, x: Tensor, bias_factor: Tensor | None = None) -> Tensor:
        """x Wᵀ + b, or x Wᵀ + f · b with a factor, a scalar."""
        bias = self.bias if self.bias is None or bias_factor is None else bias_factor * self.bias
        return F.linear(x, self.matrix, bias)

    def product(self, x: Tensor) -> Tensor:
        """x Wᵀ."""
        return F.linear(x, self.matrix)


class ModuleMap(LinearMap):
    """x Wᵀ + b of a module whose output is linear in its input, however it is computed."""

    def __init__(self, module: nn.Module, in_features: int, like: Tensor) -> None:
        self.module = module
        self.in_features = in_features
        self.bias: Tensor = module(like.new_zeros(1, in_features)).squeeze(0)
        self._like = like

    @property
    def matrix(self) -> Tensor:  # type: ignore[override]
        like = self._like
        return self.product(torch.eye(self.in_features, dtype=like.dtype, device=like.device)).t()

    def __call__(self, x: Tensor, bias_factor: Tensor | None = None) -> Tensor:
        y: Tensor = self.module(x)
        return y if bias_factor is None else y + (bias_factor - 1) * self.bias

    def product(self, x: Tensor) -> Tensor:
        y: Tensor = self.module(x)
        return y - self.bias


def linear_map(module: nn.Module, in_features: int, like: Tensor) -> LinearMap:
    """The map of an `nn.Linear`, or of what has taken its place.

    `like` is a tensor of the dtype and on the device of its input.

    >>> plain, hooked = nn.Linear(2, 3), nn.Linear(2, 3)
    >>> handle = hooked.register_forward_hook(lambda module, args, output: 2 * output)
    >>> x = torch.randn(5, 2)
    >>> linear_map(plain, 2, x).matrix is plain.weight
    True
    >>> torch.allclose(linear_map(hooked, 2, x).matrix, 2 * hooked.weight)
    True
    """
    if type(module) is nn.Linear and not _is_wrapped(module):
        return LinearMap(module.weight, module.bias)
    return ModuleMap(module, in_features, like)


def _is_wrapped(module: nn.Module) -> bool:
    # Libraries that move weights between devices put a `forward` of their own into the object.
    # PyTorch has no public way to ask whether a module has hooks.
    hooks = module._forward_hooks or module._forward_pre_hooks
    return bool(hooks) or "forward" in module.__dict__
