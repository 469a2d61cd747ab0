"""Batches of a training split that is read during the training, and is never stored.

The rows of a stream are read in windows of some thousand rows. The rows of a window are encoded
together and give batches in a random order; then the next window is read. At its end the stream
begins again, with its shards in another order. So a stream has no length and no end.

The order depends on the seed, the pass and the window alone. A position tells the window and the
number of its batches that were given, so that a resumed run continues with exactly the next batch.
(The shuffle buffers of `datasets` are empty when a run is resumed.)
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice

import datasets
import numpy as np

from headwise.data.encode import EncodedDataset, hash_of
from headwise.data.load import (
    Columns,
    DataError,
    Row,
    TaskData,
    clean_settings,
    column_names,
    file_signature,
    from_hub,
    keep_encoded,
    pick_columns,
    rows_of_shard,
    shards_of,
)
from headwise.data.settings import SPLITS, Data, files_of
from headwise.training.batches import Batch, Collate, token_batches


class Stream:
    """A training split that is a stream of shards: of files, or of the shards of a dataset.

    Attributes:
        encode: returns the dataset of the rows of a window, which are given as columns; the task
            sets it.
        window: the number of rows that are in memory at once.
        num_shards: the number of shards.
        held_out: the names of the splits that are taken from the head of the first shard.
        content_hash: a hash of the sizes, the times of change and the ends of files, or of the
            revision of a dataset on the hub, and of the settings that decide which of its rows are
            read, and how.
    """

    encode: Callable[[Columns], EncodedDataset]

    def __init__(self, data: Data, task: type[TaskData]) -> None:
        self.window = data.window
        self._held_out_size, self._features = data.held_out, None
        self._names, self._types = column_names(data, "train", task), task.column_types
        self._shards: list[Callable[[], Iterator[Row]]]
        sources: list[object] = []
        if "train" in data.files:
            shards = shards_of(data.files["train"])
            self._shards = [partial(rows_of_shard, shard) for shard in shards]
            paths = files_of(data.files["train"])
            sources += [file_signature(path, may_move=True) for path in paths]
        else:
            rows = keep_encoded(from_hub(data, "train", task, streaming=True))
            self._features, count = rows.features, int(rows.num_shards)
            self._shards = [partial(iter, rows.shard(count, index)) for index in range(count)]
            builder = datasets.load_dataset_builder(data.path, data.name, revision=data.revision)
            files = (builder.config.data_files or {}).values()
            sources += [data.path, data.name, *(split.origin_metadata for split in files)]
        self.num_shards = len(self._shards)
        named = {x for x in SPLITS if data.path and data.split.get(x, x) is not None}
        self.held_out = [split for split in SPLITS[1:] if split not in {*data.files, *named}]
        sources += [self._names, data.split.get("train"), data.options, clean_settings(data, task)]
        self.content_hash = hash_of(*sources, data.window, data.held_out, self.held_out)

    def held_out_rows(self, split: str) -> datasets.Dataset:
        """Returns the rows of a split that is held out."""
        begin = self.held_out.index(split) * self._held_out_size
        end = begin + self._held_out_size
        rows = list(islice(self._shards[0](), begin, end))
        if begin + len(rows) < end:
            raise DataError(
                f"the first file or shard has {begin + len(rows):,} rows, expected more than the "
                f"{end:,} that are held out: set data.held_out to fewer, or give data of their own "
                f"for the validation and the test split"
            )
        return datasets.Dataset.from_list(rows, self._features)

    def train_rows(self, shard: int) -> Iterator[Row]:
        """Yields the rows of a shard without those that are held out."""
        begin = 0 if shard else len(self.held_out) * self._held_out_size
        return islice(self._shards[shard](), begin, None)

    def columns(self, rows: list[Row]) -> Columns:
        """Returns rows as the columns of the task."""
        # One file may have a column that others lack.
        shared = [name for name in rows[0] if all(name in row for row in rows)]
        columns = {name: [row[name] for row in rows] for name in shared}
        known = self._features or {name: rows[0][name] for name in shared}
        return pick_columns(columns, self._names, known, self._types)

    def head(self, count: int) -> Columns:
        """Returns the first training rows, as the columns of the task."""
        shards = map(self.train_rows, range(self.num_shards))
        rows = list(islice(chain.from_iterable(shards), count))
        if not rows:
            raise DataError("the training split is a stream without rows, expected some")
        return self.columns(rows)


class StreamBatches:
    """The endless batches of one of the processes that share a stream.

    Each process reads its own shards if their number is a multiple of the number of processes;
    otherwise it reads every `world`-th row of all shards.

    Args:
        stream: the training split.
        collate: joins items into a batch.
        batch_tokens: the size of a batch of all processes together.
        seed: the seed of the order.
        rank, world: the number of this process, and the number of processes.

    Attributes:
        per_epoch: None, since a stream has no length.
        position: the place in the stream behind the last batch. A resumed training sets it.
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
        # passes: number of finished passes over the data; shard, row: where the current window
        # begins, `shard` counted in the order of this pass; windows: number of finished windows in
        # all passes; of_window: number of batches of the current window that were given.
        self.position = dict.fromkeys(("passes", "shard", "row", "windows", "of_window"), 0)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            start = self.position
            is_whole_pass = not (start["shard"] or start["row"] or start["of_window"])
            is_empty = True
            for rows, end in self._windows():
                items = self._stream.encode(self._stream.columns(rows))
                for batch in islice(self._window_batches(items), self.position["of_window"], None):
                    is_empty = False
                    self._move(of_window=self.position["of_window"] + 1)
                    yield self._collate(items.__getitems__(batch))
                self._move(windows=self.position["windows"] + 1, of_window=0, **end)
            if is_whole_pass and is_empty:
                raise DataError(
                    f"the training split is a stream, and this process finds no row in it that "
                    f"fits a batch of {self._batch_tokens} tokens: give more data, use fewer "
                    f"processes, or raise training.batch_tokens"
                )
            self._move(passes=self.position["passes"] + 1, shard=0, row=0)

    def _move(self, **changes: int) -> None:
        # A new dictionary, since a checkpoint may hold the old one.
        self.position = {**self.position, **changes}

    def _windows(self) -> Iterator[tuple[list[Row], dict[str, int]]]:
        """Yields the rows of each window that is left in this pass, and the window's end."""
        stream, position = self._stream, self.position
        random = np.random.default_rng((self._seed, position["passes"]))
        order = random.permutation(stream.num_shards)
        by_shard = stream.num_shards % self._world == 0
        if by_shard:
            order = order[self._rank :: self._world]
        window: list[Row] = []
        for place in range(position["shard"], len(order)):
            begin = position["row"] if place == position["shard"] else 0
            rows = islice(stream.train_rows(int(order[place])), begin, None)
            for number, row in enumerate(rows, start=begin):
                if by_shard or number % self._world == self._rank:
                    window.append(row)
                if len(window) == stream.window:
                    yield window, {"shard": place, "row": number + 1}
                    window = []
        if window:
            yield window, {"shard": len(order), "row": 0}

    def _window_batches(self, items: EncodedDataset) -> Iterator[list[int]]:
        """Yields the batches of a window, without the items that are longer than a batch."""
        window = self.position["windows"]
        items.set_epoch(window)  # the random parts of items differ between windows
        lengths = np.asarray(items.lengths)
        if not len(lengths):  # all rows of the window were left out
            return
        longest = lengths.reshape(len(lengths), -1).max(axis=1)
        fitting = np.flatnonzero(longest <= self._batch_tokens)
        if len(fitting) < len(lengths):
            # The text is the same each time, so that Python shows it once.
            warnings.warn(
                f"the stream has items that are longer than a batch of one process, "
                f"{self._batch_tokens} tokens: they are left out; raise batch_tokens to have them",
                stacklevel=2,
            )
        if not len(fitting):
            return
        lengths = lengths[fitting]
        for batch in token_batches(lengths, self._batch_tokens, seed=self._seed, epoch=window):
            yield fitting[batch].tolist()
