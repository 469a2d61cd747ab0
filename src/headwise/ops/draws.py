"""Random draws of their own, as an evaluation in the middle of a training has them."""

from contextlib import AbstractContextManager

import torch


def own_draws() -> AbstractContextManager[None]:
    """Restores, at the end, the random states of the CPU and of the GPU that this process uses.

    `torch.random.fork_rng()` would take the states of all GPUs, and warn if there are several.

    >>> with own_draws():
    ...     one = torch.rand(1)
    >>> bool(torch.rand(1) == one)
    True
    """
    return torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else [])
