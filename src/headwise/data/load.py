"""Reads rows from files, from a dataset of the hub, or from a generator.

Rows of every source are a `datasets.Dataset`; `pick_columns` takes the columns of a task from it.
"""

import csv
import glob
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, islice, zip_longest
from numbers import Number
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import datasets
import fsspec

from headwise.data.settings import Data, Files, files_of
from headwise.messages import did_you_mean, expected_one_of, how_to_convert, shown

# To be raised when reading or encoding changes, so that cached rows are made anew.
FORMAT = 3
Row = dict[str, Any]
Columns = dict[str, Any]  # name of a column to its values
Names = Mapping[str, str | None]  # the task's name of a column to its name in the data
Types = Mapping[str, str]  # the task's name of a column to what it holds, one of `_TYPES`
_READERS = {".csv": "table", ".tsv": "table", ".parquet": "parquet"}
_READERS |= dict.fromkeys((".json", ".jsonl", ".ndjson"), "json")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_TYPES: dict[str, Any] = {"texts": str, "texts or numbers": (str, Number)}
_BLANK = re.compile(r"\s*")
_END = 2**16  # bytes at each end of a file by which it is known


class DataError(ValueError):
    """Data that cannot be read or used; the message says how to mend them."""


class TaskData:
    """The columns of a task, and the rows that it uses: the base of `headwise.tasks.task.Task`."""

    name: ClassVar[str]
    # Functions that return data that are installed: their rows of `train`, or of all splits.
    built_in: ClassVar[Mapping[str, Callable[..., dict[str, datasets.Dataset]]]] = {}
    # The columns of rows and their usual names in data; None for one that data need not have.
    columns: ClassVar[Names]
    column_types: ClassVar[Types] = {}  # other columns hold anything
    # The column whose hash decides the split of a row; None: the end of the text is held out.
    key: ClassVar[str | None] = None
    rows_at_once: ClassVar[int] = 1000  # the number of rows in a call of `clean`
    clean_features: ClassVar[datasets.Features | None] = None  # the types that `clean` returns
    # The keys of data on which `clean` depends; by default all, so that any change reads anew.
    clean_keys: ClassVar[set[str] | None] = None

    @staticmethod
    def read_files(files: Files, data: Data) -> datasets.Dataset:
        """Returns the rows of the files of a split."""
        return from_files(files, data)

    @classmethod
    def clean(cls, columns: Columns, data: Any, split: str) -> Columns:
        """Returns the rows that the task uses, of some rows of a split."""
        return columns


def load(data: Data, split: str, task: type[TaskData]) -> datasets.Dataset:
    """Returns the rows of a split, with the columns that a task needs.

    Raises:
        DataError: the data cannot be read, or lack a column.
    """
    files = data.files.get(split)
    rows = from_hub(data, split, task) if files is None else task.read_files(files, data)
    rows, names = keep_encoded(rows), column_names(data, split, task)
    try:
        pick_columns(rows[:0], names, rows.features, task.column_types)
    except DataError as error:
        source = data.path if files is None else ", ".join(files_of(files))
        raise DataError(f"{source}: {error}") from None
    needed = {key for name in names.values() if name for key in (name, name.split(".")[0])}
    return rows.select_columns([name for name in rows.column_names if name in needed])


def column_names(data: Data, split: str, task: type[TaskData]) -> Names:
    """Returns the names of a task's columns in the data; empty for data that are installed."""
    is_built_in = data.path in task.built_in and split not in data.files
    return {} if is_built_in else {**task.columns, **data.columns}


def clean_settings(data: Data, task: type[TaskData]) -> dict[str, Any]:
    """Returns the settings on which the `clean` of a task depends."""
    return data.model_dump(
        include=task.clean_keys, exclude={"files", "tests", "window", "held_out"}
    )


