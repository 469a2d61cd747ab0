"""Batches of training data that are read while they are trained on, and fit no disk.

The rows of a stream are read in windows of some thousand rows. Those of a window are in memory, are
encoded together and give batches in a random order; then the next window is read. At its end the
stream begins anew, with its shards in another order. So a stream has no length and no end.

The order depends on seed, pass and window alone. A position is where a window begins in the stream
and how many of its batches have been given, so that a run goes on with exactly the batches that it
would have had. (The buffers by which `datasets` shuffles are empty when a run goes on.)
"""

import warnings
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

import datasets
import numpy as np

from headwise.data.encode import Columns, Items, digest_of
from headwise.data.load import (
    DataError,
    Row,
    from_hub,
    picked,
    rows_of_shard,
    shards_of,
    stamp,
    undecoded,
)
from headwise.data.settings import PARTS, Data, files_of
from headwise.training.batches import Batch, Collate, token_batches

if TYPE_CHECKING:
    from headwise.tasks.task import Task


class Shards:
    """The training data of a stream in pieces: its files, or the shards of a split.

    Attributes:
        number: how many pieces there are.
        held_out: the parts that are taken from the head of the first piece.
        digest: what tells the data from others, and from what they were before: the sizes and
            times of change of files, of the hub the revision.
    """

    def __init__(self, data: Data, task: "type[Task]") -> None:
        self._data, self._task = data, task
        self._columns = {**task.columns, **data.columns}
        self._files = shards_of(data.files["train"]) if "train" in data.files else None
        if self._files is None:
            self._split = undecoded(from_hub(data, "train", task, streaming=True))
            self.number = int(self._split.num_shards)
            builder = datasets.load_dataset_builder(data.path, data.name, revision=data.revision)
            files = builder.config.data_files or {}
            made_of = [data.path, data.name, *(of.origin_metadata for of in files.values())]
        else:
            self.number = len(self._files)
            made_of = [stamp(path) for path in files_of(data.files["train"])]
        self.digest = digest_of(*made_of, data.window, data.held_out)
        has_splits = data.path is not None and data.path not in task.built_in
        self.held_out: list[str] = [
            part
            for part in PARTS[1:]
            if part not in data.files
            and not (has_splits and data.split.get(part, part) is not None)
        ]

    def rows(self, shard: int) -> Iterator[Row]:
        """Yields the rows of a piece as they are read, those that are held out too."""
        if self._files is not None:
            return picked(rows_of_shard(self._files[shard]), self._columns)
        rows = self._split.shard(num_shards=self.number, index=shard)
        return picked(rows, self._columns, rows.features)

    def part(self, part: str) -> datasets.Dataset:
        """Returns the rows of a part that is held out."""
        begin = self.held_out.index(part) * self._data.held_out
        rows = list(islice(self.rows(0), begin, begin + self._data.held_out))
        if len(rows) < self._data.held_out:
            raise DataError(
                f"the first file or shard has {begin + len(rows):,} rows, expected more than the "
                f"{begin + self._data.held_out:,} that are held out: set data.held_out to fewer, "
                f"or give data of their own for the validation and the test part"
            )
        return datasets.Dataset.from_list(rows)

    def head(self, number: int) -> Columns:
        """Returns the first rows that are not held out, as columns."""
        rows = chain.from_iterable(map(self.to_train_on, range(self.number)))
        if not (head := list(islice(rows, number))):
            raise DataError("the training part is a stream without rows, expected some")
        return _columns(head)

    def to_train_on(self, shard: int) -> Iterator[Row]:
        """Yields the rows of a piece that are not held out."""
        begin = 0 if shard else len(self.held_out) * self._data.held_out
        return islice(self.rows(shard), begin, None)


