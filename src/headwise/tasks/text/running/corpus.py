r"""Text corpora: documents of one language that are read and divided into parts.

A text is a list of documents, and a document a list of lines. A line is what the data has as one:
a sentence or, in WikiText, a paragraph. These rules hold:

- Lines lose white space at both ends and stay as they are otherwise. Blank lines stay: language
  modelling counts a line end for each, as published perplexities on WikiText do.
- The setting `documents` says where documents begin. The lines of all documents in their order are
  the lines of the file.
- A part that is given as data of its own is taken as it is. A part that is not given is cut off the
  end of the training text: the last `test_fraction` of its words is the test part, and the text
  before that is the validation part. A cut falls between two lines; it turns a document through
  which it goes into two. Running text is not divided by hash, line by line, as other texts are:
  every held-out line would stand between two that are trained on.
- A sample of the training part (`train_fraction`) is one of passages of about 100 words.

Example:
    >>> from headwise.tasks.text.running.settings import PydocTopics
    >>> corpus = load_text_corpus(PydocTopics())
    >>> len(corpus.train) > 40, corpus.test[0][0][:20] != ""
    (True, True)
"""

import hashlib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from headwise.tasks.further_tests import in_test_set
from headwise.tasks.sources import CorpusError, file_in_words, part_in_words, read_lines
from headwise.tasks.splits import PARTS, DividedSettings, Part, given_parts, sample
from headwise.tasks.text.running.reading import read_hub_texts, read_package_docs, read_pydoc_topics
from headwise.tasks.text.running.settings import (
    Documents,
    PackageDocs,
    PydocTopics,
    TextFiles,
    TextFilesTest,
    TextHub,
    TextHubTest,
    TextSettings,
)

Document = list[str]

_PASSAGE_WORDS = 100


@dataclass(frozen=True)
class TextCorpus:
    """Documents in three parts, each of which has at least one line that is not blank.

    Attributes:
        train, validation, test: documents, each a list of lines.
        notes: facts about the data for the screen and the report: label to text.
        tests: documents of each further test set by its name.
    """

    train: list[Document]
    validation: list[Document]
    test: list[Document]
    notes: dict[str, str] = field(repr=False)
    tests: dict[str, list[Document]] = field(default_factory=dict)

    def digest(self) -> str:
        """Returns a hash of all lines, of the beginnings of documents and of the division.

        Further test sets do not count.
        """
        digest = hashlib.sha256()
        for part in PARTS:
            for document in getattr(self, part):
                digest.update("\n".join([part, *document, "\0"]).encode())
        return digest.hexdigest()


def lines_of(documents: Iterable[Document]) -> list[str]:
    """Returns the lines of documents that are not blank, in their order.

    >>> lines_of([["= A =", "", "One."], ["Two."]])
    ['= A =', 'One.', 'Two.']
    """
    return [line for document in documents for line in document if line]


def load_text_corpus(settings: TextSettings) -> TextCorpus:
    """Reads a text and divides off the parts that are not given.

    Args:
        settings: a `PydocTopics`, `PackageDocs`, `TextFiles` or `TextHub`.

    Raises:
        CorpusError: data that cannot be read, has no text, or has too little for three parts. The
            message names the file or dataset and says how to mend it.
    """
    documents: dict[Part, list[Document]] = {}
    origins: dict[str, str] = {}
    if isinstance(settings, PydocTopics):
        documents["train"], origin = read_pydoc_topics()
    elif isinstance(settings, PackageDocs):
        documents["train"], origin = read_package_docs(settings.packages)
    elif isinstance(settings, TextFiles):
        for part, paths in given_parts(settings).items():
            documents[part], origins[part] = _read_files(
                paths, settings.documents, settings.max_bytes
            )
        origin = f"text files {', '.join(path.name for path in settings.train)}"
    else:
        for part, split in settings.splits().items():
            documents[part] = _read_split(settings, split)
            origins[part] = f"split {split}"
        origin = settings.origin
    _divide(documents, settings, origin)
    sampled: dict[str, str] = {}
    if settings.train_fraction < 1.0:
        documents["train"], sampled = sample(
            _passages(documents["train"]), "\n".join, settings.train_fraction, "passages"
        )
    seen = set(lines_of(documents["train"]))
    notes: dict[str, str] = {
        part: _note(documents[part], origins.get(part, ""), seen if part == "test" else ())
        for part in PARTS
    }
    tests = {}
    for name, test in settings.tests.items():
        with in_test_set(name):
            if isinstance(test, TextFilesTest):
                tests[name], origin_of_test = _read_files(
                    test.files, test.documents, settings.max_bytes
                )
            else:
                tests[name], origin_of_test = _read_split(test, test.split), test.origin
        notes[f"test {name}"] = _note(tests[name], origin_of_test, seen)
    return TextCorpus(
        documents["train"],
        documents["validation"],
        documents["test"],
        {"corpus": origin} | notes | sampled,
        tests,
    )