def from_hub(data: Data, split: str, task: type[TaskData], *, streaming: bool = False) -> Any:
    """Returns a split of a dataset of the hub, or of a folder."""
    name, options = data.split.get(split) or split, {**data.options, "streaming": streaming}
    try:
        return datasets.load_dataset(
            data.path, data.name, split=name, revision=data.revision, **options
        )
    except Exception as error:
        raise DataError(
            f"data.path is {data.path!r}, whose split {name!r} cannot be read "
            f"({_reason(error)}): give the name of a dataset on the Hugging Face hub, a folder "
            f"that holds one, or data that are installed, {', '.join(task.built_in)}"
            f"{did_you_mean(data.path, task.built_in)}; name another split with "
            f"data.split.{split}=..., or have a share of the training data with null"
        ) from error


def _reason(error: Exception) -> str:
    """Returns an error of `datasets` and its cause in one line."""
    return " ".join(f"{error} {error.__cause__ or ''}".split()).rstrip(".")


def keep_encoded(rows: Any) -> Any:
    """Returns rows whose images and sounds stay files: tasks decode them, and name bad ones."""
    for name, feature in (rows.features or {}).items():
        if isinstance(feature, datasets.Image | datasets.Audio):
            rows = rows.cast_column(name, type(feature)(decode=False))
    return rows


def pick_columns(columns: Columns, names: Names, features: Any, types: Types) -> Columns:
    """Returns the columns of a task under the task's names; numbers of classes become names.

    Args:
        columns: the columns of some rows.
        names: the name of each column in the data, with dots inside records; None for a column that
            the data need not have.
        features: the features of the data; or a row, where the features are not known.
        types: the `column_types` of the task.

    Raises:
        DataError: the data lack a column, or it holds values of another type.

    >>> rows = {"texts": [{"en": "a"}, {"en": "b"}]}
    >>> pick_columns(rows, {"source": "texts.en"}, {"texts": {"en": ""}}, {})
    {'source': ['a', 'b']}
    """
    known = dict(_flatten(features))
    picked = {}
    for column, name in names.items():
        if name is None:
            continue
        # A column that a task has read itself may hold records, such as a sound with its path.
        if name not in known and not (name == column and name in features):
            raise DataError(
                f"the data have no column {name!r}, {expected_one_of(name, known)}; name it with "
                f"data.columns.{column}=..."
            )
        outer, *inner = [name] if name in columns else name.split(".")
        values, feature = columns[outer], known.get(name)
        for key in inner:
            values = [None if record is None else record[key] for record in values]
        if isinstance(feature, datasets.ClassLabel):  # -1 is no label, as in test sets on the hub
            values = [None if x is None or x < 0 else feature.names[x] for x in values]
        expected = types.get(column, "")
        for value in values if expected else ():
            if not (value is None or isinstance(value, _TYPES[expected])):
                raise DataError(
                    f"the column {name!r} holds {shown(value)}, expected {expected}; name another "
                    f"one with data.columns.{column}=..."
                )
        picked[column] = values
    return picked


