"""Reads the rows of data: from files, a dataset of the hub, or data that are there once installed.

Whatever the source, rows are a `datasets.Dataset`, of which `picked` takes the columns of a task.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import fsspec

from headwise.data.settings import Data, Files, files_of
from headwise.messages import did_you_mean, expected_one_of, how_to_convert

if TYPE_CHECKING:
    from headwise.tasks.task import Task

# Raised when reading or encoding changes, so that what is in the cache is made anew.
FORMAT = 1
Row = dict[str, Any]
Columns = dict[str, Any]  # name of a column to its values
Names = Mapping[str, str | None]  # of columns: that of a task to that in the data
_READ_AS = {".csv": "table", ".tsv": "table", ".parquet": "parquet"}
_READ_AS |= dict.fromkeys((".json", ".jsonl", ".ndjson"), "json")
_PACKED = (".gz", ".bz2", ".xz", ".zst")


class DataError(ValueError):
    """Data that cannot be read, or cannot be used as they are; the message says how to mend it."""


def load(data: Data, part: str, task: "type[Task]") -> datasets.Dataset:
    """Returns the rows of a part as they are read, with those columns that a task takes.

    Raises:
        DataError: the data cannot be read, or lack a column.
    """
    files = data.files.get(part)
    rows = undecoded(from_hub(data, part, task) if files is None else task.read_files(files, data))
    names = names_of(data, part, task)
    try:
        picked(rows[:0], names, rows.features)
    except DataError as error:
        where = data.path if files is None else ", ".join(files_of(files))
        raise DataError(f"{where}: {error}") from None
    taken = {first for name in names.values() if name for first in (name, name.split(".")[0])}
    return rows.select_columns([name for name in rows.column_names if name in taken])


def names_of(data: Data, part: str, task: "type[Task]") -> Names:
    """Returns what `picked` takes of the rows of a part; nothing of those made for a task."""
    is_made = data.path in task.built_in and part not in data.files
    return {} if is_made else {**task.columns, **data.columns}


def from_hub(data: Data, part: str, task: "type[Task]", *, streaming: bool = False) -> Any:
    """Returns a split of a dataset of the hub, or of a folder."""
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
    except Exception as error:
        raise DataError(
            f"data.path is {data.path!r}, whose split {split!r} cannot be read "
            f"({reason_of(error)}): give the name of a dataset on the Hugging Face hub, a folder "
            f"that holds one, or data that are installed, {', '.join(task.built_in)}"
            f"{did_you_mean(data.path, task.built_in)}; name another split with "
            f"data.split.{part}=..., or have a share of the training data with null"
        ) from error


def reason_of(error: Exception) -> str:
    """What `datasets` says in one line; of a file that it cannot parse, the cause says more."""
    return " ".join(f"{error} {error.__cause__ or ''}".split()).rstrip(".")


def undecoded(rows: Any) -> Any:
    """Returns rows with images and sounds as files: we decode them, and name those that are bad."""
    for name, of in (rows.features or {}).items():
        if isinstance(of, datasets.Image | datasets.Audio):
            rows = rows.cast_column(name, type(of)(decode=False))
    return rows


def picked(columns: Columns, names: Names, kinds: Mapping[str, Any]) -> Columns:
    """Returns the columns of a task, under their names; classes by name in place of number.

    Args:
        columns: some rows as they were read.
        names: each column of the task and its name in the data, with dots inside records; None
            for a column that the data need not have.
        kinds: the features of the data; or a row, where these are not known.

    Raises:
        DataError: the data lack a column.

    >>> picked({"texts": [{"en": "a"}, {"en": "b"}]}, {"source": "texts.en"}, {"texts": {"en": ""}})
    {'source': ['a', 'b']}
    """
    known, found = dict(_flat(kinds)), {}
    for ours, name in names.items():
        if name is None:
            continue
        # What a task has read itself may be records, such as a sound with its path.
        if name not in known and not (name == ours and name in kinds):
            raise DataError(
                f"the data have no column {name!r}, {expected_one_of(name, known)}; name it with "
                f"data.columns.{ours}=..."
            )
        first, *inner = [name] if name in columns else name.split(".")
        values, kind = columns[first], known.get(name)
        for key in inner:
            values = [None if record is None else record[key] for record in values]
        if isinstance(kind, datasets.ClassLabel):  # of a test set on the hub, -1 stands for none
            values = [None if x is None or x < 0 else kind.names[x] for x in values]
        found[ours] = values
    return found


def _flat(kinds: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the names of columns, with dots inside records, and what each of them is."""
    for name, kind in kinds.items():
        inner = kind.flatten() if isinstance(kind, datasets.Translation) else kind
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", kind


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
    """Returns the rows of the files of a part: a file, several of them, or one for each column."""
    shards, paths = shards_of(files), files_of(files)
    if (kind := _kind(shards[0])) in ("json", "parquet"):
        try:
            return datasets.load_dataset(kind, data_files=paths, split="train", **data.options)
        except Exception as error:
            told = f"{', '.join(paths)} cannot be read: {reason_of(error)}"
            raise DataError(told) from error
    return generated(_rows, shards=shards, stamps=[stamp(path) for path in paths])


def shards_of(files: Files) -> list[dict[str, str]]:
    """Returns the files that are read one after another, each as column to path.

    The column of a single file is "", since a table names its columns itself.
    """
    if not isinstance(files, Mapping):
        return [{"": path} for path in files_of(files)]
    columns = [files_of(given) for given in files.values()]
    if len(set(map(len, columns))) > 1:
        raise DataError(
            f"the columns {', '.join(files)} have different numbers of files, expected equal "
            f"ones: file n of one belongs to file n of the other"
        )
    return [dict(zip(files, each, strict=True)) for each in zip(*columns, strict=True)]


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


def _rows(shards: Sequence[Mapping[str, str]], **_: Any) -> Iterator[Row]:
    for shard in shards:
        yield from rows_of_shard(shard)


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


def _table(path: str) -> Iterator[Row]:
    """Yields the rows of a table whose first line names the columns; all values are text.

    In .csv, fields may be quoted, and have line breaks then; .tsv knows no quotes.
    """
    is_tsv = _suffix(path) == ".tsv"
    found = lines(path)
    reader = csv.reader((f"{line}\n" for line in found), strict=True)
    rows: Iterable[list[str]] = (line.split("\t") for line in found) if is_tsv else reader
    header: list[str] = []
    try:
        for number, row in enumerate(rows, start=1):
            where = f"{path}, line {number if is_tsv else reader.line_num:,}"
            if number == 1:
                header = row
                if len(set(header)) < len(header):
                    raise DataError(f"{where}: two columns have one name, expected different ones")
            elif row not in ([], [""]):
                if len(row) != len(header):
                    raise DataError(
                        f"{where}: {len(row)} fields, expected {len(header)}, as the first line has"
                    )
                yield dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num:,}: {error}") from error


def _kind(shard: Mapping[str, str]) -> str:
    """Returns how a file is read: as `text`, as a `table`, or by the builder of `datasets`."""
    suffix = _suffix(next(iter(shard.values())))
    return _READ_AS.get(suffix, "text") if list(shard) == [""] else "text"


def _suffix(path: str) -> str:
    """Returns the suffix of a file, without that of what packed it."""
    name = Path(path)
    return (name.with_suffix("") if name.suffix in _PACKED else name).suffix.lower()
