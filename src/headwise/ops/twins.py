"""Functions with two implementations: a fast one, and a plain one for what that does not support.

PyTorch differentiates the plain one by itself, any number of times, and `torch.func` can transform
it. The fast one has a backward pass of its own, which keeps fewer tensors and takes less time.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


class Twins(Protocol):
    """The two ways to compute a function of tensors, each a method.

    Both return a tuple: the result, and perhaps further tensors, which have no gradient. What
    `plain` returns is differentiable where it has one, and detached where it has none.
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
    """Computes the function in the fast way, or in the plain one where that has to be.

    The plain way is taken by `torch.compile` and `torch.export`, and for `torch.func.vmap`,
    forward-mode derivatives, and derivatives of the second and higher order.
    """
    if torch.compiler.is_compiling():
        return twins.plain(*inputs)
    function = _Transformed if is_transformed() else _Fast
    outputs: tuple[Tensor, ...] = function.apply(twins, *inputs)
    return outputs


def is_transformed() -> bool:
    """Whether a transform of `torch.func` is being applied.

    An `autograd.Function` that supports these transforms costs more to call, which is noticeable
    where there is little to compute.
    """
    # `autograd.Function.apply` asks by this function too; PyTorch has no public one.
    return torch._C._are_functorch_transforms_active()


class _Fast(torch.autograd.Function):
    """The fast way; it keeps its inputs alone."""

    @staticmethod
    def forward(ctx: Any, twins: Twins, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = twins.fast(*inputs)
        _keep(ctx, twins, inputs, outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        # With gradients enabled, these are to be differentiated once more.
        if torch.is_grad_enabled() or is_transformed():
            return None, *_FastGradients.apply(ctx.twins, grad, *ctx.saved_tensors)
        return None, *ctx.twins.gradients(grad, *ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        # The gradient of the product of gradient and tangents, since PyTorch does not nest
        # forward-mode derivatives.
        inputs = ctx.saved_tensors
        result, pull = _pull(ctx.twins, *inputs)
        pairs = zip(inputs, tangents, strict=True)
        known = [torch.zeros_like(x) if tangent is None else tangent for x, tangent in pairs]
        _, push = _vjp(pull, torch.zeros_like(result))
        (tangent,) = push(tuple(known))
        return tangent, *(None for _ in range(ctx.further))


class _Transformed(_Fast):
    """The same, as `torch.func` can transform it."""

    @staticmethod
    def forward(twins: Twins, *inputs: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return twins.fast(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        twins, *tensors = inputs
        _keep(ctx, twins, tensors, output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], twins: Twins, *inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], int]:
        return torch.vmap(twins.plain, in_dims[1:])(*inputs), 0


class _FastGradients(torch.autograd.Function):
    """The fast backward pass, which can be differentiated once more."""

    @staticmethod
    def forward(twins: Twins, grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        return twins.gradients(grad, *inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.twins, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        twins = ctx.twins
        _, pull = _vjp(lambda *xs: _plain_gradients(twins, *xs), *ctx.saved_tensors)
        return None, *pull(grads)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], twins: Twins, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], int]:
        return torch.vmap(lambda *xs: _plain_gradients(twins, *xs), in_dims[1:])(*tensors), 0


def _keep(ctx: Any, twins: Twins, inputs: Sequence[Tensor], outputs: tuple[Tensor, ...]) -> None:
    ctx.twins, ctx.further = twins, len(outputs) - 1
    ctx.save_for_backward(*inputs)
    ctx.save_for_forward(*inputs)
    ctx.mark_non_differentiable(*outputs[1:])


def _pull(twins: Twins, *inputs: Tensor) -> tuple[Any, Any]:
    """The result of the plain way, and what makes gradients of the inputs from its gradient."""
    return _vjp(lambda *xs: twins.plain(*xs)[0], *inputs)


def _plain_gradients(twins: Twins, grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    result, pull = _pull(twins, *inputs)
    gradients: tuple[Tensor, ...] = pull(grad.to(result.dtype))
    return gradients


def _vjp(function: Callable[..., Any], *inputs: Tensor) -> tuple[Any, Any]:
    result, pull, *_ = torch.func.vjp(function, *inputs)
    return result, pull