def _flatten(features: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the name of each column, with dots inside records, and its feature."""
    for name, feature in features.items():
        inner = feature.flatten() if isinstance(feature, datasets.Translation) else feature
        if isinstance(inner, Mapping):
            yield from _flatten(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", feature


def from_generator(generator: Callable[..., Iterator[Row]], **options: Any) -> datasets.Dataset:
    """Returns the rows of a generator, which `datasets` caches.

    Args:
        generator: a function of a module, which is called with the options.
        options: all on which its rows depend, also those that it does not read, such as the version
            of a package or the signature of a file; so it takes `**_`.
    """
    # `datasets` would divide lists among its processes.
    values = {name: tuple(x) if isinstance(x, list) else x for name, x in options.items()}
    try:
        rows = datasets.Dataset.from_generator(generator, gen_kwargs={**values, "format": FORMAT})
        return keep_encoded(rows)
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, DataError):
            raise error.__cause__ from None
        if isinstance(error.__cause__, datasets.arrow_writer.SchemaInferenceError):
            raise DataError(f"the data have no rows, expected some ({options})") from None
        raise


# --- files ------------------------------------------------------------------------------------


def from_files(files: Files, data: Data) -> datasets.Dataset:
    """Returns the rows of the files of a split: one file, several, or one for each column."""
    shards, paths = shards_of(files), files_of(files)
    # JSON is read here: `datasets` takes texts such as 2021-01-01 for times.
    reader = _choose_reader(shards[0])
    if reader == "parquet" or (reader == "json" and data.options):
        names = list(map(_as_name, paths))
        try:
            return datasets.load_dataset(reader, data_files=names, split="train", **data.options)
        except Exception as error:
            message = f"{', '.join(paths)} cannot be read: {_reason(error)}"
            raise DataError(message) from error
    return from_generator(_shard_rows, shards=shards, signatures=list(map(file_signature, paths)))


def shards_of(files: Files) -> list[dict[str, str]]:
    """Returns the files that are read one after another, each as column to path.

    The column of a single file is "", since a table names its columns itself.
    """
    if not isinstance(files, Mapping):
        return [{"": path} for path in files_of(files)]
    columns = [files_of(paths) for paths in files.values()]
    if len(set(map(len, columns))) > 1:
        raise DataError(
            f"the columns {', '.join(files)} have different numbers of files, expected equal "
            f"ones: file n of one belongs to file n of the other"
        )
    return [dict(zip(files, paths, strict=True)) for paths in zip(*columns, strict=True)]


def _as_name(path: str) -> str:
    """Returns a path so that `datasets` does not take the name of a file for a pattern."""
    return glob.escape(path) if Path(path).is_file() else path


def file_signature(path: str, *, may_move: bool = False) -> str:
    """Returns the path of a file with its size and time of change, by which a cache knows it.

    With `may_move`, a file of this machine has a hash of both its ends in place of its path.
    """
    try:
        file_system, file = fsspec.core.url_to_fs(path)
        info, name = file_system.info(file), path
        if may_move and "://" not in path:
            ends = file_system.head(file, _END) + file_system.tail(file, _END)
            name = hashlib.sha256(ends).hexdigest()
    except (OSError, ValueError) as error:
        hint = "Patterns with * are not expanded: list the files. " if "*" in path else ""
        raise DataError(
            f"there is no file {path} ({type(error).__name__}). {hint}If the data have moved, say "
            f"where they are with --set data.files.SPLIT=..."
        ) from error
    version = [info.get(key) for key in ("size", "mtime", "ETag", "LastModified")]
    return f"{name} {version}"


def _shard_rows(shards: Sequence[Mapping[str, str]], **_: Any) -> Iterator[Row]:
    # One table may have a column that others lack.
    names = [set(row) for shard in shards for row in islice(rows_of_shard(shard), 1)]
    if not names:
        paths = chain.from_iterable(shard.values() for shard in shards)
        raise DataError(f"{', '.join(paths)}: there are no rows, expected some")
    shared = set.intersection(*names)
    for shard in shards:
        for row in rows_of_shard(shard):
            yield {name: value for name, value in row.items() if name in shared}


def rows_of_shard(shard: Mapping[str, str]) -> Iterator[Row]:
    """Yields the rows of one file, or of several files that are a column each.

    Raises:
        DataError: a file is not UTF-8, or files have unequal numbers of lines; the message names
            the file and the line.
    """
    if (reader := _choose_reader(shard)) in ("table", "json"):
        yield from (_table_rows if reader == "table" else _json_rows)(shard[""])
        return
    if reader != "text":
        files = _as_name(shard[""])
        yield from datasets.load_dataset(reader, data_files=files, split="train", streaming=True)
        return
    columns = {name or "text": lines(path) for name, path in shard.items()}
    for number, row in enumerate(zip_longest(*columns.values()), start=1):
        if None in row:
            left = (sum(1 for _ in column) for column in columns.values())
            counts = [number - (line is None) + n for line, n in zip(row, left, strict=True)]
            sizes = (f"{path} has {n:,}" for path, n in zip(shard.values(), counts, strict=True))
            raise DataError(
                f"{' and '.join(sizes)} lines, expected equal numbers: line n of one belongs to "
                f"line n of the other; look for a line that was lost or broken in two"
            )
        yield dict(zip(columns, row, strict=True))


def lines(path: str, file: BinaryIO | None = None) -> Iterator[str]:
    r"""Yields the lines of a text file in UTF-8, which may be compressed, without line ends.

    Of an open file, such as standard input, `path` is its name in messages.

    Only `\n` and `\r\n` end a line. Web text has other line breaks of Unicode inside sentences, and
    a reader that splits lines there shifts one side of a parallel corpus.
    """
    number = 0
    try:
        opened = nullcontext(file) if file else fsspec.open(path, "rb", compression="infer")
        with opened as content:
            for number, line in enumerate(content, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number:,}: not UTF-8 (byte 0x{error.object[error.start]:02x}). "
            f"{how_to_convert(error.object)}"
        ) from None
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read after line {number:,}: {error}") from error


def _json_rows(path: str) -> Iterator[Row]:
    """Yields the records of a file of JSON, with the same columns, of which some may lack a few."""
    try:
        values = _json_values(path)
        records = chain.from_iterable(x if isinstance(x, list) else [x] for x in values)
        head = list(islice(records, 1000))
        names = dict.fromkeys(chain.from_iterable(head))
        for record in chain(head, records):
            yield {name: record.get(name) for name in names}
    except DataError:
        raise
    except (ValueError, TypeError, AttributeError) as error:  # no JSON, or no records
        raise DataError(f"{path} cannot be read: {error}") from error


def _json_values(path: str) -> Iterator[Any]:
    """Yields the values of a file of JSON: one in each line, or values of several lines."""
    text = ((n, line) for n, line in enumerate(map(str.strip, lines(path)), start=1) if line)
    _, first = next(text, (1, "[]"))
    try:
        yield json.loads(first)
    except ValueError:  # it ends in another line, or has several values
        whole, end = "\n".join([first, *(line for _, line in text)]), 0
        while end < len(whole):
            value, end = json.JSONDecoder().raw_decode(whole, end)
            yield value
            blank: Any = _BLANK.match(whole, end)
            end = blank.end()
    for number, line in text:
        try:
            yield json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number:,}: no JSON: {error}") from None


def _table_rows(path: str) -> Iterator[Row]:
    """Yields the rows of a table whose first line names the columns; all values are texts.

    The fields of a .csv may be quoted and hold line breaks; a .tsv has no quotes.
    """
    is_tsv = _suffix(path) == ".tsv"
    text = lines(path)
    reader = csv.reader((f"{line}\n" for line in text), strict=True)
    rows: Iterable[list[str]] = (line.split("\t") for line in text) if is_tsv else reader
    header: list[str] = []
    try:
        for number, row in enumerate(rows, start=1):
            where = f"{path}, line {number if is_tsv else reader.line_num:,}"
            if number == 1:
                header = row
                if len(set(header)) < len(header):
                    raise DataError(f"{where}: two columns have one name, expected different ones")
            elif row not in ([], [""]) or len(header) == 1:
                row = row or [""]  # in running text a blank line separates two documents
                if len(row) != len(header):
                    raise DataError(
                        f"{where}: {len(row)} fields, expected {len(header)}, as the first line has"
                    )
                yield dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num:,}: {error}; look for a quotation mark that is not "
            f"closed or not doubled, and write fields of more than 131,072 characters as .jsonl"
        ) from error


def _choose_reader(shard: Mapping[str, str]) -> str:
    """Returns the reader of a file: `text`, `table`, or the name of a builder of `datasets`."""
    suffix = _suffix(next(iter(shard.values())))
    return _READERS.get(suffix, "text") if list(shard) == [""] else "text"


def _suffix(path: str) -> str:
    """Returns the suffix of a file, without that of a compression."""
    file = Path(path)
    return (file.with_suffix("") if file.suffix in _COMPRESSED else file).suffix.lower()
