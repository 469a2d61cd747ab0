"""Parameters and gradients of several processes: whole tensors of those that FSDP has divided."""

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_sharded(x: Tensor) -> bool:
    """Whether each process holds a part of it alone, as `torch.distributed.fsdp` divides it."""
    if world_size() == 1:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(x, DTensor)


def full_tensor(x: Tensor) -> Tensor:
    """A tensor with the parts of all processes, which have to call this together."""
    return x.full_tensor() if is_sharded(x) else x  # type: ignore[attr-defined]


def shard_like(parameter: Tensor, value: Tensor) -> Tensor:
    """This process's part of a tensor that all have whole, where the parameter is sharded."""
    if not is_sharded(parameter):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    # All have the same, so that none has to be sent it. A part is no view, which holds the whole.
    return distribute_tensor(value, mesh, placements, src_data_rank=None).clone()


@torch.no_grad()
def copy_full_(parameter: Tensor, value: Tensor) -> None:
    """Copies a value into a parameter; each process takes its own part where it is sharded."""
    parameter.copy_(shard_like(parameter, value))


def mean_over_replicas(gradient: Tensor) -> Tensor:
    """The mean of all processes' gradients; a sharded gradient is that already."""
    if world_size() == 1 or is_sharded(gradient):
        return gradient
    total = gradient.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total / world_size()
