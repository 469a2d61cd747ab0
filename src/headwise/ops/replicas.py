"""Sums and draws over all processes of a data-parallel run.

A statistic of the batch (batch norm's mean, the load of an expert) and a random draw per
sequence must come out the same whether a batch is computed by one process or shared by several.
Without `torch.distributed` every function here is the identity of its single-process case.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def replicas() -> int:
    """How many processes share a batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sum_over_replicas(x: Tensor) -> Tensor:
    """The sum of `x` over all processes; gradients flow back to each process's own part."""
    if replicas() == 1:
        return x
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(x)


def uniform_noise(batch: int, time: int, device: torch.device) -> Tensor:
    """Uniform numbers in [0, 1), `(batch, time)`, that follow the sequence, not the process.

    The processes of a run share one seed and hold consecutive rows of one batch. Each draws for
    the whole batch and keeps the rows that are its own, so that how a batch is divided does not
    change what is drawn.
    """
    if replicas() == 1:
        return torch.rand(batch, time, device=device)
    mine = torch.tensor([batch, time], device=device)
    sizes = [torch.empty_like(mine) for _ in range(replicas())]
    dist.all_gather(sizes, mine)
    batches = [int(size[0]) for size in sizes]
    longest = max(int(size[1]) for size in sizes)
    first = sum(batches[: dist.get_rank()])
    return torch.rand(sum(batches), longest, device=device)[first : first + batch, :time]
