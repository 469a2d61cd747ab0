"""Running text that is read while it is trained on: files, or a dataset of the hub, as a stream."""

import hashlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from headwise.data.corpora import Source
from headwise.data.running.documents import Document, Marked, marked_rows
from headwise.data.running.settings import TextFiles, TextHub
from headwise.data.settings import Part
from headwise.data.sources import (
    CorpusError,
    file_size,
    load_hub_split,
    read_lines,
    text_fields,
)
from headwise.data.store import file_identity
from headwise.training.streaming import ROW

_PASSAGE_WORDS = 1000


class TextStream:
    """The training part of a text in pieces: its files, or the shards of a split.

    Its rows are documents. One of more than about 1,000 words is several rows, so that no row
    fills the memory. Each iteration reads all of the text anew.

    Attributes:
        settings: the settings of the data.
        shards: the number of pieces.
        origin: where the text comes from, in words.
        digest: a hash of the names and sizes of the files, or of the name and the revision of the
            dataset. What is in them is not known before it is read.
    """

    def __init__(self, settings: TextFiles | TextHub) -> None:
        self.settings = settings
        if isinstance(settings, TextHub):
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
        else:
            files = settings.train
            self.origin, self.shards = ", ".join(path.name for path in files), len(files)
            self.identity = " ".join(map(file_identity, files))
            made_of = " ".join(f"{path.name} {file_size(path)}" for path in files)
        self.digest = hashlib.sha256(made_of.encode()).hexdigest()

    def rows_of(self, shard: int) -> Iterator[str]:
        """Yields the rows of a piece as they stand in the data, which may have several lines."""
        settings = self.settings
        if isinstance(settings, TextFiles):
            return read_lines(settings.train[shard], settings.max_bytes)
        rows = self._split.shard(self.shards, shard)
        mending = "Set field to one of these."
        return (
            text for (text,) in text_fields(rows, [settings.field], self._where(shard), mending)
        )

    def head(self) -> dict[Part, Source]:
        """Returns the sources of the parts that are held out from the head of the stream."""
        number = self.settings.held_out_rows
        found: dict[Part, Source] = {}
        for i, part in enumerate(self.settings.held_out):
            found[part] = Source(self.identity, partial(self._head, i * number, (i + 1) * number))
        return found

    def _head(self, start: int, stop: int) -> tuple[Marked, str]:
        rows = list(islice(self.rows_of(0), start, stop + 1))
        if len(rows) <= stop - start:
            raise CorpusError(
                f"{self.origin}: the first {self._piece} has {start + len(rows):,} rows, expected "
                f"more than the {stop:,} that are held out for validation and test. Set "
                f"data.held_out_rows to fewer, or give data of their own for these parts."
            )
        lines = marked_rows(self._where(0), rows[:-1], self.settings.documents)
        return lines, f"rows {start + 1:,} to {stop:,} of the training data"

    @property
    def _piece(self) -> str:
        return "shard" if isinstance(self.settings, TextHub) else "file"

    def _where(self, shard: int) -> str:
        if isinstance(self.settings, TextHub):
            return f"dataset {self.settings.name!r}, {self.origin}, shard {shard}"
        return str(self.settings.train[shard])

    def __iter__(self) -> Iterator[Document]:
        return self.documents_of(range(self.shards))

    def documents_of(self, shards: Iterable[int]) -> Iterator[Document]:
        """Yields the rows of some pieces."""
        held_out = self.settings.held_out_rows * len(self.settings.held_out)
        for shard in shards:
            rows = islice(self.rows_of(shard), 0 if shard else held_out, None)
            yield from _cut(marked_rows(self._where(shard), rows, self.settings.documents))

    def rows(self) -> Any:
        """Returns the stream as a `datasets.IterableDataset`."""
        from datasets import IterableDataset

        shards = {"shards": list(range(self.shards))}
        return IterableDataset.from_generator(partial(_examples, self), gen_kwargs=shards)


def _examples(stream: TextStream, shards: list[int]) -> Iterator[dict[str, Document]]:
    for document in stream.documents_of(shards):
        yield {ROW: document}


def _cut(lines: Marked) -> Iterator[Document]:
    """Yields documents, the longer of them in pieces of about 1,000 words."""
    document: Document = []
    words = 0
    for line, begins in lines:
        if document and (begins or words >= _PASSAGE_WORDS):
            yield document
            document, words = [], 0
        document.append(line)
        words += len(line.split())
    if document:
        yield document
