"""Computations that gradient checkpointing repeats, and what is to happen in them only once.

In the backward pass a checkpointed layer is computed again, since its activations were not kept.
The second computation has to give what the first gave, although the first has changed state such as
running statistics; and it must not change that state a second time.
"""

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.module_tracker import ModuleTracker

T = TypeVar("T")
# The backward pass of a GPU runs in a thread of its own.
_running = threading.local()
_tracker = ModuleTracker()  # hooks nothing: it is only asked whether a backward pass is under way
_MOST_PASSES = 64


def is_repeated() -> bool:
    """Whether the computation around has been done before, and is done again: in a backward pass.

    That is so in `torch.utils.checkpoint`, reentrant or not, and in whatever calls it.
    """
    return not torch.compiler.is_compiling() and bool(_tracker.is_bw)


class Passes:
    """The last passes of a module, which remember what they computed by.

    A pass that repeats another has the same input. By that it finds what the other has noted, in
    whatever order passes are repeated.

    Example:
        >>> from torch.utils.checkpoint import checkpoint
        >>> passes, mean = Passes(), torch.zeros(1)
        >>> def layer(x):
        ...     with passes.of(x):
        ...         before = as_at_first(lambda: mean.clone())
        ...         if not is_repeated():
        ...             mean.add_(1)
        ...         return ((x - before) ** 2).sum()
        >>> x = torch.ones(1, 1, 1, requires_grad=True)
        >>> checkpoint(layer, x, use_reentrant=False).backward()
        >>> x.grad.item(), mean.item()
        (2.0, 1.0)
    """

    def __init__(self) -> None:
        self.last: deque[_Noted] = deque(maxlen=_MOST_PASSES)

    @contextmanager
    def of(self, x: Tensor) -> Iterator[None]:
        """While this context is open, `as_at_first` knows which pass is computed.

        Args:
            x: the input of the pass, `(batch, time, width)`.
        """
        values: list[Any] = []
        again: Iterator[Any] | None = None
        mark = x.detach().mean((0, 1), dtype=torch.float32)
        if is_repeated():
            found = self._find(mark)
            again = None if found is None else iter(found)
        else:
            self.last.appendleft(_Noted(mark, values))
        before = getattr(_running, "run", None)
        _running.run = _Run(values, again)
        try:
            yield
        finally:
            _running.run = before

    def _find(self, mark: Tensor) -> list[Any] | None:
        """What the last pass with this input has noted; None, with a warning, if there is none."""
        alike = [
            each
            for each in self.last
            if each.mark.shape == mark.shape and each.mark.device == mark.device
        ]
        if alike:
            distances = (torch.stack([each.mark for each in alike]) - mark).abs().amax(-1)
            nearest = int(distances.argmin())  # the first of equal ones, which is the last pass
            # Not all operations of a GPU give the same digits again.
            if distances[nearest] <= 1e-3 * mark.abs().amax():
                return alike[nearest].values
        warnings.warn(
            f"a module is computed in a backward pass, as by gradient checkpointing, with an input "
            f"that none of its last {len(self.last)} passes in training had: it computes by its "
            f"state of now, such as running statistics, which later passes may have moved. Call "
            f"backward() before {_MOST_PASSES} further passes, or filter this warning if there was "
            f"no former pass",
            stacklevel=4,
        )
        return None

    def __reduce__(self) -> tuple[type["Passes"], tuple[()]]:
        return Passes, ()  # a copy of a module has had no passes


class _Noted(NamedTuple):
    """What a pass has noted, and the mean of its input by which it is known."""

    mark: Tensor
    values: list[Any]


class _Run(NamedTuple):
    """One pass: the first notes values, one that repeats it reads them in the same order."""

    noted: list[Any]
    again: Iterator[Any] | None


def as_at_first(compute: Callable[[], T]) -> T:
    """Returns what `compute` gives, or in a repeated pass what it gave the first time.

    A repeated pass has to ask for its values in the order of the first.
    """
    run: _Run | None = None
    if not torch.compiler.is_compiling():
        run = getattr(_running, "run", None)
    if run is not None and run.again is not None:
        value: T = next(run.again)
        return value
    value = compute()
    if run is not None:
        run.noted.append(value)
    return value
