"""Compiled models, where something is observed in them."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def run_as_written() -> AbstractContextManager[Any]:
    """A context in which compiled models run as they are written: else they pass over hooks."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and its import takes long
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