def digest_documents(documents: Iterable[Document]) -> str:
    """Returns a hash of the documents of one part."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update("\n".join([*document, "\0"]).encode())
    return digest.hexdigest()


def _read_files(
    paths: Sequence[Path], begins: Documents, max_bytes: int | None
) -> tuple[list[Document], str]:
    """Returns the documents of files, and the files in words."""
    documents = [
        document
        for path in paths
        for document in _documents(str(path), read_lines(path, max_bytes), begins)
    ]
    return documents, ", ".join(file_in_words(path) for path in paths)


def _read_split(settings: TextHub | TextHubTest, split: str) -> list[Document]:
    rows = read_hub_texts(settings.name, split, settings.field, settings.config, settings.revision)
    where = f"dataset {settings.name!r}, split {split!r}"
    return _documents(where, rows, settings.documents)


def _documents(where: str, rows: Iterable[str], begins: Documents) -> list[Document]:
    """Joins rows into documents, whose lines together are those of the rows."""
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
            # Blank lines before the first text belong to its document.
            if not documents or (begin and any(documents[-1])):
                documents.append([])
            documents[-1].append(line)
            behind_blank = not line
    if not any(any(document) for document in documents):
        raise CorpusError(f"{where}: there is no text. Name a file or split that has text.")
    return documents


def _is_title(line: str) -> bool:
    """Returns whether a line is a heading of the first level: `= Title =`, not `= = Section = =`.

    >>> [_is_title(line) for line in ("= Homarus gammarus =", "= = Diet = =", "x = y =", "==")]
    [True, False, False, False]
    """
    words = line.split()
    inner = words[1:-1]
    return len(words) > 2 and words[0] == words[-1] == "=" and "=" not in (inner[0], inner[-1])


def _divide(documents: dict[Part, list[Document]], settings: DividedSettings, origin: str) -> None:
    """Cuts the parts that are not given off the end of the training text."""
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
                    f"{origin}: the training text has {lines} line{'s' * (lines > 1)}, expected at "
                    f"least {parts}, one for each part that is made of it. Break it into lines "
                    "of a sentence or paragraph each, or give data of their own for the parts."
                )
            raise CorpusError(
                f"{origin}: too little text, no line for the {part} part (lines: {counts}). Give "
                "more or shorter lines, a larger validation_fraction or test_fraction, or data of "
                "their own for the part."
            )


def _cut(documents: list[Document], words: float) -> tuple[list[Document], list[Document]]:
    """Returns the documents up to a number of words, and the rest; cuts between two lines."""
    ends = list(accumulate(sum(map(_words, document)) for document in documents))
    for i, (document, end) in enumerate(zip(documents, ends, strict=True)):
        if end > words:
            reached = end - sum(map(_words, document))
            for j, line in enumerate(document):
                # The cut is at the nearer side of the line in which the number is reached.
                if reached + _words(line) / 2 >= words:
                    parts = [*documents[:i], document[:j]], [document[j:], *documents[i + 1 :]]
                    return [d for d in parts[0] if d], [d for d in parts[1] if d]
                reached += _words(line)
            return documents[: i + 1], documents[i + 1 :]
    return documents, []


def _passages(documents: Iterable[Document]) -> list[Document]:
    """Cuts documents into passages: lines in a row that have about 100 words.

    Only a last passage of a document has fewer, and one that ends in a long line more. They are
    what a sample is made of: of documents, a few may be most of a text.
    """
    passages: list[Document] = []
    for document in documents:
        passage: Document = []
        words = 0
        for line in document:
            passage.append(line)
            words += _words(line)
            if words >= _PASSAGE_WORDS:
                passages.append(passage)
                passage, words = [], 0
        if any(passage):
            passages.append(passage)
    return passages


def _words(line: str) -> int:
    return len(line.split())


def _note(documents: Sequence[Document], origin: str, seen: Container[str] = ()) -> str:
    """Returns a line on a part of the corpus for the user: its size, its source and its hash.

    Args:
        documents: of the part.
        origin: files or split of the part; empty for a share of the training text.
        seen: the lines of the training part, if those that a test part repeats are counted.
    """
    size = _count(documents)
    repeated = sum(line in seen for line in lines_of(documents))
    if repeated:
        size += f", of which {repeated:,} lines are also in the training part"
    return part_in_words(size, origin, "lines", digest_documents(documents))


def _count(documents: Sequence[Document]) -> str:
    """Returns the size of a part in words.

    >>> _count([["One two.", ""], ["Three."]])
    '2 documents, 2 lines, 3 words'
    """
    lines = lines_of(documents)
    words = sum(map(_words, lines))
    return f"{len(documents):,} documents, {len(lines):,} lines, {words:,} words"
