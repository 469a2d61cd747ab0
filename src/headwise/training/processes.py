"""What the processes of a run, started by `torchrun`, do together, and what each does by itself.

In a single process every function here is the identity of that case.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headwise.ops.replicas import replicas

_alone = False

Batch = TypeVar("Batch")
Found = TypeVar("Found")


def processes() -> int:
    """How many processes share the work at hand."""
    return 1 if _alone else replicas()


@contextmanager
def alone() -> Iterator[None]:
    """While this context is open, the process shares its work with no other.

    For what one process of a run computes by itself: it would wait for ever for the others.
    """
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def gathered(value: Found) -> list[Found]:
    """Returns the values of all processes, which have to call this together, by rank."""
    if processes() == 1:
        return [value]
    values: list[Any] = [None] * processes()
    dist.all_gather_object(values, value)
    return values


def everywhere(holds: bool) -> bool:
    """Whether something holds in every process; all have to call this together."""
    return all(gathered(holds))


def summed(x: Tensor) -> Tensor:
    """The sum of a tensor over all processes, which have to call this together."""
    if processes() == 1:
        return x
    total = x.clone()
    dist.all_reduce(total)
    return total


@torch.no_grad()
def share_buffers(model: nn.Module) -> None:
    """Gives all processes the buffers of the first one, such as statistics of batches.

    `DistributedDataParallel` does so before each pass, and no process saves those of others.
    """
    for buffer in model.buffers() if processes() > 1 else ():
        dist.broadcast(buffer, 0)


def divided(
    batches: Sequence[Batch],
    compute: Callable[[Batch], Found],
    done: Callable[[Batch], None] = lambda batch: None,
) -> list[Found]:
    """Computes something of each batch, each process of a share of them; returns it of all.

    Batches stay whole, so that each is computed as a single process would. Rank r takes those of
    number r, r + processes, and so on: where they are sorted by length, shares take equally long.

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
    count = processes()
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


def own_draws() -> AbstractContextManager[None]:
    """Restores, at the end, the random states of the CPU and of the GPU that this process uses.

    `torch.random.fork_rng()` would take the states of all GPUs, and warn if there are several.

    >>> with own_draws():
    ...     one = torch.rand(1)
    >>> bool(torch.rand(1) == one)
    True
    """
    return torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else [])
