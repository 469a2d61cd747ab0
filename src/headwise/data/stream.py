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
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import datasets
import numpy as np

from headwise.data.encode import Items, digest_of
from headwise.data.load import (
    Columns,
    DataError,
    Row,
    from_hub,
    names_of,
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
        self._size, self._names, self._kinds = data.held_out, names_of(data, "train", task), None
        self._pieces: list[Callable[[], Iterator[Row]]]
        made_of: list[object] = []
        if "train" in data.files:
            shards = shards_of(data.files["train"])
            self._pieces = [partial(rows_of_shard, shard) for shard in shards]
            made_of += [stamp(path) for path in files_of(data.files["train"])]
        else:
            split = undecoded(from_hub(data, "train", task, streaming=True))
            self._kinds, number = split.features, int(split.num_shards)
            self._pieces = [partial(iter, split.shard(number, index)) for index in range(number)]
            builder = datasets.load_dataset_builder(data.path, data.name, revision=data.revision)
            files = builder.config.data_files or {}
            made_of += [data.path, data.name, *(of.origin_metadata for of in files.values())]
        self.number = len(self._pieces)
        self.digest = digest_of(*made_of, data.window, data.held_out)
        own = {part for part in PARTS if data.path and data.split.get(part, part) is not None}
        self.held_out = [part for part in PARTS[1:] if part not in {*data.files, *own}]

    def part(self, part: str) -> datasets.Dataset:
        """Returns the rows of a part that is held out."""
        begin = self.held_out.index(part) * self._size
        rows = list(islice(self._pieces[0](), begin, begin + self._size))
        if len(rows) < self._size:
            raise DataError(
                f"the first file or shard has {begin + len(rows):,} rows, expected more than the "
                f"{begin + self._size:,} that are held out: set data.held_out to fewer, or give "
                f"data of their own for the validation and the test part"
            )
        return datasets.Dataset.from_list(rows, self._kinds)

    def rows(self, shard: int) -> Iterator[Row]:
        """Yields the rows of a piece that are not held out, as they are read."""
        begin = 0 if shard else len(self.held_out) * self._size
        return islice(self._pieces[shard](), begin, None)

    def columns(self, rows: list[Row]) -> Columns:
        """Returns rows as the columns of the task."""
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return picked(columns, self._names, self._kinds or rows[0])

    def head(self, number: int) -> Columns:
        """Returns the first rows that are not held out, as the columns of the task."""
        rows = list(islice(chain.from_iterable(map(self.rows, range(self.number))), number))
        if not rows:
            raise DataError("the training part is a stream without rows, expected some")
        return self.columns(rows)


class Stream:
    """A training part that is a stream, which has no length and no items that could be counted.

    Args:
        shards: its pieces.
        make: returns the items of the rows of a window, given as columns.
        window: number of rows that are in memory at once.
    """

    def __init__(self, shards: Shards, make: Callable[[Columns], Items], window: int) -> None:
        self.shards, self.make, self.window = shards, make, window


class StreamBatches:
    """The endless batches of one of the processes that share a stream.

    Each process reads other rows: other pieces, where their number can be divided by that of the
    processes, and else one row of every `world`.

    Args:
        stream: the training part.
        collate: joins items into a batch.
        batch_tokens: size of a batch of all processes together.
        seed: seed of the order.
        rank, world: number of this process, and how many there are.

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
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._stream, self._collate = stream, collate
        self._batch_tokens, self._seed = max(1, batch_tokens // world), seed
        self._rank, self._world = rank, world
        # The pass; where the window at hand begins: the place of its shard in the order of this
        # pass, and the row there; the windows before it in all passes; its batches that were given.
        self.position = dict.fromkeys(("passes", "shard", "row", "windows", "of_window"), 0)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            at = self.position
            is_whole_pass = not (at["shard"] or at["row"] or at["of_window"])
            is_empty = True
            for rows, end in self._windows():
                items = self._stream.make(self._stream.shards.columns(rows))
                for batch in islice(self._batches_of(items), at["of_window"], None):
                    is_empty = False
                    # A new one, since a checkpoint may keep that of before.
                    at = self.position = {**at, "of_window": at["of_window"] + 1}
                    yield self._collate(items.__getitems__(batch))
                at = self.position = {**at, "windows": at["windows"] + 1, "of_window": 0, **end}
            if is_whole_pass and is_empty:
                raise DataError(
                    f"the training part is a stream, and this process finds no row in it that "
                    f"fits a batch of {self._batch_tokens} tokens: give more data, use fewer "
                    f"processes, or raise training.batch_tokens"
                )
            self.position = {**at, "passes": at["passes"] + 1, "shard": 0, "row": 0}

    def _windows(self) -> Iterator[tuple[list[Row], dict[str, int]]]:
        """Yields the rows of each window of this pass from the position on, and where it ends."""
        shards, at = self._stream.shards, self.position
        order = np.random.default_rng((self._seed, at["passes"])).permutation(shards.number)
        by_shard = shards.number % self._world == 0
        if by_shard:
            order = order[self._rank :: self._world]
        window: list[Row] = []
        for place in range(at["shard"], len(order)):
            begin = at["row"] if place == at["shard"] else 0
            rows = islice(shards.rows(int(order[place])), begin, None)
            for number, row in enumerate(rows, start=begin):
                if by_shard or number % self._world == self._rank:
                    window.append(row)
                if len(window) == self._stream.window:
                    yield window, {"shard": place, "row": number + 1}
                    window = []
        if window:
            yield window, {"shard": len(order), "row": 0}

    def _batches_of(self, items: Items) -> Iterator[list[int]]:
        """Yields the batches of a window, without items that are too long for any."""
        number = self.position["windows"]
        items.set_epoch(number)  # items that are random differ between windows
        lengths = np.asarray(items.lengths)
        longest = lengths.reshape(len(lengths), -1).max(axis=1, initial=0)
        fitting = np.flatnonzero(longest <= self._batch_tokens)
        if len(fitting) < len(lengths):
            # Without the length of an item: what is the same each time is shown once.
            warnings.warn(
                f"the stream has items that are longer than a batch of one process, "
                f"{self._batch_tokens} tokens: they are left out; raise batch_tokens to have them",
                stacklevel=2,
            )
        if len(fitting):
            batches = token_batches(
                lengths[fitting], self._batch_tokens, seed=self._seed, epoch=number
            )
            yield from (fitting[batch].tolist() for batch in batches)
