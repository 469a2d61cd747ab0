"""Where text comes from: message catalogues, Python's documentation, files, Hugging Face datasets.

Each reader yields raw strings, or pairs of them, in the order of the data, and knows nothing of
parts, filters or settings; `text.corpora` (pairs) and `text.texts` clean and divide what comes out.
Whatever cannot be read is a :class:`CorpusError` that names the file, line or field.
"""

from __future__ import annotations

import gettext
import gzip
import hashlib
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata, resources
from pathlib import Path
from typing import Any, cast

Row = tuple[str, str]


class CorpusError(ValueError):
    """A corpus that cannot be read or used as it is; the message says how to mend it."""


def unreadable(path: Path, error: OSError) -> CorpusError:
    """The error of a file that cannot be opened."""
    return CorpusError(
        f"{path}: cannot be read ({error.strerror}). Paths are relative to the folder in which "
        "the command is started."
    )


# --- message catalogues -----------------------------------------------------------------------


def read_interface_strings(language: str) -> tuple[list[Row], str]:
    """English interface strings and their translations, from a JupyterLab language pack.

    The pack is an installed Python package with one compiled gettext catalogue per extension.
    Left out are the catalogue headers, plural forms other than the first (gettext keeps only the
    English singular), entries whose translation is the English text itself (not translated, or
    a name such as "CoffeeScript"), and pairs seen before in another catalogue. Context markers,
    which tell translators where a string is used, are cut off. Accelerators (``&File``) and
    placeholders (``%1``) stay: a system has to learn them.

    Args:
        language: ``"fr"``, ``"de"`` or ``"zh-CN"``.

    Returns:
        The pairs, in the order of the catalogues, and a sentence on where they come from.

    Raises:
        CorpusError: the language pack is not installed.
    """
    locale = {"fr": "fr_FR", "de": "de_DE", "zh-CN": "zh_CN"}[language]
    distribution = f"jupyterlab-language-pack-{locale.replace('_', '-')}"
    try:
        package = resources.files(f"jupyterlab_language_pack_{locale}")
        version = metadata.version(distribution)
    except ImportError:  # PackageNotFoundError is one as well
        raise CorpusError(
            f"corpus: the interface strings for language {language!r} are in the package "
            f"{distribution}, which is not installed. Install it with\n"
            f"    pip install {distribution}\n"
            'or all three languages with\n    pip install "headwise[demo]"'
        ) from None

    messages = untranslated = 0
    rows: dict[Row, None] = {}  # a dict keeps the order and drops repetitions
    folder = package / "locale" / locale / "LC_MESSAGES"
    for catalogue in sorted(folder.iterdir(), key=lambda file: file.name):
        if not catalogue.name.endswith(".mo"):
            continue
        with catalogue.open("rb") as file:
            translations = gettext.GNUTranslations(file)
        for source, target in _entries(translations):
            messages += 1
            # Compare and count as they will be used: layout of dialogs is not language.
            pair = " ".join(source.split()), " ".join(target.split())
            if pair[0] == pair[1]:
                untranslated += 1
            else:
                rows[pair] = None
    repeated = messages - untranslated - len(rows)
    origin = (
        f"{distribution} {version}: {messages:,} messages, of which {untranslated:,} untranslated "
        f"and {repeated:,} repeated are left out"
    )
    return list(rows), origin


def _entries(translations: gettext.GNUTranslations) -> Iterator[Row]:
    """The messages of one catalogue, without header and further plural forms."""
    # gettext looks messages up one by one; this attribute is its only list of what there is.
    for key, translation in vars(translations)["_catalog"].items():
        if isinstance(key, tuple):  # (singular, number of the plural form)
            key, form = key
            if form > 0:
                continue
        if key:  # the header has the empty key
            yield key.rpartition("\x04")[2], translation


# --- Python's documentation -------------------------------------------------------------------


