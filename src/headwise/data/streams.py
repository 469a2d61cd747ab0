"""Texts that are read while they are trained on: files, or a dataset of the hub, as a stream."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from typing_extensions import Self

from headwise.data.corpora import Source
from headwise.data.settings import HubSettings, given_parts
from headwise.data.sources import CorpusError, file_size, load_hub_split
from headwise.data.store import file_identity
from headwise.training.streaming import ROW

Item = TypeVar("Item")


class Stream(ABC, Generic[Item]):
    """The training part of a text in pieces: its files, or the shards of a split.

    Its rows are lines of a file, or rows of a split; items are made of them. Each iteration reads
    all of the text anew.

    Args:
        settings: the settings of the data.

    Attributes:
        shards: the number of pieces.
        files: the files of each piece, where the data are no dataset of the hub.
        origin: where the text comes from, in words.
        digest: a hash of the names and sizes of the files, or of the name and the revision of the
            dataset; of a folder, both. What is in them is not known before it is read.
    """

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        if isinstance(settings, HubSettings):
            self.origin = f"split {settings.train_split}"
            split = load_hub_split(
                settings.name,
                settings.train_split,
                settings.config,
                settings.revision,
                streaming=True,
            )
            self._split, self.shards = split, int(split.num_shards)
            self.identity = made_of = f"{settings.origin} {self.origin}"
            folder = Path(settings.name).expanduser()
            if folder.is_dir():  # its files tell what a revision tells of a dataset of the hub
                self.identity += file_identity(folder)
                made_of += _names_and_sizes(sorted(filter(Path.is_file, folder.rglob("*"))))
        else:
            self.files = self.files_of(settings.train)
            paths = list(chain.from_iterable(self.files))
            self.origin, self.shards = ", ".join(path.name for path in paths), len(self.files)
            self.identity = " ".join(map(file_identity, paths))
            made_of = _names_and_sizes(paths)
        self.digest = hashlib.sha256(made_of.encode()).hexdigest()

    @classmethod
    def of(cls, settings: Any) -> Self | None:
        """Returns the stream of data whose settings say `streaming`; None for all others."""
        return cls(settings) if getattr(settings, "streaming", False) else None

    @staticmethod
    @abstractmethod
    def files_of(train: Any) -> Sequence[Sequence[Path]]:
        """Returns the files of each piece, given those of the training part."""

    @abstractmethod
    def rows_of(self, shard: int) -> Iterator[Any]:
        """Yields the rows of a piece as they are read, before items are made of them."""

    def read(self, shard: int, rows: Iterable[Any]) -> Iterable[Any]:
        """Returns what the source of a part gives for rows of a piece."""
        return rows

    @abstractmethod
    def items(self, shard: int, rows: Iterable[Any]) -> Iterator[Item]:
        """Yields the items that are trained on, of rows of a piece."""

    def split_of(self, shard: int) -> Any:
        """Returns a shard of the split, a `datasets.IterableDataset`."""
        return self._split.shard(self.shards, shard)

    def where(self, shard: int) -> str:
        """Returns a piece in words, for messages."""
        if isinstance(self.settings, HubSettings):
            return f"dataset {self.settings.name!r}, {self.origin}, shard {shard}"
        return ", ".join(map(str, self.files[shard]))

    def sources(self, source: Callable[[Any, Any], Source]) -> dict[str, Source]:
        """Returns the sources of the other parts, which are given or the head of the stream."""
        number = self.settings.held_out_rows
        found: dict[str, Source] = {}
        for i, part in enumerate(self.settings.held_out):
            found[part] = Source(self.identity, partial(self._head, i * number, (i + 1) * number))
        for part, given in given_parts(self.settings).items():
            if part != "train":
                of_part = source(self.settings, given)
                found[part] = of_part._replace(identity=f"{self.identity} {of_part.identity}")
        return found

    def _head(self, start: int, stop: int) -> tuple[Iterable[Any], str]:
        rows = list(islice(self.rows_of(0), start, stop + 1))
        if len(rows) <= stop - start:
            piece = "shard" if isinstance(self.settings, HubSettings) else "file"
            raise CorpusError(
                f"{self.origin}: the first {piece} has {start + len(rows):,} rows, expected "
                f"more than the {stop:,} that are held out for validation and test. Set "
                f"data.held_out_rows to fewer, or give data of their own for these parts."
            )
        return self.read(0, rows[:-1]), f"rows {start + 1:,} to {stop:,} of the training data"

    def added_to(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Returns the fields of a corpus whose training part this is, from those of the others."""
        note = f"a stream, of which nothing is stored or counted; {self.origin}"
        notes = {"corpus": fields["notes"]["corpus"], "train": note, **fields["notes"]}
        digest = hashlib.sha256(f"{self.digest} {fields['digest']}".encode()).hexdigest()
        return {**fields, "train": self, "notes": notes, "digest": digest}

    def __iter__(self) -> Iterator[Item]:
        return self.items_of(range(self.shards))

    def items_of(self, shards: Iterable[int]) -> Iterator[Item]:
        """Yields the items of some pieces, without those that are held out."""
        held_out = self.settings.held_out_rows * len(self.settings.held_out)
        for shard in shards:
            yield from self.items(
                shard, islice(self.rows_of(shard), 0 if shard else held_out, None)
            )

    def rows(self) -> Any:
        """Returns the stream as a `datasets.IterableDataset`."""
        from datasets import IterableDataset

        shards = {"shards": list(range(self.shards))}
        return IterableDataset.from_generator(partial(_examples, self), gen_kwargs=shards)


def _names_and_sizes(paths: Iterable[Path]) -> str:
    return " ".join(f"{path.name} {file_size(path)}" for path in paths)


def _examples(stream: Stream[Any], shards: list[int]) -> Iterator[dict[str, Any]]:
    for item in stream.items_of(shards):
        yield {ROW: item}
