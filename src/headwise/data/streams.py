"""Texts from files or from a dataset of the hub: whole parts, or a stream to train on."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from headwise.data.corpora import (
    Open,
    Source,
    corpus_fields,
    files_source,
    given_sources,
    split_source,
)
from headwise.data.settings import HubSettings, HubTest, given_parts
from headwise.data.sources import CorpusError, file_size, load_hub_split
from headwise.data.store import file_identity
from headwise.training.streaming import ROW

Item = TypeVar("Item")


def _as_they_are(settings: Any, where: str, rows: Iterable[Any]) -> Iterable[Any]:
    return rows


class Reader(NamedTuple):
    """How texts of one kind are read, in pieces: files, or shards of a split.

    `datasets` pickles the functions with a stream, so that they are those of a module.

    Attributes:
        files: returns the files of each piece, given what names those of a part.
        of_files: yields the rows of a piece, given the settings, its files, and the most bytes
            that one may have.
        of_split: yields the rows of a piece, given the settings, the rows of `datasets`, and words
            on where they are.
        items: yields the items of a stream, given the settings and what `parsed` returns.
        parsed: returns what a part is made of, given the settings, words on where rows are, and
            the rows. The words are "" for a piece of a stream to train on, which may be empty.
        filters: the settings that leave items out. If one is given, it is another stream.
    """

    files: Callable[[Any], Sequence[Sequence[Path]]]
    of_files: Callable[[Any, Sequence[Path], int | None], Iterator[Any]]
    of_split: Callable[[Any, Any, str], Iterator[Any]]
    items: Callable[[Any, Any], Iterator[Any]]
    parsed: Callable[[Any, str, Iterable[Any]], Iterable[Any]] = _as_they_are
    filters: Sequence[str] = ()


def text_corpus_fields(
    kind: str,
    settings: Any,
    built_in: Mapping[str, Source],
    reader: Reader,
    make: Callable[[Any, Mapping[str, Source], Path], None],
    make_test: Callable[[Path, Source, Path], None],
    open_part: Open[Any],
) -> dict[str, Any]:
    """Returns the fields of a `Corpus` of texts.

    Args:
        built_in: the sources of texts that are neither files nor a dataset of the hub.
        reader: how the others are read.
        make: writes the parts, given the settings, the sources, and where to.
        kind, settings, make_test, open_part: see `corpus_fields`.
    """
    source = partial(_source, reader, settings.max_bytes)
    streaming = getattr(settings, "streaming", False)
    stream: Stream[Any] | None = Stream(settings, reader) if streaming else None
    if stream is None:
        sources = built_in or given_sources(settings, source)
    else:
        sources = stream.sources(source)
    make_parts = partial(make, settings, sources)
    fields = corpus_fields(kind, settings, sources, source, make_parts, make_test, open_part)
    return fields if stream is None else stream.added_to(fields)


def origin_of(settings: Any, reader: Reader) -> str | None:
    """Returns words on where texts are read from; None if they are built in."""
    if settings.corpus == "files":
        return f"text files {_names(chain.from_iterable(reader.files(settings.train)))}"
    return settings.origin if isinstance(settings, HubSettings) else None


def _source(reader: Reader, max_bytes: int | None, settings: Any, given: Any) -> Source:
    if isinstance(settings, HubSettings | HubTest):

        def of_split(rows: Any, where: str) -> Iterable[Any]:
            return reader.parsed(settings, where, reader.of_split(settings, rows, where))

        return split_source(settings, given, of_split)
    pieces = reader.files(given)

    def of_files() -> Iterator[Any]:
        for files in pieces:
            rows = reader.of_files(settings, files, max_bytes)
            yield from reader.parsed(settings, ", ".join(map(str, files)), rows)

    return files_source(list(chain.from_iterable(pieces)), of_files)


def _names(files: Iterable[Path]) -> str:
    return ", ".join(path.name for path in files)


class Stream(Generic[Item]):
    """The training part of a text in pieces: its files, or the shards of a split.

    Its rows are lines of a file, or rows of a split; items are made of them. Each iteration reads
    all of the text anew.

    Attributes:
        shards: the number of pieces.
        files: the files of each piece, where the data are no dataset of the hub.
        origin: where the text comes from, in words.
        digest: a hash of the names and sizes of the files, or of the name and the revision of the
            dataset; of a folder, both. What is in them is not known before it is read.
    """

    def __init__(self, settings: Any, reader: Reader) -> None:
        self.settings, self.reader = settings, reader
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
            self.files = reader.files(settings.train)
            paths = list(chain.from_iterable(self.files))
            self.origin, self.shards = _names(paths), len(self.files)
            self.identity = " ".join(map(file_identity, paths))
            made_of = _names_and_sizes(paths)
        self.digest = hashlib.sha256(made_of.encode()).hexdigest()
        filters = [getattr(settings, name) for name in reader.filters]
        if any(each is not None for each in filters):
            made_of = " ".join(map(str, [self.digest, *filters]))
            self.digest = hashlib.sha256(made_of.encode()).hexdigest()

    def rows_of(self, shard: int) -> Iterator[Any]:
        """Yields the rows of a piece as they are read, before items are made of them."""
        settings, reader = self.settings, self.reader
        if isinstance(settings, HubSettings):
            rows = self._split.shard(self.shards, shard)
            return reader.of_split(settings, rows, self.where(shard))
        return reader.of_files(settings, self.files[shard], settings.max_bytes)

    def where(self, shard: int) -> str:
        """Returns how messages name a piece: by its files, or by its dataset and shard."""
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
        held_out = self.reader.parsed(self.settings, self.where(0), rows[:-1])
        return held_out, f"rows {start + 1:,} to {stop:,} of the training data"

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
            rows = islice(self.rows_of(shard), 0 if shard else held_out, None)
            yield from self.reader.items(self.settings, self.reader.parsed(self.settings, "", rows))

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
