"""Where labelled texts come from: files of tab-separated values, Hugging Face datasets.

Each reader yields rows in the order of the data, and knows nothing of parts, classes or settings;
`text.labelled` checks and divides what comes out. Whatever cannot be read is a `CorpusError` that
names the file, line or field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from headwise.tasks.sources import CorpusError, load_hub_split, read_lines, text_field
from headwise.tasks.text.labelled import Row


class Columns(NamedTuple):
    """Names of the columns that examples are read from."""

    text: str
    pair: str | None
    label: str


# --- files of tab-separated values ------------------------------------------------------------


def read_tsv(path: Path, columns: Columns, skipped: Counter[str]) -> Iterator[Row]:
    """Rows of a file whose first line names its columns, without quoting, as GLUE's files are.

    Args:
        path: UTF-8 text; gzip if the name ends in ``.gz``.
        columns: those to read.
        skipped: counts rows with another number of fields than there are columns.

    Raises:
        CorpusError: a file that is missing, empty, no UTF-8 or without one of the columns, or a
            tenth of its rows or more have another number of fields.
    """
    lines = read_lines(path)
    if not lines:
        raise CorpusError(f"{path}: the file is empty. Expected a line of column names, then rows.")
    there = lines[0].split("\t")
    for column in columns:
        if column is not None and column not in there:
            near = get_close_matches(column, there, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise CorpusError(
                f"{path}, line 1: there is no column {column!r}{hint}; there are "
                f"{', '.join(there)}. Name the columns in data.text_field, data.pair_field and "
                "data.label_field."
            )
    text_at, label_at = there.index(columns.text), there.index(columns.label)
    pair_at = None if columns.pair is None else there.index(columns.pair)
    rows = [line.split("\t") for line in lines[1:]]
    while rows and rows[-1] == [""]:
        del rows[-1]  # blank lines at the end are no rows
    ragged = [number for number, row in enumerate(rows) if len(row) != len(there)]
    if len(ragged) > len(rows) / 10:
        number = ragged[0]
        raise CorpusError(
            f"{path}, line {number + 2}: {len(rows[number])} fields, expected {len(there)} "
            f"({', '.join(there)}); so it is in {len(ragged):,} of {len(rows):,} rows. Fields "
            "are divided by tabs, quotation marks have no meaning, and a row is one line."
        )
    skipped["too few or too many fields"] += len(ragged)
    for number, row in enumerate(rows):
        if len(row) == len(there):
            pair = None if pair_at is None else row[pair_at]
            yield Row(f"{path}, line {number + 2}", row[text_at], pair, row[label_at].strip())


# --- Hugging Face datasets --------------------------------------------------------------------


def read_hub(
    name: str,
    split: str,
    columns: Columns,
    *,
    config: str | None = None,
    revision: str | None = None,
    classes: Sequence[str] | None = None,
) -> Iterator[Row]:
    """Rows of one split of a dataset on the Hugging Face hub, or of a local folder.

    Args:
        name, split, config, revision: see `load_hub_split`.
        columns: those to read.
        classes: names of the classes, where labels are their numbers and the dataset has no names.

    Raises:
        CorpusError: no such dataset, configuration, split or column, or a text that is no text.
    """
    mending = "Name columns in data.text_field, data.pair_field and data.label_field."
    dataset = load_hub_split(name, split, config, revision)
    names = getattr(dataset.features.get(columns.label), "names", None) or classes or ()
    for number, record in enumerate(dataset):
        where = f"dataset {name!r}, split {split!r}, row {number}"
        text = text_field(record, columns.text, where, mending)
        pair = columns.pair and text_field(record, columns.pair, where, mending)
        if columns.label not in record:
            text_field(record, columns.label, where, mending)  # says which there are
        yield Row(where, text, pair, _class_name(record[columns.label], names))


def _class_name(label: object, names: Sequence[str]) -> str:
    """A label as text; -1, as the hub's test parts have it, is none.

    >>> [_class_name(label, ["negative", "positive"]) for label in (1, -1, None, "positive")]
    ['positive', '', '', 'positive']
    """
    if label is None:
        return ""
    if isinstance(label, int) and names and str(label) not in names:
        if label == -1:
            return ""
        if 0 <= label < len(names):
            return names[label]
    return str(label)