def read_pydoc_topics() -> tuple[list[list[str]], str]:
    """The English of ``pydoc_data.topics``, which comes with Python: what ``help("with")`` prints.

    A topic is a page of Python's reference manual as plain text. Of its blocks between blank
    lines the prose is kept and divided into sentences. Left out are headings, signatures,
    grammars, code, tables and labels ("Note:"): whatever does not begin with a capital or a
    quotation mark, does not end as a sentence does, has fewer than five words, is indented
    unevenly, or shows ``::=`` or ``>>>``. Topics overlap (one on compound statements has all of the
    one on ``with``), so a paragraph that stood in an earlier topic is left out as well.

    The text differs with the version of Python. Topics come in the order of a hash of their
    names, so that a stretch of them is not all about words with the same letter.

    Returns:
        The topics as lists of sentences, and a sentence on where they come from.
    """
    from pydoc_data.topics import topics

    def place(name: str) -> bytes:
        return hashlib.sha256(name.encode()).digest()

    blocks = repeated = 0
    seen: set[str] = set()
    documents: list[list[str]] = []
    for name in sorted(topics, key=place):
        sentences: list[str] = []
        for block in re.split(r"\n\s*\n", topics[name].strip()):
            blocks += 1
            paragraph = _prose(block)
            if paragraph in seen:
                repeated += 1
            elif paragraph:
                seen.add(paragraph)
                sentences += split_sentences(paragraph)
        if sentences:
            documents.append(sentences)
    version = ".".join(map(str, sys.version_info[:3]))
    other = blocks - repeated - len(seen)
    origin = (
        f"pydoc_data.topics of Python {version}: {len(seen):,} paragraphs of prose in "
        f"{len(documents)} topics; {other:,} blocks of headings, code, grammars and tables and "
        f"{repeated:,} repeated paragraphs are left out"
    )
    return documents, origin


_BULLET = re.compile(r"\s*(?:[*+-]|\d+\.|\[\d+\])\s+")


