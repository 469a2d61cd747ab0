r"""Texts of one language: settings, documents, and a division into parts.

A text is a list of documents, and a document a list of lines; a line is whatever the data has as
one: a sentence, or, as in WikiText, a paragraph. The rules are few:

- Lines lose white space at both ends and stay as they are otherwise. Blank lines stay: language
  modelling counts a line end for each, as published perplexities on WikiText do.
- Where documents end, the setting `documents` says. All lines of all documents in their order are
  the lines of the file.
- Parts that are given are taken as they are. Parts that are not are cut off the end of the
  training text: the last `test_fraction` of its words is the test part, what stands before it the
  validation part. A cut falls between two lines; a document through which it goes is two from
  there on. Running text is not divided by hash, line by line, as pairs of sentences are: every
  held-out line would stand between two that are trained on.

Example:
    >>> texts = load_texts(PydocTopics())
    >>> len(texts.train) > 40, texts.test[0][0][:20] != ""
    (True, True)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from headwise.tasks.parts import PARTS, DividedSettings, HubSettings, Part, given_parts
from headwise.tasks.sources import CorpusError, read_hub_texts, read_lines, read_pydoc_topics

Document = list[str]
Documents = Literal["blank-line", "title", "line", "none"]

_DOCUMENTS: Any = Field(
    "blank-line",
    description="where one begins: behind a blank-line; at a title, a line such as `= Title =` of "
    "WikiText; at every line (or row); or none, a file is one document",
)


# --- settings ---------------------------------------------------------------------------------


class PydocTopics(DividedSettings):
    """The English of Python's reference manual, as it comes with Python: small, real, offline."""

    corpus: Literal["pydoc-topics"] = Field("pydoc-topics", description="the built-in text")


# One file may be written without the brackets of a list.
Paths = Annotated[
    list[Path],
    BeforeValidator(lambda given: [given] if isinstance(given, (str, Path)) else given),
    Field(min_length=1),
]


class PlainTextFiles(DividedSettings):
    """Plain text files in UTF-8; gzip if the name ends in .gz."""

    corpus: Literal["files"] = Field("files", description="plain text files")
    train: Paths = Field(description="a file, or a list of files, to train on")
    validation: Paths | None = Field(
        None, description="likewise to validate on; without it, a share of the training text"
    )
    test: Paths | None = Field(
        None, description="likewise to test on; without it, a share of the training text"
    )
    documents: Documents = _DOCUMENTS


class HubTexts(DividedSettings, HubSettings):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    corpus: Literal["hub"] = Field("hub", description="a Hugging Face dataset")
    field: str = Field(
        "text", description="column of the text, a line or a document; a.b goes into a record"
    )
    documents: Documents = _DOCUMENTS


TextSettings = Annotated[PydocTopics | PlainTextFiles | HubTexts, Field(discriminator="corpus")]


