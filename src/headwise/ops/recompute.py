"""Computations that gradient checkpointing repeats, and what is to happen in them only once.

In the backward pass a checkpointed layer is computed again, since its activations were not kept.
The second computation has to give what the first gave, although the first has changed state such as
running statistics; and it must not change that state a second time.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

T = TypeVar("T")
# The backward pass of a GPU runs in a thread of its own.
_running = threading.local()


class Repeatable:
    """A function that is called once to compute, and again to compute the same.

    Args:
        function: the function; `is_repeated` and `as_at_first` know within it which call it is.

    Example:
        >>> mean = torch.zeros(1)
        >>> def layer(x):
        ...     before = as_at_first(lambda: mean.clone())
        ...     if not is_repeated():
        ...         mean.add_(1)
        ...     return x - before
        >>> repeatable = Repeatable(layer)
        >>> repeatable(torch.ones(1)), repeatable(torch.ones(1)), mean
        (tensor([1.]), tensor([1.]), tensor([1.]))
    """

    def __init__(self, function: Callable[..., T]) -> None:
        self.function = function
        self.has_run = False
        self.noted: list[Any] = []

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.function(*args)  # the compiler repeats operations, not Python
        before = getattr(_running, "run", None)
        _running.run = _Run(self.noted, iter(list(self.noted)) if self.has_run else None)
        self.has_run = True
        try:
            return self.function(*args)
        finally:
            _running.run = before


class _Run:
    """One call: the first notes values, the others read them in the same order."""

    def __init__(self, noted: list[Any], again: Iterator[Any] | None) -> None:
        self.noted = noted
        self.again = again

    def note(self, compute: Callable[[], T]) -> T:
        if self.again is not None:
            return next(self.again)
        value = compute()
        self.noted.append(value)
        return value


def is_repeated() -> bool:
    """Whether the computation around has been done before, and is done again."""
    run = _current()
    return run is not None and run.again is not None


def is_in_backward() -> bool:
    """Whether a backward pass is under way: what is computed then is computed again."""
    # PyTorch's own checkpoints ask so; there is no public way.
    return torch._C._current_graph_task_id() != -1


def as_at_first(compute: Callable[[], T]) -> T:
    """Returns what `compute` gives, or in a repeated computation what it gave the first time.

    A repeated computation has to ask for its values in the order of the first.
    """
    run = _current()
    return compute() if run is None else run.note(compute)


def _current() -> _Run | None:
    if torch.compiler.is_compiling():
        return None
    return getattr(_running, "run", None)
