"""What readers of all data share: text files, datasets, docstrings, and the error of bad data.

The readers of each kind of data are in its own package, in a module `reading`.

Text and tab-separated values are not read by `datasets`: it ends lines at a lone carriage return
too, keeps byte order marks, takes `NA` for no text and `007` for 7, and of bytes that are not UTF-8
and of rows with too many fields it names neither file nor line.
"""

import ast
import gzip
import hashlib
import importlib.util
import os
import platform
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from headwise.data.store import file_identity
from headwise.messages import how_to_convert

# A gzip file that expands to more than so many bytes, and to more than so many times its size, is
# refused too, since it may be made to fill the memory. Ordinary text shrinks to a tenth at best.
_BOMB_BYTES, _BOMB_FACTOR = 2**28, 20
_SHOWN = 12  # digits of a hash that notes show, enough to tell data apart


class CorpusError(ValueError):
    """Data that cannot be read, or cannot be used as it is; the message says how to mend it."""


def unreadable(path: Path, error: OSError) -> CorpusError:
    """Returns the error of a file that cannot be opened."""
    return CorpusError(
        f"{path}: cannot be read ({error.strerror}). Paths are relative to the folder in which "
        "the command is started."
    )


def check_regular(path: Path) -> None:
    """Raises `CorpusError` for a pipe or a device, which may never end.

    A pipe also cannot be read twice: once for the data, once for their hash.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CorpusError(
            f"{path} is a pipe or a device, expected a regular file; write what it gives into a "
            "file first"
        )


def files_below(folder: Path) -> list[Path]:
    """Returns the files of a folder and its subfolders, ordered by their paths.

    Raises:
        CorpusError: one of the folders may not be read.
    """

    def refuse(error: OSError) -> None:  # left to itself, the walk would go on without the folder
        raise unreadable(Path(error.filename), error) from None

    walk = os.walk(folder, onerror=refuse)
    return sorted(Path(below, name) for below, _, names in walk for name in names)


# --- text files -------------------------------------------------------------------------------


def read_lines(path: Path, max_bytes: int | None = None) -> Iterator[str]:
    r"""Yields the lines of a text file, without line ends; it is gzip if its name ends in `.gz`.

    Only `\n` and `\r\n` end a line: other characters that Unicode calls line breaks occur
    inside sentences of web text, and counting them would shift the rest of the file. By default a
    plain text may have any number of bytes, and a gzip file may expand to 20 times its size, or
    256 MiB.

    Raises:
        CorpusError: the file cannot be opened, is no regular file, is a damaged gzip file, is too
            large, or is not UTF-8.
    """
    path = path.expanduser()
    check_regular(path)
    packed = path.suffix == ".gz"
    number = 0
    try:
        if packed and max_bytes is None:
            max_bytes = max(_BOMB_BYTES, _BOMB_FACTOR * path.stat().st_size)
        with gzip.open(path) if packed else path.open("rb") as file:
            has = "expands to" if packed else "has"
            lines = decoded_lines(file, str(path), max_bytes, has)
            for number, line in enumerate(lines, start=1):  # noqa: B007 - an error names it
                yield line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(
            f"{path}: not a sound gzip file after {number:,} lines ({error}). Copy or download "
            "it again; if it is plain text, remove .gz from its name."
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None


def file_in_words(path: Path) -> str:
    """Returns the name of a folder or a file, with the beginning of the SHA-256 of a file's bytes.

    The whole hash is what `sha256sum` prints for the file, gzip or not.
    """
    if path.expanduser().is_dir():
        return f"folder {path.name}"
    check_regular(path.expanduser())
    try:
        with path.expanduser().open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None
    return f"{path.name} (SHA-256 {digest[:_SHOWN]})"


def file_size(path: Path) -> int:
    """Returns how many bytes a file has."""
    check_regular(path.expanduser())
    try:
        return path.expanduser().stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None


def in_training(number: int, items: str = "") -> str:
    """Returns what the notes say, behind the size of a part, of items that are trained on too.

    >>> in_training(2, " lines"), in_training(0)
    (', of which 2 lines are also in the training part', '')
    """
    return f", of which {number:,}{items} are also in the training part" if number else ""


def part_in_words(size: str, origin: str, items: str, digest: str) -> str:
    """Returns what the notes say of a part of the data.

    `origin` are the files or the split; it is empty for a share of the training data.

    >>> part_in_words("2 pairs", "split test", "pairs", "0123456789abcdef")
    '2 pairs; split test; SHA-256 of the pairs 0123456789ab'
    """
    return "; ".join(filter(None, (size, origin, f"SHA-256 of the {items} {digest[:_SHOWN]}")))


def skipped_in_words(reasons: Sequence[str]) -> str:
    """Returns what the notes say of files that were left out, given the reason of each.

    >>> skipped_in_words(["a.png cannot be read; leave it out", "b.png cannot be read"])
    '2 (a.png cannot be read; b.png cannot be read)'
    """
    shown = [reason.partition(";")[0] for reason in reasons[:5]]
    more = [f"and {len(reasons) - 5:,} more"] if len(reasons) > 5 else []
    return f"{len(reasons):,} ({'; '.join([*shown, *more])})"


def is_unicode(text: str) -> bool:
    """Returns whether a text can be encoded: it has no surrogates, the halves of a character."""
    return not re.search(r"[\ud800-\udfff]", text)


def decoded_lines(
    stream: BinaryIO | gzip.GzipFile, name: str, max_bytes: int | None = None, has: str = "has"
) -> Iterator[str]:
    """Yields the lines of a stream in UTF-8, without line ends; `name` names it in errors."""
    read, longest = 0, -1 if max_bytes is None else max_bytes + 1
    lines = iter(lambda: stream.readline(longest), b"")
    for number, line in enumerate(lines, start=1):
        read += len(line)
        if max_bytes is not None and read > max_bytes:
            raise CorpusError(
                f"{name} {has} {read:,} bytes or more, expected at most {max_bytes:,}: leave it "
                f"out, give a smaller part of it, or, in a recipe, set max_bytes of its data "
                f"(data.max_bytes)"
            )
        # As in a file of UTF-16 that was converted as if each byte were a character.
        zeros = line.count(b"\0") * 3 > len(line)
        wrong, what = line.find(b"\0") if zeros else -1, "not text"
        try:
            decoded = line.decode("utf-8")
        except UnicodeDecodeError as error:
            wrong, what = error.start, "not UTF-8"
        if wrong >= 0:
            raise CorpusError(
                f"{name}, line {number}: {what} (byte 0x{line[wrong]:02x} at column {wrong + 1}). "
                f"{how_to_convert(line)}"
            )
        if number == 1:  # Windows editors begin a file with a byte order mark
            decoded = decoded.removeprefix("\ufeff")
        yield decoded.rstrip("\r\n")


# --- Hugging Face datasets --------------------------------------------------------------------


def load_hub_split(
    name: str,
    split: str,
    config: str | None = None,
    revision: str | None = None,
    *,
    streaming: bool = False,
) -> Any:
    """Loads one split of a dataset on the Hugging Face hub, or of a local folder.

    Args:
        name: name on the hub, or a folder with `train.jsonl`, `test.parquet` and the like.
        split: a split, or a slice of one as in `"train[:100000]"`.
        config, revision: configuration ("subset"), and tag or commit.
        streaming: whether rows are read when they are needed, and nothing is stored. There are no
            slices of a split then.

    Returns:
        The split, a `datasets.Dataset`; with `streaming` a `datasets.IterableDataset`.

    Raises:
        CorpusError: there is no such dataset, configuration or split.
    """
    # Imported here: the import takes a second, which other data need not spend.
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    if name == "pandas":  # a reader of datasets, not a data set
        raise CorpusError(
            "dataset 'pandas' is not read: it would unpickle the files of the current folder, "
            "which runs what they say. Convert them to parquet, and name their folder."
        )
    try:
        # expanduser and nothing else: a name on the hub must not turn into a path
        path = str(Path(name).expanduser()) if name.startswith("~") else name
        options = {"streaming": True} if streaming else {}
        return load_dataset(path, config, split=split, revision=revision, **options)
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        # Of a file that it cannot parse, datasets says why only in the cause.
        reason = " ".join(f"{error} {error.__cause__ or ''}".split()).rstrip(".")
        mending = (
            "Give a name on the Hugging Face hub or a local folder; without a network, only local "
            "folders and datasets that were loaded before can be read."
        )
        if reason.startswith("Unknown split"):
            mending = (
                "Name one of these, or have a part divided off the training split: "
                "data.validation_split=null, and data.test_split=null for the test part."
            )
        raise CorpusError(
            f"dataset {name!r} (config {config!r}, split {split!r}) could not be loaded: "
            f"{reason}. {mending}"
        ) from error


def file_content(value: Mapping[str, Any] | None) -> bytes:
    """Returns the bytes of an undecoded image or sound of a dataset; none if there is none."""
    if value is None:
        return b""
    if value["bytes"] is None and value["path"] is not None and Path(value["path"]).is_file():
        return bytes_of_file(Path(value["path"]))
    return value["bytes"] or b""


def bytes_of_file(path: Path) -> bytes:
    """Returns the content of a file; none if it may not be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def text_fields(
    rows: Iterable[Mapping[str, Any]], paths: Sequence[str], where: str, mending: str
) -> Iterator[list[str]]:
    """Yields the texts of each row of a split; see `text_field`."""
    for number, row in enumerate(rows):
        yield [text_field(row, path, f"{where}, row {number}", mending) for path in paths]