def _prose(block: str) -> str:
    """A block as one line if it is prose; else empty."""
    first, *others = (
        _BULLET.sub("", block, count=1).split("\n") if _BULLET.match(block) else (block.split("\n"))
    )
    indents = {_indent(line) for line in others}
    if len(indents) > 1:
        return ""
    if not _BULLET.match(block) and any(indent > _indent(first) for indent in indents):
        first = ""  # a term, and below it what it means
    text = " ".join(" ".join([first, *others]).split())
    if len(text.split()) < 5 or text[-1] not in ".:!?)":
        return ""
    if not (text[0].isupper() or text[0] in '"“‘('):
        return ""
    # Columns of tables are apart by more than the two spaces behind a full stop.
    if any(sign in text for sign in ("::=", ">>>")) or re.search(r"\S   +\S", block):
        return ""
    return text


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def split_sentences(paragraph: str) -> list[str]:
    """Sentences of English prose: they end at ``.``, ``!`` or ``?`` before a capital or a quote.

    >>> split_sentences('It is true. "None" is false, i.e. no value (see e.g. Python). So be it!')
    ['It is true.', '"None" is false, i.e. no value (see e.g. Python).', 'So be it!']
    """
    ends = r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)\s+(?=[\"“‘(*]*[A-Z])"
    # A quotation mark or parenthesis behind the full stop belongs to the sentence.
    return re.split(f'{ends}|(?<=[.!?][")”])\\s+(?=["“‘(*]*[A-Z])', paragraph)


# --- text files -------------------------------------------------------------------------------


def read_text_pairs(source: Path, target: Path) -> list[Row]:
    """Two text files with one sentence a line, line n of one translating line n of the other.

    Args:
        source: UTF-8 text; gzip if the name ends in ``.gz``.
        target: the same, with as many lines.

    Raises:
        CorpusError: a file is missing, is no UTF-8 or no sound gzip, or the line counts differ.
    """
    source_lines, target_lines = read_lines(source), read_lines(target)
    if len(source_lines) != len(target_lines):
        raise CorpusError(
            f"source and target must have as many lines as each other, but {source} has "
            f"{len(source_lines):,} and {target} has {len(target_lines):,}. Line n of one must be "
            "the translation of line n of the other; look for a line that was lost or broken in "
            "two."
        )
    return list(zip(source_lines, target_lines, strict=True))


def read_lines(path: Path) -> list[str]:
    r"""The lines of a UTF-8 text file, without line ends; decompressed if named ``*.gz``.

    Only ``\n`` and ``\r\n`` end a line: other characters that Unicode calls line breaks occur
    inside sentences of web text, and counting them would shift the rest of the file.
    """
    path = path.expanduser()
    lines: list[str] = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for line in decoded_lines(file, str(path)):
                lines.append(line)  # one by one: an error tells how many there were
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(
            f"{path}: not a sound gzip file after {len(lines):,} lines ({error}). Copy or download "
            "it again; if it is plain text, take the .gz off its name."
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if lines:
        lines[0] = lines[0].removeprefix("\ufeff")  # the byte order mark of Windows editors
    return lines


def decoded_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of a UTF-8 stream, without line ends; an error names the stream and the line."""
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise CorpusError(
                f"{name}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x} at column "
                f"{error.start + 1}). Convert it, for example with `iconv -f LATIN1 -t UTF-8`."
            ) from None


# --- Hugging Face datasets --------------------------------------------------------------------


def read_hub_pairs(
    name: str,
    split: str,
    source_field: str,
    target_field: str,
    config: str | None = None,
    revision: str | None = None,
) -> Iterator[Row]:
    """One split of a dataset on the Hugging Face hub, or of a local folder in its formats.

    Args:
        name: a name on the hub, or a folder with ``train.jsonl``, ``test.parquet`` and the like.
        split: a split, or a slice of one as in ``"train[:100000]"``.
        source_field: a column; a dotted path such as ``translation.de`` goes into a record.
        target_field: likewise.
        config: the configuration ("subset") of the dataset.
        revision: a branch, tag or commit of the dataset.

    Raises:
        CorpusError: no such dataset, configuration, split or field, or a field that is no text.
    """
    for where, record in read_hub_records(name, split, config, revision):
        source, target = (
            text_field(record, field, where, "Set source_field and target_field to two of these.")
            for field in (source_field, target_field)
        )
        yield source, target


def read_hub_texts(
    name: str,
    split: str,
    field: str,
    config: str | None = None,
    revision: str | None = None,
) -> Iterator[str]:
    """Likewise the texts of one field, one per row.

    Raises:
        CorpusError: no such dataset, configuration, split or field, or a field that is no text.
    """
    for where, record in read_hub_records(name, split, config, revision):
        yield text_field(record, field, where, "Set field to one of these.")


def read_hub_records(
    name: str, split: str, config: str | None = None, revision: str | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Likewise all records, each behind words for messages on where it stands.

    Raises:
        CorpusError: no such dataset, configuration or split.
    """
    for number, record in enumerate(load_hub_split(name, split, config, revision)):
        yield f"dataset {name!r}, split {split!r}, row {number}", record


def load_hub_split(
    name: str, split: str, config: str | None = None, revision: str | None = None
) -> Any:
    """Likewise the split itself, a ``datasets.Dataset``.

    Raises:
        CorpusError: no such dataset, configuration or split.
    """
    # Imported here: it takes a second that no other corpus needs to spend.
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        # expanduser, and no more: a hub name must not turn into a path
        path = str(Path(name).expanduser()) if name.startswith("~") else name
        return load_dataset(path, config, split=split, revision=revision)
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        mending = (
            "It must be a name on the Hugging Face hub or a local folder; without a network, only "
            "local folders and datasets loaded before can be read."
        )
        if reason.startswith("Unknown split"):
            mending = (
                "Name one of these, or divide a part off the training split: "
                "data.validation_split=null, and data.test_split=null for the test part."
            )
        raise CorpusError(
            f"dataset {name!r} (config {config!r}, split {split!r}) could not be loaded: "
            f"{reason}. {mending}"
        ) from error


def file_content(value: Mapping[str, Any] | None) -> bytes:
    """What a column of images or sounds holds undecoded, in the record or beside it."""
    if value is None:
        return b""
    if value["bytes"] is None and value["path"] is not None and Path(value["path"]).is_file():
        return Path(value["path"]).read_bytes()
    return value["bytes"] or b""


def text_field(record: Mapping[str, Any], path: str, where: str, mending: str) -> str:
    """The text at a dotted path of a record; a missing value is empty text.

    Args:
        where: names the record in messages.
        mending: ends the message that lists the fields there are.

    Raises:
        CorpusError: there is no such field, or it is no text.
    """
    value: Any = record
    # A column may itself have a dot in its name, so the whole path is tried first.
    for key in [path] if path in record else path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise CorpusError(
                f"{where}: there is no field {path!r}; there are {', '.join(_paths(record))}. "
                f"{mending}"
            )
        value = cast("Mapping[str, Any]", value)[key]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CorpusError(
            f"{where}: the field {path!r} must be text, but is {type(value).__name__}. The fields "
            f"are {', '.join(_paths(record))}."
        )
    return value


def _paths(record: Mapping[str, Any], prefix: str = "") -> list[str]:
    """All dotted paths of a record, for messages."""
    paths: list[str] = []
    for key, value in record.items():
        if isinstance(value, Mapping):
            paths += _paths(value, f"{prefix}{key}.")
        else:
            paths.append(prefix + key)
    return paths
