"""Reads the rows of data: from files, a dataset of the hub, or data that are there once installed.

Whatever the source, rows are a `datasets.Dataset` with the columns of the task.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import fsspec

from headwise.data.settings import Data, Files, files_of
from headwise.messages import how_to_convert, one_of
from headwise.ops.checks import did_you_mean

if TYPE_CHECKING:
    from headwise.tasks.task import Task

# Raised when reading or encoding changes, so that what is in the cache is made anew.
FORMAT = 1
Row = dict[str, Any]
Columns = Mapping[str, str | None]
_READ_AS = {".csv": "table", ".tsv": "table", ".parquet": "parquet"}
_READ_AS |= dict.fromkeys((".json", ".jsonl", ".ndjson"), "json")
_PACKED = (".gz", ".bz2", ".xz", ".zst")


class DataError(ValueError):
    """Data that cannot be read, or cannot be used as they are; the message says how to mend it."""


def load(data: Data, part: str, task: "type[Task]") -> datasets.Dataset:
    """Returns the rows of a part as they are read, with the columns of a task.

    Raises:
        DataError: the data cannot be read, or lack a column.
    """
    files = data.files.get(part)
    rows = from_hub(data, part, task) if files is None else task.read_files(files, data)
    try:
        return named(rows, {**task.columns, **data.columns})
    except DataError as error:
        where = data.path if files is None else ", ".join(files_of(files))
        raise DataError(f"{where}: {error}") from None


def from_hub(data: Data, part: str, task: "type[Task]", *, streaming: bool = False) -> Any:
    """Returns a split of a dataset of the hub, or of a folder."""
    assert data.path is not None
    split = data.split.get(part) or part
    try:
        return datasets.load_dataset(
            data.path,
            data.name,
            split=split,
            revision=data.revision,
            streaming=streaming,
            **data.options,
        )
    # What datasets says of a file that it cannot parse stands in the cause.
    except Exception as error:
        reason = " ".join(f"{error} {error.__cause__ or ''}".split()).rstrip(".")
        hint = did_you_mean(data.path, task.built_in)
        remedy = (
            f"give the name of a dataset on the Hugging Face hub, a folder that holds one, or data "
            f"that are installed, {', '.join(task.built_in)}{hint}"
        )
        if "split" in reason.lower() and part != "train":
            remedy = (
                f"name another split with data.split.{part}=..., or have a share of the training "
                f"data with data.split.{part}=null"
            )
        raise DataError(
            f"data.path is {data.path!r}, whose split {split!r} cannot be read ({reason}): {remedy}"
        ) from error


def named(rows: Any, columns: Columns) -> Any:
    """Returns rows with the columns of a task alone, under their names.

    Args:
        rows: a data set of `datasets`.
        columns: each column of the task and its name in the data, with dots inside records; None
            for a column that the data need not have.
    """
    theirs = {ours: name for ours, name in columns.items() if name is not None}
    if any("." in name and name not in rows.column_names for name in theirs.values()):
        rows = rows.flatten()
    for ours, name in theirs.items():
        if name not in rows.column_names:
            raise _no_column(name, ours, rows.column_names)
    rows = rows.select_columns(list(dict.fromkeys(theirs.values())))
    rows = rows.rename_columns({name: ours for ours, name in theirs.items() if name != ours})
    rows = undecoded(rows)
    known = dict(rows.features or {})
    classes = {name: of.names for name, of in known.items() if isinstance(of, datasets.ClassLabel)}
    if not classes:
        return rows
    features = datasets.Features(known | dict.fromkeys(classes, datasets.Value("string")))
    return rows.map(partial(_names, classes=classes), batched=True, features=features)


def undecoded(rows: Any) -> Any:
    """Returns rows with images and sounds as files: we decode them, and name those that are bad."""
    for name, of in (rows.features or {}).items():
        if isinstance(of, datasets.Image | datasets.Audio):
            rows = rows.cast_column(name, type(of)(decode=False))
    return rows


def _names(columns: Mapping[str, list[int | None]], classes: Mapping[str, list[str]]) -> Row:
    """Returns the names of classes in place of their numbers; there is none for None and -1."""
    return {
        column: [None if x is None or x < 0 else names[x] for x in columns[column]]
        for column, names in classes.items()
    }


def picked(
    rows: Iterable[Row], columns: Columns, features: datasets.Features | None = None
) -> Iterator[Row]:
    """Yields the same of rows that are read one by one, of types that may be known; see `named`."""
    theirs = {ours: name for ours, name in columns.items() if name is not None}
    classes = {
        ours: of.names
        for ours, name in theirs.items()
        if isinstance(of := (features or {}).get(name), datasets.ClassLabel)
    }
    for row in rows:
        found = {ours: _at(row, name, ours) for ours, name in theirs.items()}
        names = _names({name: [found[name]] for name in classes}, classes=classes)
        yield found | {name: label for name, (label,) in names.items()}


def _at(row: Any, name: str, ours: str) -> Any:
    value: Any = row
    for key in [name] if name in row else name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise _no_column(name, ours, list(row))
        value = value[key]
    return value


def _no_column(name: str, ours: str, known: Sequence[str]) -> DataError:
    return DataError(
        f"the data have no column {name!r}, {one_of(name, known)}; name it with "
        f"data.columns.{ours}=..."
    )


def generated(generator: Callable[..., Iterator[Row]], **options: Any) -> datasets.Dataset:
    """Returns the rows of a generator, which are made once and kept in the cache of `datasets`.

    Args:
        generator: a function of a module, called with the options.
        options: all on which its rows depend, also what it does not read, such as the version of
            a package or the stamp of a file; so it takes `**_`.
    """
    # Lists would be taken for what may be divided among processes.
    fixed = {name: tuple(x) if isinstance(x, list) else x for name, x in options.items()}
    try:
        rows = datasets.Dataset.from_generator(generator, gen_kwargs={**fixed, "format": FORMAT})
        return undecoded(rows)
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, DataError):
            raise error.__cause__ from None
        if isinstance(error.__cause__, datasets.arrow_writer.SchemaInferenceError):
            raise DataError(f"the data have no rows, expected some ({options})") from None
        raise


# --- files ------------------------------------------------------------------------------------


def from_files(files: Files, data: Data) -> datasets.Dataset:
    """Returns the rows of the files of a part.

    Args:
        files: a file, several of them, or one for each column.
        data: its `options` are those of `load_dataset` for .json and .parquet.
    """
    shards = shards_of(files)
    if (kind := _kind(shards[0])) in ("json", "parquet"):
        paths = files_of(files)
        try:
            return datasets.load_dataset(kind, data_files=paths, split="train", **data.options)
        except Exception as error:
            reason = " ".join(f"{error} {error.__cause__ or ''}".split())
            raise DataError(f"{', '.join(paths)} cannot be read: {reason}") from error
    stamps = [stamp(path) for path in files_of(files)]
    return generated(_rows, shards=shards, stamps=stamps)


def shards_of(files: Files) -> list[dict[str, str]]:
    """Returns the files that are read one after another, each as column to path.

    The column of a single file is "", since a table names its columns itself.
    """
    if isinstance(files, Mapping):
        columns = {name: files_of(given) for name, given in files.items()}
        if len({len(paths) for paths in columns.values()}) > 1:
            raise DataError(
                f"the columns {', '.join(columns)} have different numbers of files, expected "
                f"equal ones: file n of one belongs to file n of the other"
            )
        return [
            dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)
        ]
    return [{"": path} for path in files_of(files)]


def stamp(path: str) -> str:
    """Returns what tells a file from others, and from what stood at its path before."""
    try:
        files, _, (found,) = fsspec.get_fs_token_paths(path)
        known = files.info(found)
    except (OSError, ValueError) as error:
        raise DataError(
            f"there is no file {path} ({type(error).__name__}). If the data have moved, say where "
            f"they are with --set data.files.PART=..."
        ) from error
    marks = [known.get(key) for key in ("size", "mtime", "ETag", "LastModified")]
    return f"{path} {marks}"


def rows_of_shard(shard: Mapping[str, str]) -> Iterator[Row]:
    """Yields the rows of a file, or of files of which each is a column.

    Raises:
        DataError: a file is not UTF-8, or files have unequal numbers of lines; the message names
            the file and the line.
    """
    if (kind := _kind(shard)) == "table":
        yield from _table(shard[""])
        return
    if kind != "text":
        yield from datasets.load_dataset(kind, data_files=shard[""], split="train", streaming=True)
        return
    columns = {name or "text": lines(path) for name, path in shard.items()}
    for number, row in enumerate(zip_longest(*columns.values()), start=1):
        if None in row:
            rest = (sum(1 for _ in column) for column in columns.values())
            counts = [number - (x is None) + more for x, more in zip(row, rest, strict=True)]
            told = (f"{path} has {n:,}" for path, n in zip(shard.values(), counts, strict=True))
            raise DataError(
                f"{' and '.join(told)} lines, expected equal numbers: line n of one belongs to "
                f"line n of the other; look for a line that was lost or broken in two"
            )
        yield dict(zip(columns, row, strict=True))


def lines(path: str) -> Iterator[str]:
    r"""Yields the lines of a text file in UTF-8, which may be compressed, without line ends.

    Only `\n` and `\r\n` end a line: other characters that Unicode calls line breaks occur inside
    sentences of web text, and a reader that divides there shifts one side of a parallel corpus.
    """
    number = 0
    try:
        with fsspec.open(path, "rb", compression="infer") as file:
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number:,}: not UTF-8 (byte 0x{error.object[error.start]:02x}). "
            f"{how_to_convert(error.object)}"
        ) from None
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read after line {number:,}: {error}") from error


def _rows(shards: Sequence[Mapping[str, str]], **_: Any) -> Iterator[Row]:
    for shard in shards:
        yield from rows_of_shard(shard)


def _kind(shard: Mapping[str, str]) -> str:
    """Returns how a file is read: as `text`, as a `table`, or by the builder of `datasets`."""
    suffix = _suffix(next(iter(shard.values())))
    return _READ_AS.get(suffix, "text") if list(shard) == [""] else "text"


def _table(path: str) -> Iterator[Row]:
    """Yields the rows of a table whose first line names the columns; all values are text.

    In .csv, fields may be quoted, and have line breaks then; .tsv knows no quotes.
    """
    is_tsv = _suffix(path) == ".tsv"
    found = lines(path)
    reader = csv.reader((f"{line}\n" for line in found), strict=True)
    rows = (line.split("\t") for line in found) if is_tsv else reader
    try:
        header = next(rows, [])
        if len(set(header)) < len(header):
            raise DataError(f"{path}, line 1: two columns have one name, expected different ones")
        for count, row in enumerate(rows, start=2):
            if row == [] or row == [""]:
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{path}, line {count if is_tsv else reader.line_num:,}: {len(row)} fields, "
                    f"expected {len(header)}, as the first line has"
                )
            yield dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num:,}: {error}") from error


def _suffix(path: str) -> str:
    """Returns the suffix of a file, without that of what packed it."""
    name = Path(path)
    return (name.with_suffix("") if name.suffix in _PACKED else name).suffix.lower()
