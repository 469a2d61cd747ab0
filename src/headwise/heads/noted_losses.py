"""The losses that a system has added in its last calls, for whoever is to add them up.

A loss holds the graph of its pass. It is kept no longer than the rest of the pass keeps that graph,
so that an output which is thrown away takes its memory with it; what stays then is the number.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from headwise.heads.watching import optimizer_steps
from headwise.ops.recompute import is_repeated


class NotedLoss:
    """The loss of one call.

    Attributes:
        value: the loss, with its graph as long as the output of the call has one.
        is_over: whether a backward pass has been through it.
        is_added: whether the loss that a model returns has it already.
    """

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self.is_over = False
        self.is_added = False
        self._step = optimizer_steps()
        self._output: weakref.ref[_Alive] | None = None

    @property
    def is_of_this_pass(self) -> bool:
        """Whether neither a backward pass nor an optimizer's step has come since."""
        return not self.is_over and self._step == optimizer_steps()

    @property
    def has_graph(self) -> bool:
        return self.value.requires_grad

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
    """Keeps the losses that a system returned in its last calls. A copy of the system has none.

    Attributes:
        calls: those that belong together: since a sum was taken, or an optimizer has stepped.
            Where there are no gradients it is the last call alone.
        compiled: the loss of the last call of compiled code, which can note no more than that.
        is_due: whether a loss with a gradient has been computed.
        is_settled: whether a gradient has come to one, so that nobody has to be warned.
    """

    def __init__(self) -> None:
        self.calls: list[NotedLoss] = []
        self.compiled: Tensor | None = None
        self.compiled_is_added = False
        self.is_due = False
        self.is_settled = False
        self._was_read = False

    def __reduce__(self) -> Any:
        return type(self), ()

    def note(self, loss: Tensor, output: Tensor) -> None:
        """Notes the loss of a call, unless the backward pass of a checkpoint repeats it."""
        if torch.compiler.is_exporting():
            return
        if torch.compiler.is_compiling():
            self.compiled, self.compiled_is_added = loss, False
            loss.noted_by = self  # type: ignore[attr-defined]
            return
        if torch._C._functorch.is_functorch_wrapped_tensor(loss):
            return  # it means nothing outside of the function that is transformed
        self.is_due |= loss.requires_grad
        if is_repeated():
            return
        self.compiled = None
        call = self._noted(loss)
        call.release_with(output)
        loss.noted_by = self  # type: ignore[attr-defined]
        goes_on = call.has_graph and not self._was_read
        before = [each for each in self.calls if each.has_graph and each.is_of_this_pass]
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
        """Returns the loss of the last call, for compiled code that adds it up itself."""
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
        """Drops the graph of compiled code, after an optimizer's step."""
        if self.compiled is not None and self.compiled.requires_grad:
            self.is_due = True
            self.compiled = self.compiled.detach()

    @property
    def are_there(self) -> bool:
        # Compiled code that asks for the calls would be compiled anew when they change.
        return self.compiled is not None or (not torch.compiler.is_compiling() and bool(self.calls))

    @property
    def are_unread(self) -> bool:
        """Whether no gradient has come to any of those that have one."""
        return self.is_due and not self.is_settled

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