def text_field(record: Mapping[str, Any], path: str, where: str, mending: str) -> str:
    """Returns the text of a field of a record, named by its path such as `answer.text`.

    The text is "" if the field is None.

    Raises:
        CorpusError: there is no such field, or it does not hold text.
    """
    value = field_at(record, path, where, mending)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CorpusError(
            f"{where}: the field {path!r} is of type {type(value).__name__}, expected text. Name "
            f"another of the fields {', '.join(_paths(record))}."
        )
    return value


def field_at(record: Mapping[str, Any], path: str, where: str, mending: str) -> Any:
    """Returns what stands at a dotted path of a record, such as `translation.de`.

    Raises:
        CorpusError: there is no such field. `where` begins and `mending` ends the message.
    """
    value: Any = record
    # A column may itself have a dot in its name, so the whole path is tried first.
    for key in [path] if path in record else path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise CorpusError(
                f"{where}: there is no field {path!r}, expected one of "
                f"{', '.join(_paths(record))}. {mending}"
            )
        value = cast("Mapping[str, Any]", value)[key]
    return value


def _paths(record: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Returns all dotted paths of a record, for messages."""
    paths: list[str] = []
    for key, value in record.items():
        if isinstance(value, Mapping):
            paths += _paths(value, f"{prefix}{key}.")
        else:
            paths.append(prefix + key)
    return paths


# --- docstrings of installed packages ---------------------------------------------------------

_Documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def docstrings_of(package: str) -> Iterator[str]:
    """Yields the docstrings of a package's functions and classes, file by file.

    Files that this version of Python cannot read are left out, and docstrings that are no Unicode.
    """
    for file in _modules(package):
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):  # a template, or code for another version of Python
            continue
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, _Documented) else None
            if text and is_unicode(text):
                yield text


def packages_identity(packages: Sequence[str]) -> str:
    """Returns what tells the docstrings of packages from others, and from what they were before.

    The version alone does not tell it of a package that is edited where it stands.
    """
    files = map(file_identity, chain.from_iterable(map(_modules, packages)))
    return " ".join([platform.python_version(), *versions(packages), *files])


def _modules(package: str) -> list[Path]:
    """Returns the source files of a package, without its modules of tests."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # of the package that it is said to be in
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise CorpusError(
            f"data.packages has {package!r}, expected installed packages: install it or name others"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    return [
        file
        for file in sorted(folder.rglob("*.py"))
        if not any(
            name.strip("_") in ("test", "tests", "testing")
            for name in file.relative_to(folder).parts
        )
    ]


def versions(packages: Sequence[str]) -> Iterator[str]:
    """Yields the name and version of each package, whose distribution may have another name."""
    distributions = metadata.packages_distributions()
    for package in packages:
        top = package.partition(".")[0]
        # Python 3.10 does not know of distributions without a list of their top-level packages.
        names = distributions.get(top, [top])
        try:
            yield f"{package} {metadata.version(names[0])}"
        except metadata.PackageNotFoundError:  # of the standard library
            yield package
