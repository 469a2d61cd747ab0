"""The losses that systems add, for models that do not add them by themselves.

A system notes the losses of its last calls. A loss holds the graph of its pass; it is kept no
longer than the rest of the pass keeps that graph, so that an output which is thrown away takes its
memory with it. What stays then is the number.
"""

import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.heads.watching import optimizer_steps
from headwise.ops.recompute import is_repeated
from headwise.ops.twins import is_transformed


def auxiliary_loss(model: nn.Module) -> Tensor:
    """Returns the sum of the losses that the systems in a model add, of its last forward pass.

    Systems whose paper adds a loss, such as MoA's and MoH's for balance, have it in
    `out.routing.loss`, its coefficients already in it. Models that use the output alone, such as
    PyTorch's layers, drop it; add this sum to the loss of such a model before `backward()`.

    What belongs to the last pass: all that systems have computed since this function was called
    last, a gradient went through it, or an optimizer stepped. Where gradients are off, and in code
    that `torch.compile` has compiled, the last call of each system counts alone. Called again
    without another pass, it returns the same again.

    Args:
        model: any module, also in wrappers such as `DistributedDataParallel` or `torch.compile`. Of
            systems within a system whose output has a loss, that loss counts and theirs do not.

    Returns:
        A scalar; 0 if no system adds a loss, or none has been called. Losses that are already in
        the loss which a model has returned, as headwise's models and gated ones do where they are
        given labels, are left out, with a warning.

    Raises:
        RuntimeError: called within a transform of `torch.func`, after a pass within one.

    Example:
        >>> import headwise as hw
        >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
        >>> layer.self_attn = hw.MixtureOfAttentionHeads(16, num_experts=4, top_k=2, head_dim=4)
        >>> y = layer(torch.randn(2, 5, 16))
        >>> loss = y.square().mean() + hw.auxiliary_loss(layer)
        >>> loss.backward()
    """
    if is_transformed() and any(
        losses.are_unknown for losses in map(_losses_of, model.modules()) if losses is not None
    ):
        raise RuntimeError(
            "headwise.auxiliary_loss is called within a transform of torch.func, such as grad or "
            "vmap, expected a call outside of one: what passes within it compute is not kept; add "
            "routing.loss of the outputs of the systems to your loss instead"
        )
    noted = list(_speaking(model, set()))
    total = torch.zeros((), device=next((p.device for p in model.parameters()), None))
    if torch.compiler.is_compiling():
        losses = [each.read_in_compiled() for each in noted]
        return sum((loss.to(total.device) for loss in losses if loss is not None), start=total)
    calls = [call for each in noted for call in each.read()]
    of_this_pass = [call for call in calls if call.is_of_this_pass]
    found = of_this_pass or calls
    added = [call for call in found if not call.is_added]
    if len(added) < len(found):
        warnings.warn(
            "headwise.auxiliary_loss is called for a model that has added these losses to the loss "
            "it has returned: they are left out here, so as not to count twice; use that loss "
            "alone, and out.auxiliary_loss for the number",
            stacklevel=2,
        )
    return sum((call.value.to(total.device) for call in added), start=total)


def _losses_of(module: nn.Module) -> "NotedLosses | None":
    """What a module has noted, if it is a system that adds a loss."""
    losses = getattr(module, "losses", None)
    return losses if isinstance(losses, NotedLosses) else None


def _speaking(module: nn.Module, seen: set[nn.Module]) -> Iterator["NotedLosses"]:
    """What the systems in a module have noted, but for those within another that has a loss."""
    if module in seen:
        return
    seen.add(module)
    losses = _losses_of(module)
    if losses is not None and losses.are_there:
        yield losses
        return
    for child in module.children():
        yield from _speaking(child, seen)


class NotedLoss:
    """The loss of one call; its value has a graph as long as the output of the call has one."""

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self.is_over = False  # a backward pass has been through it
        self.is_added = False  # the loss that a model returns has it already
        self._step = optimizer_steps()
        self._output: weakref.ref[_Alive] | None = None

    @property
    def is_of_this_pass(self) -> bool:
        """Whether neither a backward pass nor an optimizer's step has come since."""
        return not self.is_over and self._step == optimizer_steps()

    def release_with(self, output: Tensor) -> None:
        """Has the graph be released when that of `output` is."""
        if output.grad_fn is None:
            return
        alive = _Alive()
        # The node holds this object, and nothing else does. It holds nothing itself: if the loss is
        # computed from the output, it is in no cycle that would never be freed.
        metadata: Any = output.grad_fn.metadata  # PyTorch's type is that of a method
        metadata["headwise"] = alive
        this = weakref.ref(self)

        def release(_: object) -> None:
            noted = this()
            if noted is not None:
                noted.value = noted.value.detach()

        self._output = weakref.ref(alive, release)


