"""Readers of labelled text: tab-separated files, SentEval's files, datasets, GLUE, and docstrings.

Each reader yields rows in the order of the data.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from headwise.data.corpora import Source, files_source, split_source
from headwise.data.division import Part
from headwise.data.labelled.settings import Glue, LabelledColumns
from headwise.data.settings import HubSettings
from headwise.data.sources import (
    CorpusError,
    docstrings_of,
    field_at,
    read_lines,
    text_field,
    versions,
)
from headwise.messages import shown
from headwise.ops.checks import did_you_mean


class Row(NamedTuple):
    """An example as it was read, with words on its place for error messages.

    `flaw` is the reason why it is skipped, if it cannot be read.
    """

    where: str
    text: str
    pair: str | None
    label: str
    flaw: str = ""


# --- files of tab-separated values ------------------------------------------------------------


def read_tsv(path: Path, columns: LabelledColumns, max_bytes: int | None = None) -> Iterator[Row]:
    """Yields the rows of a file whose first line names its columns; without quoting, as in GLUE.

    Raises:
        CorpusError: the file cannot be read; it lacks one of the columns, or has it twice; or more
            than a tenth of its rows have another number of fields than there are columns.
    """
    lines = read_lines(path, max_bytes)
    header = next(lines, None)
    if header is None:
        raise CorpusError(f"{path}: the file is empty, expected a line of column names, then rows.")
    names = header.split("\t")
    if len(names) == 1 and columns.text_field != columns.label_field:
        raise CorpusError(
            f"{path}, line 1: {shown(header)} has no tab, expected the names of the columns with a "
            f"tab between each two: write the file with tabs in place of commas or JSON"
        )
    for column in (columns.text_field, columns.pair_field, columns.label_field):
        if column is None:
            continue
        if column not in names:
            raise CorpusError(
                f"{path}, line 1: there is no column {column!r}, expected one of "
                f"{', '.join(names)}: name the columns as data.text_field, data.pair_field and "
                f"data.label_field{did_you_mean(column, names)}"
            )
        if names.count(column) > 1:
            raise CorpusError(
                f"{path}, line 1: {names.count(column)} columns have the name {column!r}, expected "
                f"one: give each column a name of its own"
            )
    text_at, label_at = names.index(columns.text_field), names.index(columns.label_field)
    pair_at = None if columns.pair_field is None else names.index(columns.pair_field)
    number = blank = 0  # rows so far, and blank lines behind them: those at the end are no rows
    ragged, first = 0, (0, 0)  # rows that cannot be read; the line and the fields of the first
    for at, line in enumerate(lines, start=2):
        if not line:
            blank += 1
            continue
        row = line.split("\t")
        read = [*((each, [""]) for each in range(at - blank, at) if len(names) > 1), (at, row)]
        number, blank = number + blank + 1, 0
        for each, fields in read:
            where = f"{path}, line {each}"
            if len(fields) != len(names):
                first, ragged = first if ragged else (each, len(fields)), ragged + 1
                yield Row(where, "", None, "", "too few or too many fields")
            else:
                pair = None if pair_at is None else fields[pair_at]
                yield Row(where, fields[text_at], pair, fields[label_at].strip())
    if ragged > number / 10:
        raise CorpusError(
            f"{path}, line {first[0]}: {first[1]} fields, expected {len(names)} "
            f"({', '.join(names)}); {ragged:,} of {number:,} rows have another number. Fields are "
            "divided by tabs, quotation marks have no meaning, and a row is one line."
        )


# --- SentEval's files -------------------------------------------------------------------------

_PARTITIONS: dict[str, Part] = {"tr": "train", "va": "validation", "te": "test"}


def read_senteval(path: Path, max_bytes: int | None = None) -> Iterator[tuple[Part, Row]]:
    """Yields the part and the row of each line of a file of SentEval's probing tasks.

    The first field of a line is the partition (tr, va or te), the second the label, the last the
    sentence.
    """
    lines = list(read_lines(path, max_bytes))
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise CorpusError(
            f"{path}: the file is empty, expected lines of partition, label, sentence."
        )
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        fields = line.split("\t")
        if len(fields) < 3:
            raise CorpusError(
                f"{where}: {len(fields)} of the fields partition, label and sentence in "
                f"{line[:60]!r}, expected all three, divided by tabs, as in "
                "'tr\\tO\\tIt is a sentence .'"
            )
        partition, label, sentence = fields[0], fields[1].strip(), fields[-1]
        if partition not in _PARTITIONS:
            raise CorpusError(
                f"{where}: the partition is {partition!r}, expected one of {', '.join(_PARTITIONS)}"
            )
        yield _PARTITIONS[partition], Row(where, sentence, None, label)


# --- Hugging Face datasets --------------------------------------------------------------------


def read_hub(
    columns: LabelledColumns, split: Any, where_split: str, *, classes: Sequence[str] | None
) -> Iterator[Row]:
    """Yields the rows of one split, a `datasets.Dataset` or a shard of a stream.

    `classes` are those that the settings name. A label that is a number without a name is the place
    of its class among them, unless there are numbers among their names. Places among classes that
    are not named, but found and sorted, would mean nothing.
    """
    mending = "Name the columns as data.text_field, data.pair_field and data.label_field."
    features = split.features or {}  # those of a stream may be unknown
    feature = field_at(features, columns.label_field, where_split, mending) if features else None
    own = getattr(feature, "names", None)
    known = own or classes or ()
    named = own is None and any(map(_NUMBER.fullmatch, known))
    name_of = partial(_class_name, known=known, places=() if named else known)
    for number, record in enumerate(split):
        where = f"{where_split}, row {number}"
        text = text_field(record, columns.text_field, where, mending)
        pair = columns.pair_field and text_field(record, columns.pair_field, where, mending)
        label = field_at(record, columns.label_field, where, mending)
        yield Row(where, text, pair, name_of(label))


_NUMBER = re.compile("-?[0-9]+|True|False")


def _class_name(label: object, known: Sequence[str], places: Sequence[str]) -> str:
    """Returns a label as text; -1, the label of test parts on the hub, means that there is none.

    >>> names = ["negative", "positive"]
    >>> [_class_name(label, names, names) for label in (1, -1, None, "positive")]
    ['positive', '', '', 'positive']
    """
    if label is None or (isinstance(label, int) and label == -1 and known and "-1" not in known):
        return ""
    if isinstance(label, int) and 0 <= label < len(places):
        return places[label]
    return str(label)


# --- GLUE -------------------------------------------------------------------------------------

# Wang et al. 2019, *GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
# Understanding*, https://arxiv.org/abs/1804.07461. GLUE's test parts have no labels; as in the
# papers, its development part is the test part here.


class _GlueTask(NamedTuple):
    """Places of the examples of a task on the hub and in GLUE's own files."""

    config: str
    hub: LabelledColumns
    files: LabelledColumns
    classes: list[str] | None
    file_labels: dict[str, str] = {}  # noqa: RUF012  # label in the files to class, if they differ
    tests: dict[str, tuple[str, str]] = {"test": ("validation", "dev.tsv")}  # noqa: RUF012


