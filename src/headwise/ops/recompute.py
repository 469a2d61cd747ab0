"""Computations that gradient checkpointing repeats, and what is to happen in them only once."""

import torch
from torch.utils.module_tracker import ModuleTracker

_tracker = ModuleTracker()  # hooks nothing: it is only asked whether a backward pass is under way


def is_repeated() -> bool:
    """Whether the computation around has been done before, and is done again: in a backward pass.

    That is so in `torch.utils.checkpoint`, reentrant or not, and in whatever calls it.
    """
    return not torch.compiler.is_compiling() and bool(_tracker.is_bw)
