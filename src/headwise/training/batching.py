"""Batches of sequences of similar length under a budget of tokens."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast

import torch
from torch.utils.data import DataLoader, Dataset, Sampler


class Items(Protocol):
    """The items of one part of the data, encoded, as a data set.

    A data set whose items are drawn (masks, noise) may have `set_epoch(epoch)`: what it gives for
    an index depends on index and epoch alone, so that a run can be resumed.
    """

    @property
    def lengths(self) -> Sequence[int | tuple[int, ...]]:
        """Of each item, or of each of its sides, in tokens, frames or the like."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


class TokenBudgetSampler(Sampler[list[int]]):
    """Lists of indices such that sequences × longest sequence stays within a budget.

    Sequences are sorted by length, those of one length in an order drawn anew each epoch, and the
    batches are shuffled. Order depends on seed and epoch alone, so that an interrupted epoch can
    be taken up where it stopped. With several processes each takes consecutive rows of every
    batch: together they see what one process would.

    Args:
        lengths: per sequence its length, or the lengths of its sides, of which the longest counts.
        batch_tokens: the budget of one batch, over all processes.
        seed: of the order.
        shuffle: False for one fixed order, shortest first.
        rank, world_size: this process among those that share each batch.

    Raises:
        ValueError: a sequence longer than the budget; fewer sequences than processes.

    >>> list(TokenBudgetSampler([3, 5, 4, 5], batch_tokens=10, shuffle=False))
    [[0, 2], [1, 3]]
    """

    def __init__(
        self,
        lengths: Sequence[int | tuple[int, ...]],
        batch_tokens: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.lengths = [n if isinstance(n, int) else max(n) for n in lengths]
        # Sequences alike on both sides make for the least padding.
        self.keys = [(n, 0) if isinstance(n, int) else (max(n), min(n)) for n in lengths]
        if self.lengths and max(self.lengths) > batch_tokens:
            raise ValueError(
                f"batch_tokens is {batch_tokens}, but the longest sequence has "
                f"{max(self.lengths)} tokens; raise batch_tokens or drop long sequences"
            )
        if len(self.lengths) < world_size:
            raise ValueError(
                f"there are {len(self.lengths)} sequences, fewer than the {world_size} processes "
                f"that share each batch"
            )
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self._num_batches = len(self._batches())

    def set_epoch(self, epoch: int) -> None:
        """Which epoch's order comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._batches():
            first = self.rank * len(batch) // self.world_size
            last = (self.rank + 1) * len(batch) // self.world_size
            yield batch[first:last]

    def _batches(self) -> list[list[int]]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order: list[int] = list(range(len(self.lengths)))
        if self.shuffle:
            order = torch.randperm(len(order), generator=generator).tolist()
        order.sort(key=self.keys.__getitem__)
        batches: list[list[int]] = []
        current: list[int] = []
        for index in order:
            # Ascending lengths: the newcomer is the longest of its batch.
            full = (len(current) + 1) * self.lengths[index] > self.batch_tokens
            if full and len(current) >= self.world_size:
                batches.append(current)
                current = []
            current.append(index)
        if len(current) >= self.world_size or not batches:
            batches.append(current)
        else:
            batches[-1] += current
        if self.shuffle:
            shuffled = torch.randperm(len(batches), generator=generator).tolist()
            batches = [batches[i] for i in shuffled]
        return batches


class BatchLoader(DataLoader):
    """A data loader over such batches whose order follows the epoch."""

    def __init__(
        self,
        dataset: Items,
        sampler: TokenBudgetSampler,
        collate: Callable[[list[Any]], dict[str, torch.Tensor]],
    ) -> None:
        # A generator of its own: starting an epoch must not draw from the one that dropout uses.
        super().__init__(
            cast(Dataset, dataset),
            batch_sampler=sampler,
            collate_fn=collate,
            generator=torch.Generator().manual_seed(0),
        )

    def set_epoch(self, epoch: int) -> None:
        """Which epoch's order comes next, and which of its draws, if items are drawn."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
