"""Tensors that say they are on a GPU, and have no values: a look at one of them is an error.

They are meta tensors, whose `device` and `is_cuda` say otherwise. Fake tensors of PyTorch's
FakeTensorMode can be on a GPU themselves, but autograd and slices need a PyTorch built for CUDA.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map

_META, _CUDA = torch.device("meta"), torch.device("cuda", 0)
_FROM_HOST = ("tensor", "as_tensor", "from_numpy", "new_tensor", "asarray")


class PretendedGPU(TorchFunctionMode):
    """Within it, meta tensors say that they are on a GPU, and nothing is copied to or from it."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == Tensor.device.__get__ and args[0].is_meta:
            return _CUDA
        if func == Tensor.is_cuda.__get__ and args[0].is_meta:
            return True
        args, kwargs = tree_map(_really, (args, kwargs or {}))
        result = func(*args, **kwargs)
        leaves = list(tree_iter((args, kwargs, result)))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        there = any(x.is_meta for x in tensors)
        # The value of a tensor on the host with a single one goes along as an argument.
        copied = there and any(not x.is_meta and x.dim() for x in tensors)
        made = getattr(func, "__name__", "") in _FROM_HOST and there
        assert not (copied or made), f"{func} copies to or from the GPU: the host waits"
        return result


def _really(x: Any) -> Any:
    return _META if isinstance(x, torch.device | str) and str(x).startswith("cuda") else x