class Stream:
    """A training part that is a stream, which has no length and no items that could be counted.

    Args:
        shards: its pieces.
        make: returns the items of the rows of a window, given as columns.
        window: number of rows that are in memory at once.
    """

    def __init__(self, shards: Shards, make: Callable[[Columns], Items], window: int) -> None:
        self.shards, self.make, self.window = shards, make, window

    def batches(
        self,
        collate: Collate,
        batch_tokens: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> "StreamBatches":
        """Returns the endless batches of one of the processes that share a stream.

        Each reads other rows: other pieces, where their number can be divided by that of the
        processes, and else one row of every `world`. `batch_tokens` is the size of a batch of
        all processes together.
        """
        return StreamBatches(self, collate, batch_tokens // world, seed, rank, world)


class StreamBatches:
    """The endless batches of one process; see `Stream.batches`.

    Attributes:
        per_epoch: None, since a stream has no length.
        position: where it is behind the last batch that was given; a resumed training sets it.
    """

    per_epoch = None

    def __init__(
        self,
        stream: Stream,
        collate: Collate,
        batch_tokens: int,
        seed: int,
        rank: int,
        world: int,
    ) -> None:
        self._stream, self._collate = stream, collate
        self._batch_tokens, self._seed = max(1, batch_tokens), seed
        self._rank, self._world = rank, world
        # The pass; where the window at hand begins: the place of its shard in the order of this
        # pass, and the row there; the windows before it in all passes; its batches that were given.
        self.position = dict.fromkeys(("passes", "shard", "row", "windows", "of_window"), 0)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            at = self.position
            is_whole_pass = not (at["shard"] or at["row"] or at["of_window"])
            is_empty = True
            for columns, end in self._windows():
                items = self._stream.make(columns)
                for batch in islice(self._batches_of(items), at["of_window"], None):
                    is_empty = False
                    # A new one, since a checkpoint may keep that of before.
                    at = self.position = {**at, "of_window": at["of_window"] + 1}
                    yield self._collate(items.__getitems__(batch))
                at = self.position = {**at, "windows": at["windows"] + 1, "of_window": 0, **end}
            if is_whole_pass and is_empty:
                raise DataError(
                    "the training part is a stream, and this process finds no row in it: give "
                    "more data, or use fewer processes"
                )
            self.position = {**at, "passes": at["passes"] + 1, "shard": 0, "row": 0}

    def _windows(self) -> Iterator[tuple[Columns, dict[str, int]]]:
        """Yields the rows of each window of this pass from the position on, and where it ends."""
        shards, at = self._stream.shards, self.position
        order = np.random.default_rng((self._seed, at["passes"])).permutation(shards.number)
        by_shard = shards.number % self._world == 0
        if by_shard:
            order = order[self._rank :: self._world]
        window: list[Row] = []
        for place in range(at["shard"], len(order)):
            begin = at["row"] if place == at["shard"] else 0
            rows = islice(shards.to_train_on(int(order[place])), begin, None)
            for number, row in enumerate(rows, start=begin):
                if by_shard or number % self._world == self._rank:
                    window.append(row)
                if len(window) == self._stream.window:
                    yield _columns(window), {"shard": place, "row": number + 1}
                    window = []
        if window:
            yield _columns(window), {"shard": len(order), "row": 0}

    def _batches_of(self, items: Items) -> Iterator[list[int]]:
        """Yields the batches of a window, without items that are too long for any."""
        number = self.position["windows"]
        items.set_epoch(number)  # items that are random differ between windows
        lengths = np.asarray(items.lengths)
        if not len(lengths):
            return
        longest = lengths.reshape(len(lengths), -1).max(axis=1)
        fitting = np.flatnonzero(longest <= self._batch_tokens)
        if not len(fitting) and number == 0:
            fitting = np.arange(len(lengths))  # `token_batches` says what is wrong from the start
        elif len(fitting) < len(lengths):
            # Without the length of an item: what is the same each time is shown once.
            warnings.warn(
                f"the stream has items that are longer than a batch of one process, "
                f"{self._batch_tokens} tokens: they are left out; raise batch_tokens to have them",
                stacklevel=2,
            )
        if not len(fitting):
            return
        batches = token_batches(lengths[fitting], self._batch_tokens, seed=self._seed, epoch=number)
        for batch in batches:
            yield fitting[batch].tolist()


def _columns(rows: list[Row]) -> Columns:
    return {name: [row[name] for row in rows] for name in rows[0]}
