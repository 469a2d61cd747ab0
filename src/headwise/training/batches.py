"""Resumable batches of sequences of similar length, each within a budget of tokens."""

import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

Batch = dict[str, torch.Tensor]
Collate = Callable[[list[Any]], Batch]
# Of shape `(items,)` or `(items, sides)`.
Lengths = NDArray[np.integer] | Sequence[int] | Sequence[tuple[int, ...]]


class Items(Protocol):
    """The encoded items of one split of the data; random choices in an item depend on the epoch.

    `lengths` counts the tokens, frames or pixels of each item, or of each side of an item.
    """

    @property
    def lengths(self) -> Lengths: ...

    def __len__(self) -> int: ...
    def __getitems__(self, indices: Sequence[int]) -> list[Any]: ...

    def set_epoch(self, epoch: int) -> None: ...


def token_batches(
    lengths: Lengths,
    batch_tokens: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    processes: int = 1,
) -> list[NDArray[np.int64]]:
    """Returns batches of indices in which sequences × longest sequence is within a budget.

    The sequences are sorted by length, and divided. With a seed, sequences of equal length and the
    batches have a random order, which depends only on seed and epoch.

    Args:
        lengths: the length of each sequence, or of each of its sides; the longest side counts.
        batch_tokens: the budget of a batch, over all processes that share it.
        seed, epoch: of the order; without a seed, batches are sorted by length, shortest first.
        processes: the number of processes that share each batch, each with a sequence at least.

    Raises:
        ValueError: a sequence is longer than the budget, or a batch within it has fewer sequences
            than there are processes.

    >>> [batch.tolist() for batch in token_batches([3, 5, 4, 5], batch_tokens=10)]
    [[0, 2], [1, 3]]
    """
    sides = np.asarray(lengths, np.int32).reshape(len(lengths), -1)  # (sequences, sides)
    longest, shortest = sides.max(axis=1), sides.min(axis=1)
    if longest.max() > batch_tokens:
        raise ValueError(
            f"batch_tokens is {batch_tokens}, expected at least {longest.max()}: that is the "
            f"longest sequence; raise batch_tokens, or leave out long sequences, such as by "
            f"data.max_length for translation"
        )
    random = np.random.default_rng((seed or 0, epoch))
    order = np.arange(len(sides)) if seed is None else random.permutation(len(sides))
    # Sequences that are similar on both sides need the least padding.
    order = order[np.lexsort((shortest[order], longest[order]))]
    batches = np.split(order, _batch_ends(longest[order], batch_tokens))
    fewest = min(batches, key=len)
    if len(fewest) < processes:
        raise ValueError(
            f"batch_tokens is {batch_tokens} for {processes} processes, expected room for a "
            f"sequence of each of them in every batch: one has {len(fewest)} of up to "
            f"{longest[fewest].max()} tokens; raise batch_tokens, for which "
            f"{2 * processes * int(longest.max())} is always enough, or use fewer processes"
        )
    return batches if seed is None else [batches[i] for i in random.permutation(len(batches))]


def _batch_ends(ascending: NDArray[np.int32], batch_tokens: int) -> list[int]:
    """Returns where a batch ends and the next begins, given all lengths in ascending order."""
    starts = [0]
    while (start := starts[-1]) < len(ascending):
        # Lengths ascend, so the last sequence of a batch is its longest.
        lengths = ascending[start : start + batch_tokens // max(1, int(ascending[start]))]
        fits = np.arange(1, len(lengths) + 1) * lengths.astype(np.int64) <= batch_tokens
        starts.append(start + int(fits.sum()))
    if len(starts) > 2:
        # The last batch may have fewer sequences than there are processes. So it gets half of the
        # sequences of the last two batches, or as many as fit.
        *_, before, start, end = starts
        size = min((end - before) // 2, batch_tokens // max(1, int(ascending[-1])))
        starts[-2] = min(start, end - size)
    return starts[1:-1]


class Batches:
    """The endless batches of one process; `position` is their whole state.

    Processes that share each batch take consecutive rows of it: together they get the batches of a
    single process.

    Args:
        items: the items of one split of the data.
        collate: the function that makes a batch of items.
        batch_tokens, seed: as in `token_batches`.
        rank, world: the number of this process, from 0, and the number of all processes.
        workers: number of processes that prepare batches; the batches do not depend on it.

    Attributes:
        position: number of batches so far, over all epochs.
        per_epoch: number of batches of an epoch.
    """

    def __init__(
        self,
        items: Items,
        collate: Collate,
        batch_tokens: int,
        *,
        seed: int | None = None,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
    ) -> None:
        self._items, self._collate, self._batch_tokens = items, collate, batch_tokens
        self._seed, self._rank, self._world, self._workers = seed, rank, world, workers
        self.position = 0
        self.per_epoch = len(self._epoch_indices(0))

    def __iter__(self) -> Iterator[Batch]:
        first, start = divmod(self.position, self.per_epoch)
        for epoch in count(first):
            for batch in self.epoch(epoch, start):
                self.position += 1
                yield batch
            start = 0

    def epoch(self, number: int = 0, start: int = 0) -> DataLoader[Any]:
        """Returns the batches of one epoch, from a number on."""
        self._items.set_epoch(number)
        return DataLoader(
            cast(Dataset[Any], self._items),
            batch_sampler=self._epoch_indices(number)[start:],
            collate_fn=self._collate,
            num_workers=self._workers,
            # With its own generator, the loader does not draw from that of dropout.
            generator=torch.Generator().manual_seed(0),
            worker_init_fn=_leave_signals if self._workers else None,
        )

    def _epoch_indices(self, number: int) -> list[list[int]]:
        lengths, rank, world = self._items.lengths, self._rank, self._world
        batches = token_batches(
            lengths, self._batch_tokens, seed=self._seed, epoch=number, processes=world
        )
        return [b[rank * len(b) // world : (rank + 1) * len(b) // world].tolist() for b in batches]


def _leave_signals(worker: int) -> None:
    """Ignores Ctrl-C, which reaches all processes: the main process stops the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