# --- texts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """Documents in three parts, each with at least one line that is not blank.

    Attributes:
        train, validation, test: documents, each a list of lines.
        notes: facts for the screen and the report: label to words.
    """

    train: list[Document]
    validation: list[Document]
    test: list[Document]
    notes: dict[str, str] = field(repr=False)

    def digest(self) -> str:
        """A hash of all lines, of where documents begin and of the division."""
        digest = hashlib.sha256()
        for part in PARTS:
            for document in getattr(self, part):
                digest.update("\n".join([part, *document, "\0"]).encode())
        return digest.hexdigest()


def lines_of(documents: Iterable[Document]) -> list[str]:
    """The lines of documents that are not blank, in their order.

    >>> lines_of([["= A =", "", "One."], ["Two."]])
    ['= A =', 'One.', 'Two.']
    """
    return [line for document in documents for line in document if line]


def load_texts(settings: TextSettings) -> Texts:
    """Read texts and divide off the parts that are not given.

    Args:
        settings: one of :class:`PydocTopics`, :class:`PlainTextFiles`,
            :class:`HubTexts`.

    Raises:
        CorpusError: what cannot be read, has no text, or has too little for three parts. The
            message names the file or dataset and says how to mend it.
    """
    documents: dict[Part, list[Document]] = {}
    if isinstance(settings, PydocTopics):
        documents["train"], origin = read_pydoc_topics()
    elif isinstance(settings, PlainTextFiles):
        for part, paths in given_parts(settings).items():
            documents[part] = [
                document
                for path in paths
                for document in _documents(str(path), read_lines(path), settings.documents)
            ]
        origin = f"text files {', '.join(path.name for path in settings.train)}"
    else:
        for part, split in settings.splits().items():
            rows = read_hub_texts(
                settings.name, split, settings.field, settings.config, settings.revision
            )
            where = f"dataset {settings.name!r}, split {split!r}"
            documents[part] = _documents(where, rows, settings.documents)
        origin = settings.origin
    _divide(documents, settings, origin)
    notes = {"corpus": origin} | {part: _count(documents[part]) for part in PARTS}
    seen = set(lines_of(documents["train"]))
    repeated = sum(line in seen for line in lines_of(documents["test"]))
    if repeated:
        notes["test"] += f", of which {repeated:,} lines also stand in the training part"
    return Texts(documents["train"], documents["validation"], documents["test"], notes)


def _documents(where: str, rows: Iterable[str], begins: Documents) -> list[Document]:
    """Rows as documents, so that their lines together are those of the rows."""
    documents: list[Document] = []
    behind_blank = False
    for row in rows:
        # A row of a dataset may end with its line end, and may be a document of several lines.
        lines = [line.strip() for line in row.removesuffix("\n").split("\n")]
        for i, line in enumerate(lines):
            begin = {
                "blank-line": bool(line) and behind_blank,
                "title": _is_title(line),
                "line": i == 0 and any(lines),
                "none": False,
            }[begins]
            # Blank lines in front of the first text belong to it.
            if not documents or (begin and any(documents[-1])):
                documents.append([])
            documents[-1].append(line)
            behind_blank = not line
    if not any(any(document) for document in documents):
        raise CorpusError(f"{where}: there is no text in it. Name a file or split that has some.")
    return documents


def _is_title(line: str) -> bool:
    """Whether it is a heading of the first level: ``= Title =``, and not ``= = Section = =``.

    >>> [_is_title(line) for line in ("= Homarus gammarus =", "= = Diet = =", "x = y =", "==")]
    [True, False, False, False]
    """
    words = line.split()
    inner = words[1:-1]
    return len(words) > 2 and words[0] == words[-1] == "=" and "=" not in (inner[0], inner[-1])


def _divide(documents: dict[Part, list[Document]], settings: DividedSettings, origin: str) -> None:
    """Cut the parts that are not given off the end of the training text."""
    validation_fraction, test_fraction = settings.fractions(documents)
    fractions: list[tuple[Part, float]] = [
        ("test", test_fraction),
        ("validation", validation_fraction),
    ]
    whole = lines_of(documents["train"])
    total = sum(map(_words, whole))
    end = 1.0
    for part, fraction in fractions:
        if fraction:
            end -= fraction
            documents["train"], documents[part] = _cut(documents["train"], end * total)
    for part in PARTS:
        if not lines_of(documents[part]):
            counts = ", ".join(f"{p} {len(lines_of(documents[p])):,}" for p in PARTS)
            lines, parts = len(whole), 1 + sum(fraction > 0 for _, fraction in fractions)
            if lines < parts:
                raise CorpusError(
                    f"{origin}: {lines} line{'s' * (lines > 1)} of text to train on, expected at "
                    f"least {parts}, one for each part that is made of them. Break it into "
                    "lines, a sentence or paragraph each, or give data of their own for the parts."
                )
            raise CorpusError(
                f"{origin}: too little text, no line for the {part} part (lines: {counts}). Give "
                "more or shorter lines, a larger validation_fraction or test_fraction, or data of "
                "its own for the part."
            )


def _cut(documents: list[Document], words: float) -> tuple[list[Document], list[Document]]:
    """Documents up to a number of words, and the rest; the cut falls between two lines."""
    ends = list(accumulate(sum(map(_words, document)) for document in documents))
    for i, (document, end) in enumerate(zip(documents, ends, strict=True)):
        if end > words:
            reached = end - sum(map(_words, document))
            for j, line in enumerate(document):
                # To the nearer side of the line in which the number is reached.
                if reached + _words(line) / 2 >= words:
                    parts = [*documents[:i], document[:j]], [document[j:], *documents[i + 1 :]]
                    return [d for d in parts[0] if d], [d for d in parts[1] if d]
                reached += _words(line)
            return documents[: i + 1], documents[i + 1 :]
    return documents, []


def _words(line: str) -> int:
    return len(line.split())


def _count(documents: Sequence[Document]) -> str:
    """In words, how much there is.

    >>> _count([["One two.", ""], ["Three."]])
    '2 documents, 2 lines, 3 words'
    """
    lines = lines_of(documents)
    words = sum(map(_words, lines))
    return f"{len(documents):,} documents, {len(lines):,} lines, {words:,} words"
