"""Compiling a numeric function with torch.compile where that pays and where it can be done.

It takes some tens of seconds, and needs a C++ compiler (on a GPU, Triton). So only large calls are
compiled; which ones depends on nothing but their size, so that a run that is repeated or resumed
computes in the same way. Where there is no compiler, or it fails, the function runs as it is.
`HEADWISE_COMPILE` in the environment decides otherwise: 0 compiles nothing, 1 calls of any size
that fill a chunk.
"""

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Elements from which on compiling pays: 16 MiB in float32.
_LARGE = 2**22
_BACKEND = "inductor"


def is_worth_compiling(x: Tensor) -> bool:
    """Whether a call on a tensor of this size should be compiled."""
    wish = os.environ.get("HEADWISE_COMPILE", "")
    wanted = wish == "1" or (wish == "" and x.numel() >= _LARGE)
    return wanted and _has_compiler(x.device.type)


class Compiled:
    """A function that is compiled at its first call, for each shape of its arguments.

    Where compiling fails it runs as it is from then on, with a warning.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._fast: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self._fast is None:
            self._fast = torch.compile(self.function, backend=_BACKEND, dynamic=False)
        if self._fast is not self.function:
            try:
                return self._fast(*args)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # of the compiler; one of the function comes again below
                self._fast = self.function
                reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
                warnings.warn(
                    f"routing runs without torch.compile, which is slower: {reason[0]}",
                    stacklevel=2,
                )
        return self.function(*args)


@functools.cache
def _has_compiler(device: str) -> bool:
    try:
        if device == "cuda":
            from torch.utils._triton import has_triton

            return has_triton()
        if device == "cpu":
            from torch._inductor.cpp_builder import get_cpp_compiler

            return bool(get_cpp_compiler())
    except Exception:  # no compiler, or a PyTorch that looks for it in another way
        pass
    return False
