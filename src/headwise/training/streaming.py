"""Batches of training data that are read while they are trained on, and fit no disk.

The rows of a stream are read in windows of some thousand rows. Those of a window are in memory, are
encoded together and give batches in a random order; then the next window is read. At its end the
stream begins anew, with its shards in another order. So a stream has no length and no end.

The order depends on seed, pass and window alone. A position is where a window begins in the stream
and how many of its batches have been given, so that a run goes on with exactly the batches that it
would have had, whatever stood in memory. (The buffers by which `datasets` shuffles are empty when a
run goes on: it would not see what was in them.)
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from headwise.training.batching import Items, TokenBudgetSampler

Batch = dict[str, torch.Tensor]
Collate = Callable[[list[Any]], Batch]

ROW = "row"  # the column of a stream


class StreamedRows(Protocol):
    """A `datasets.IterableDataset`; to import that takes a second, which other data need not."""

    def __iter__(self) -> Iterator[dict[str, Any]]: ...
    def set_epoch(self, epoch: int) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class StreamedItems:
    """A training part that is a stream, which has no length and no items that could be counted.

    Args:
        rows: the stream, whose column `row` has what `make` takes.
        make: encodes the rows of a window.
        window: number of rows that are in memory at once.
    """

    def __init__(
        self, rows: StreamedRows, make: Callable[[Sequence[Any]], Items], window: int
    ) -> None:
        self.rows = rows
        self.make = make
        self.window = window

    def batches(
        self,
        collate: Collate,
        batch_tokens: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> "StreamedBatches":
        """Returns the batches of one of the processes that share a stream, from its beginning.

        Each reads other rows: other shards, where their number can be divided by that of the
        processes, and else one row of every `world_size`. `batch_tokens` is the size of a batch
        of all processes together.
        """
        from datasets.distributed import split_dataset_by_node

        share: Any = split_dataset_by_node(cast(Any, self.rows), rank, world_size)
        return StreamedBatches(self, share, collate, max(1, batch_tokens // world_size), seed)


class StreamedBatches(IterableDataset[Batch | None]):
    """The endless batches of one process; see `StreamedItems.batches`."""

    def __init__(
        self,
        items: StreamedItems,
        rows: StreamedRows,
        collate: Collate,
        batch_tokens: int,
        seed: int,
    ) -> None:
        self._items = items
        self._rows = rows
        self._collate = collate
        self._batch_tokens = batch_tokens
        self._seed = seed
        # Behind passes over the stream, windows, batches of the window at hand, and all batches;
        # `window` is where that one begins, of which None is the beginning of the stream.
        self._position: dict[str, Any] = {
            **dict.fromkeys(("passes", "windows", "of_window", "batches"), 0),
            "window": None,
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the position behind the last batch that was given, which JSON can hold."""
        return dict(self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a position; for the batches before it None is given, which a loader skips."""
        self._position = dict(state)

    def loader(self) -> DataLoader:
        """Returns a loader of the batches, for transformers' Trainer."""
        # With its own generator, its start does not draw from the one that dropout uses.
        return DataLoader(self, batch_size=None, generator=torch.Generator().manual_seed(0))

    def __iter__(self) -> Iterator[Batch | None]:
        at = self._position
        yield from repeat(None, at["batches"])
        while True:
            is_whole_pass, before = at["window"] is None and not at["of_window"], at["batches"]
            for window in self._windows():
                items = self._items.make(window)
                for batch in islice(self._batches_of(items), at["of_window"], None):
                    at["of_window"] += 1
                    at["batches"] += 1
                    yield self._collate([items[i] for i in batch])
            if is_whole_pass and at["batches"] == before:
                raise ValueError(
                    "the training part is a stream, and this process finds no row in it: give "
                    "more data, or use fewer processes"
                )
            at |= {"passes": at["passes"] + 1, "window": None}

    def _windows(self) -> Iterator[list[Any]]:
        """Yields the rows of each window of this pass from the position on."""
        at = self._position
        # `datasets` shuffles shards by this number.
        self._rows.set_epoch(self._seed * 1_000_003 + at["passes"])
        if at["window"] is not None:
            self._rows.load_state_dict(at["window"])
        rows = iter(self._rows)
        while window := [row[ROW] for row in islice(rows, self._items.window)]:
            yield window
            at |= {
                "windows": at["windows"] + 1,
                "of_window": 0,
                "window": self._rows.state_dict(),
            }

    def _batches_of(self, items: Items) -> Iterator[list[int]]:
        """Yields the batches of a window, without items that are too long for any."""
        number = self._position["windows"]
        if hasattr(items, "set_epoch"):
            items.set_epoch(number)  # items that are random differ between windows
        lengths = np.asarray(items.lengths)
        longest = lengths.reshape(len(lengths), -1).max(axis=1)
        fitting = np.flatnonzero(longest <= self._batch_tokens)
        if not len(fitting) and number == 0:
            fitting = np.arange(len(lengths))  # the sampler says what is wrong from the start
        elif len(fitting) < len(lengths):
            # Without the length of an item: what is the same each time is shown once.
            warnings.warn(
                f"the stream has items that are longer than a batch of one process, "
                f"{self._batch_tokens} tokens: they are left out; raise batch_tokens to have them",
                stacklevel=2,
            )
        if not len(fitting):
            return
        sampler = TokenBudgetSampler(lengths[fitting], self._batch_tokens, seed=self._seed)
        sampler.set_epoch(number)
        for batch in sampler:
            yield fitting[batch].tolist()
