"""Autocast, for operators that PyTorch does not know."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def as_autocast(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the dtype of autocast where it is on; float64 stays, as in `nn.Linear`."""
    device = tensors[0].device.type
    if not _has_autocast(device) or not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [x if x.dtype == torch.float64 else x.to(dtype) for x in tensors]


def without_autocast(x: Tensor) -> AbstractContextManager:
    """While this context is open, operators compute in the dtype of their arguments.

    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast(torch.ones(1)):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    device = x.device.type
    if not _has_autocast(device):  # the meta device has none to turn off
        return nullcontext()
    if not torch.compiler.is_compiling() and not torch.is_autocast_enabled(device):
        return nullcontext()  # it is off already, and to say so takes time
    return torch.autocast(device, enabled=False)


def _has_autocast(device: str) -> bool:
    if torch.compiler.is_compiling():  # before PyTorch 2.13 the compiler knows no way to ask
        return device != "meta"
    return torch.amp.is_autocast_available(device)