GLUE = {
    "MNLI": _GlueTask(
        "mnli",
        LabelledColumns(text_field="premise", pair_field="hypothesis"),
        LabelledColumns(text_field="sentence1", pair_field="sentence2", label_field="gold_label"),
        ["entailment", "neutral", "contradiction"],
        {"-": ""},  # the annotators did not agree
        {
            "test matched": ("validation_matched", "dev_matched.tsv"),
            "test mismatched": ("validation_mismatched", "dev_mismatched.tsv"),
        },
    ),
    "QNLI": _GlueTask(
        "qnli",
        LabelledColumns(text_field="question", pair_field="sentence"),
        LabelledColumns(text_field="question", pair_field="sentence"),
        ["entailment", "not_entailment"],
    ),
    "SST-2": _GlueTask(
        "sst2",
        LabelledColumns(text_field="sentence"),
        LabelledColumns(text_field="sentence"),
        ["negative", "positive"],
        {"0": "negative", "1": "positive"},
    ),
    "STS-B": _GlueTask(
        "stsb",
        LabelledColumns(text_field="sentence1", pair_field="sentence2"),
        LabelledColumns(text_field="sentence1", pair_field="sentence2", label_field="score"),
        None,
    ),
}


def glue_sources(settings: Glue) -> dict[str, Source]:
    """Returns the sources of the training part and of the test sets by their names."""
    task, folder = GLUE[settings.task], settings.folder
    found: dict[str, Source] = {}
    for part, (split, file) in {"train": ("train", "train.tsv"), **task.tests}.items():
        if folder is None:
            dataset = _glue_dataset(settings)
            read = partial(read_hub, task.hub, classes=task.classes)
            found[part] = split_source(dataset, split, read)
        else:
            path = folder / file
            found[part] = files_source([path], partial(_read_glue, task, path, settings.max_bytes))
    return found


def glue_origin(settings: Glue) -> str:
    """Returns words on where a task is read from."""
    return f"GLUE, {settings.task}, {settings.folder or _glue_dataset(settings).origin}"


def _glue_dataset(settings: Glue) -> HubSettings:
    config = GLUE[settings.task].config
    return HubSettings(name=settings.name, config=config, revision=settings.revision)


def _read_glue(task: _GlueTask, path: Path, max_bytes: int | None) -> Iterator[Row]:
    for row in read_tsv(path, task.files, max_bytes):
        yield row._replace(label=task.file_labels.get(row.label, row.label))


# --- docstrings -------------------------------------------------------------------------------


def read_docstrings(packages: Sequence[str]) -> tuple[list[Row], str]:
    """Reads the first paragraph of each docstring of packages; its label is the package.

    A paragraph that occurs in two packages is left out. Each package gives as many paragraphs as
    the package with the fewest; a hash chooses them.

    Returns:
        The rows, package by package, and a sentence on where they come from.
    """
    found = {package: docstrings(package) for package in packages}
    times = Counter(text for texts in found.values() for text in texts)
    for package, texts in found.items():
        found[package] = _shuffled(package, [text for text in texts if times[text] == 1])
    smallest = min(map(len, found.values()))
    if not smallest:
        empty = next(package for package, texts in found.items() if not texts)
        raise CorpusError(
            f"data.packages has {empty!r}, expected packages with docstrings in their source "
            "files: name packages that are written in Python and documented"
        )
    rows = [
        Row(f"package {package}", text, None, package)
        for package, texts in found.items()
        for text in texts[:smallest]
    ]
    each = ", ".join(versions(packages))
    return rows, f"first paragraphs of docstrings, {smallest:,} each of {each}"


def _shuffled(package: str, texts: Sequence[str]) -> list[str]:
    """Sorts texts by a hash of package and text; the hash of the text alone decides its part."""
    return sorted(texts, key=lambda text: hashlib.sha256(f"{package} {text}".encode()).digest())


def docstrings(package: str) -> list[str]:
    """Returns the first paragraphs of a package's docstrings that have 4 to 40 words, each once."""
    texts: dict[str, None] = {}  # a dict keeps the order and drops repetitions
    for docstring in docstrings_of(package):
        text = " ".join(docstring.split("\n\n")[0].split())
        if 4 <= len(text.split()) <= 40:
            texts[text] = None
    return list(texts)
