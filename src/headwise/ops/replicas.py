"""Sums, draws and shares of work over all processes of a data-parallel run.

A statistic of the batch (batch norm's mean, the load of an expert) and a random draw per
sequence must come out the same whether a batch is computed by one process or shared by several.
Without `torch.distributed` every function here is the identity of its single-process case.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

_alone = False

Batch = TypeVar("Batch")
Found = TypeVar("Found")


def replicas() -> int:
    """How many processes share a batch."""
    if _alone or not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size()


@contextmanager
def alone() -> Iterator[None]:
    """While this context is open, the process shares its batches with no other.

    For what one process of a run computes by itself: it would wait for ever for the others' part of
    a sum.
    """
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def gathered(value: Found) -> list[Found]:
    """Returns the values of all processes, which have to call this together, by rank."""
    if replicas() == 1:
        return [value]
    values: list[Any] = [None] * replicas()
    dist.all_gather_object(values, value)
    return values


def everywhere(holds: bool) -> bool:
    """Whether something holds in every process; all have to call this together."""
    return all(gathered(holds))


def divided(
    batches: Sequence[Batch],
    compute: Callable[[Batch], Found],
    done: Callable[[Batch], None] = lambda batch: None,
) -> list[Found]:
    """Computes something of each batch, each process of a share of them; returns it of all.

    Batches stay whole, so that each is computed as a single process would. Rank r takes those of
    number r, r + replicas, and so on: where they are sorted by length, shares take equally long.

    Args:
        batches: the same ones in every process; all have to call this together.
        compute: is called for the batches of this process, which waits for no other meanwhile.
            What it returns is pickled.
        done: is called for every batch, for a progress bar: for those of the other processes when
            this one has finished its own of the same round.

    Returns:
        What `compute` has returned for each batch, in order, in every process.

    >>> divided([[1, 2], [3]], sum)
    [3, 3]
    """
    count = replicas()
    rank = dist.get_rank() if count > 1 else 0
    mine = []
    for first in range(0, len(batches), count):
        same_round = batches[first : first + count]
        if rank < len(same_round):
            with alone():
                mine.append(compute(same_round[rank]))
        for batch in same_round:
            done(batch)
    found = gathered(mine)
    return [found[number % count][number // count] for number in range(len(batches))]


def sum_over_replicas(x: Tensor, *, shared: bool = True) -> Tensor:
    """The sum of `x` over all processes; gradients flow back to each process's own part.

    Where it is not shared the processes need not call this together, and each keeps its own.
    """
    return _AllReduce.apply(x) if shared and replicas() > 1 else x


class _AllReduce(torch.autograd.Function):
    """Sums a tensor over all processes and lets gradients through.

    `torch.distributed.nn` has such a function too, which is deprecated.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # Each process's part is in the sums of all of them.
        return sum_over_replicas(grad)


def is_sharded(x: Tensor) -> bool:
    """Whether each process holds a part of it alone, as `torch.distributed.fsdp` divides it."""
    if not dist.is_available() or not dist.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(x, DTensor)


def whole(x: Tensor) -> Tensor:
    """A tensor with the parts of all processes, which have to call this together."""
    return x.full_tensor() if is_sharded(x) else x  # type: ignore[attr-defined]


def sharded_like(parameter: Tensor, value: Tensor) -> Tensor:
    """This process's part of a tensor that all have whole, where the parameter is sharded."""
    if not is_sharded(parameter):
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    # All have the same, so that none has to be sent it. A part is no view, which holds the whole.
    return distribute_tensor(value, mesh, placements, src_data_rank=None).clone()


@torch.no_grad()
def assign(parameter: Tensor, value: Tensor) -> None:
    """Copies a value into a parameter; each process takes its own part where it is sharded."""
    parameter.copy_(sharded_like(parameter, value))


def mean_over_replicas(grad: Tensor) -> Tensor:
    """The mean of all processes' gradients; a sharded gradient is that already."""
    return grad if is_sharded(grad) else sum_over_replicas(grad) / replicas()


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