class NotedLosses:
    """Keeps the losses that a system returned in its last calls. A copy of the system has none."""

    def __init__(self) -> None:
        self.calls: list[NotedLoss] = []  # those that belong together
        self.compiled: Tensor | None = None  # of the last call of compiled code
        self.compiled_is_added = False
        self.is_due = False  # a loss with a gradient has been computed
        self.is_settled = False  # a gradient has come to one: nobody has to be warned
        self.are_unknown = False  # those within a transform of `torch.func`, which are not kept
        self._was_read = False

    def __reduce__(self) -> Any:
        return type(self), ()

    def note(self, loss: Tensor, output: Tensor) -> None:
        """Notes the loss of a call, unless the backward pass of a checkpoint repeats it."""
        if torch.compiler.is_exporting():
            return
        if is_transformed():
            self.are_unknown = True
            return  # it means nothing outside of the function that is transformed
        if torch.compiler.is_compiling():
            self.compiled, self.compiled_is_added = loss, False
            loss.noted_by = self  # type: ignore[attr-defined]
            return
        self.is_due |= loss.requires_grad
        if is_repeated():
            return
        before = [each for each in self.calls if each.value.requires_grad and each.is_of_this_pass]
        waits = not self._was_read and any(not each.is_added for each in before)
        if waits and not loss.requires_grad:
            return  # of a pass that nothing learns from, before the loss of one is asked for
        self.compiled = None
        call = self._noted(loss)
        call.release_with(output)
        loss.noted_by = self  # type: ignore[attr-defined]
        goes_on = loss.requires_grad and not self._was_read
        self.calls = [*before, call] if goes_on else [call]
        self._was_read = False

    def read(self) -> list[NotedLoss]:
        """Returns the calls that belong together; the next call does not."""
        if self.compiled is not None:
            call = self._noted(self.compiled)
            call.is_added = self.compiled_is_added
            self.calls, self.compiled = [call], None
        self._was_read = True
        return self.calls

    def read_in_compiled(self) -> Tensor | None:
        """The loss of the last call, for compiled code that adds it up itself."""
        self.is_settled = True  # no hook could say whether a gradient comes to it
        return None if self.compiled_is_added else self.compiled

    def mark_as_added(self) -> None:
        """Says that the calls are in the loss that a model returns."""
        if torch.compiler.is_compiling():
            self.compiled_is_added = self.is_settled = True
            return
        for call in self.calls:
            call.is_added = True

    def release_compiled(self) -> None:
        """Frees the graph of a loss of compiled code; it is called after an optimizer's step."""
        if self.compiled is not None and self.compiled.requires_grad:
            self.is_due = True
            self.compiled = self.compiled.detach()

    @property
    def are_there(self) -> bool:
        # Compiled code that asks for the calls would be compiled anew when they change.
        return self.compiled is not None or (not torch.compiler.is_compiling() and bool(self.calls))

    def matter(self) -> bool:
        """Whether the last one is not zero, as it is where its coefficients are."""
        if self.compiled is None and not self.calls:
            return True
        last = self.compiled if self.compiled is not None else self.calls[-1].value
        if last.is_cuda and torch.cuda.is_current_stream_capturing():
            return False  # no number can be read then
        # To read it is to wait for the device, which is done once and no more.
        self.is_settled = True
        return last.is_meta or bool(last != 0)

    def _noted(self, loss: Tensor) -> NotedLoss:
        call = NotedLoss(loss)
        if loss.requires_grad:
            noted, these = weakref.ref(call), weakref.ref(self)

            def learned(_: Tensor) -> None:
                call, losses = noted(), these()
                if call is not None:
                    call.is_over = True
                if losses is not None:
                    losses.is_settled = True

            loss.register_hook(learned)
        return call


def mark_as_added(losses: Iterable[Tensor]) -> None:
    """Says of losses of systems that they are in the loss that a model returns."""
    for loss in losses:
        noted_by: NotedLosses | None = getattr(loss, "noted_by", None)
        if noted_by is not None:
            noted_by.mark_as_added()


class _Alive:
    """Lives as long as the graph of an output."""
