"""Takes the smallest numbers as zero in training, since processors are slow with them.

Numbers below 1.2e-38 in float32 are *denormal*: a CPU computes with them many times more slowly
than with others. Systems whose weights become very small or very large, such as routing, come to
have them in the middle of training. They are too small to change a sum that anything depends on.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DENORMAL = 1e-40  # in float32


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Has this CPU thread, and those that it starts, take denormal numbers as zero.

    PyTorch starts the threads that share its work when a large tensor is first computed. Those that
    are there already go on as before.

    >>> with denormals_as_zero():
    ...     print(bool(torch.full((), 1e-40) * 1.0))
    False
    """
    # PyTorch has no function that tells what is set.
    before = not bool(torch.full((), _DENORMAL) * 1.0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
