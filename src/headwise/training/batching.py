"""Makes batches of sequences of similar length, each within a budget of tokens."""

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

# Of shape `(items,)` or `(items, sides)`.
Lengths = NDArray[np.integer] | Sequence[int] | Sequence[tuple[int, ...]]


Batch = dict[str, torch.Tensor]
Collate = Callable[[list[Any]], Batch]


class Items(Protocol):
    """A data set: the encoded items of one part of the data.

    Of items that are random (masks, noise), each depends on its index and the epoch alone, so that
    a run can be resumed.
    """

    @property
    def lengths(self) -> Lengths:
        """The length of each item, or of each of its sides, in tokens, frames or pixels."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...
    def __getitems__(self, indices: Sequence[int]) -> list[Any]: ...

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch whose items come next."""


@runtime_checkable
class Stream(Protocol):
    """Training data that are read while they are trained on, and have no length."""

    def batches(
        self, collate: Collate, batch_tokens: int, *, seed: int, rank: int, world_size: int
    ) -> Any:
        """Returns the endless batches of one of the processes that share the stream.

        They have `loader()`, a DataLoader, and `state_dict()` and `load_state_dict()` of their
        position, which JSON can hold.
        """
        ...


class TokenBudgetSampler(Sampler[list[int]]):
    """Yields batches of indices in which sequences × longest sequence is within a budget.

    The sequences are sorted by length; sequences of equal length come in a random order that
    differs between epochs. Then the batches are shuffled. The order depends on seed and epoch
    alone, so that an interrupted epoch can be continued. If several processes share each batch,
    each takes consecutive rows: together they see the batches of a single process.

    Args:
        lengths: the length of each sequence, or the lengths of its sides, of which the longest
            counts.
        batch_tokens: the budget of one batch, over all processes.
        seed: seed of the random order.
        shuffle: if False, all epochs have the same order, shortest first.
        rank, world_size: number of this process, from 0, and of those that share each batch.

    Raises:
        ValueError: a sequence is longer than the budget, or a batch within it has fewer sequences
            than there are processes.

    >>> list(TokenBudgetSampler([3, 5, 4, 5], batch_tokens=10, shuffle=False))
    [[0, 2], [1, 3]]
    """

    def __init__(
        self,
        lengths: Lengths,
        batch_tokens: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if len(lengths) < world_size:
            raise ValueError(
                f"lengths has {len(lengths)} sequences, expected at least {world_size}: each of "
                f"the processes that share a batch needs one; use fewer processes"
            )
        sides = np.asarray(lengths, np.int32).reshape(len(lengths), -1)  # (sequences, sides)
        self.lengths = sides.max(axis=1)
        # Sequences that are similar on both sides need the least padding.
        self._shortest = sides.min(axis=1)
        if self.lengths.max() > batch_tokens:
            raise ValueError(
                f"batch_tokens is {batch_tokens}, expected at least {self.lengths.max()}: that is "
                f"the longest sequence; raise batch_tokens, or leave out long sequences, such as "
                f"by data.max_length for translation"
            )
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        batches = self._batches()
        self._num_batches = len(batches)
        fewest = min(batches, key=len)
        if len(fewest) < world_size:
            raise ValueError(
                f"batch_tokens is {batch_tokens} for {world_size} processes, expected room for a "
                f"sequence of each of them in every batch: one has {len(fewest)} of up to "
                f"{self.lengths[fewest].max()} tokens; raise batch_tokens, for which "
                f"{2 * world_size * int(self.lengths.max())} is always enough, leave out long "
                f"sequences, or use fewer processes ({len(fewest)})"
            )

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch whose order comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._batches():
            first = self.rank * len(batch) // self.world_size
            last = (self.rank + 1) * len(batch) // self.world_size
            yield batch[first:last].tolist()

    def _batches(self) -> list[NDArray[np.int64]]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = np.arange(len(self.lengths))
        if self.shuffle:
            order = torch.randperm(len(order), generator=generator).numpy()
        order = order[np.lexsort((self._shortest[order], self.lengths[order]))]
        ends = self._ends(self.lengths[order])
        batches = np.split(order, ends)
        if self.shuffle:
            shuffled = torch.randperm(len(batches), generator=generator).tolist()
            batches = [batches[i] for i in shuffled]
        return batches

    def _ends(self, ascending: NDArray[np.int32]) -> list[int]:
        """Returns where a batch ends and the next begins, given all lengths in ascending order."""
        starts = [0]
        while (start := starts[-1]) < len(ascending):
            # Lengths ascend, so the last sequence of a batch is its longest.
            most = ascending[start : start + self.batch_tokens // int(ascending[start])]
            fits = np.arange(1, len(most) + 1) * most.astype(np.int64) <= self.batch_tokens
            starts.append(start + int(fits.sum()))
        if len(starts) > 2:
            # What is left at the end may be too little for all processes to have a part of it: the
            # last batch gets half of the sequences of the last two, or as many as fit.
            *_, before, start, end = starts
            size = min((end - before) // 2, self.batch_tokens // int(ascending[-1]))
            starts[-2] = min(start, end - size)
        return starts[1:-1]


class BatchLoader(DataLoader):
    """A data loader over the batches of a `TokenBudgetSampler`.

    `workers` processes prepare batches ahead, begun anew in each epoch. The batches do not depend
    on their number: items have no random draws but those of their index and the epoch.
    """

    def __init__(
        self,
        dataset: Items,
        sampler: TokenBudgetSampler,
        collate: Collate,
        workers: int = 0,
    ) -> None:
        # With its own generator, starting an epoch does not draw from the one that dropout uses.
        super().__init__(
            cast(Dataset, dataset),
            batch_sampler=sampler,
            collate_fn=collate,
            generator=torch.Generator().manual_seed(0),
            num_workers=workers,
            worker_init_fn=_leave_signals if workers else None,
        )

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch whose items come next, and in which order."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
        cast(Items, self.dataset).set_epoch(epoch)


def _leave_signals(worker: int) -> None:
    """Leaves Ctrl-C, which reaches all processes, to the one that trains: it stops the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
