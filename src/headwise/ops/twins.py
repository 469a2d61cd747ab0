"""Functions with two implementations: a fast one, and a plain one for what that does not support.

PyTorch differentiates the plain one by itself, any number of times, and `torch.func` can transform
it. The fast one has a backward pass of its own, which keeps fewer tensors and takes less time.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


class Twins(Protocol):
    """The two ways to compute a function of tensors.

    Both return a tuple: the result, and perhaps further tensors, which have no gradient.
    """

    @property
    def plain(self) -> Function:
        """By plain operations, from the inputs."""

    @property
    def fast(self) -> Function:
        """The same, in the fast way."""

    @property
    def gradients(self) -> Function:
        """The gradients of the inputs, from that of the result and the inputs."""


def compute(twins: Twins, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Computes the function in the fast way; compilers and `torch.func` get the plain one."""
    if torch.compiler.is_compiling() or is_transformed():
        return twins.plain(*inputs)
    if not torch.is_grad_enabled():
        return twins.fast(*inputs)
    outputs: tuple[Tensor, ...] = _Fast.apply(twins, *inputs)
    return outputs


def is_transformed() -> bool:
    """Whether a transform of `torch.func` is being applied."""
    # `autograd.Function.apply` asks by this function too; PyTorch has no public one.
    return torch._C._are_functorch_transforms_active()


class _Fast(torch.autograd.Function):
    """The fast way; it keeps its inputs alone."""

    @staticmethod
    def forward(ctx: Any, twins: Twins, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = twins.fast(*inputs)
        ctx.twins = twins
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, *ctx.twins.gradients(grad, *inputs)
        # These gradients are to be differentiated once more.
        needed = [x for x, needs in zip(inputs, ctx.needs_input_grad[1:], strict=True) if needs]
        result = ctx.twins.plain(*inputs)[0]
        found = torch.autograd.grad(result, needed, grad.to(result.dtype), create_graph=True)
        gradients = iter(found)
        return None, *(next(gradients) if needs else None for needs in ctx.needs_input_grad[1:])
