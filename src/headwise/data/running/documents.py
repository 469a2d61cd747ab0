"""Documents of running text: where they begin among its lines, and how they stand on the disk."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headwise.data.rows import Rows
from headwise.data.running.settings import Documents
from headwise.data.sources import CorpusError

_MOST_WORDS = 1000  # of one item of a stream

Document = list[str]
Marked = Iterator[tuple[str, bool]]  # lines, each with whether a document begins with it


class StoredDocuments(Sequence[Document]):
    """Documents of a part whose lines stand on the disk, where `_write` has written them."""

    def __init__(self, folder: Path, name: str, digest: str) -> None:
        self.digest = digest
        self.lines: Rows[tuple[str]] = Rows(folder / f"{name}.arrow", line_of, digest)
        self.starts = np.load(folder / f"{name}-starts.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        ends = [*self.starts[index + 1 : index + 2].tolist(), len(self.lines)]
        return [line for (line,) in self.lines[int(self.starts[index]) : ends[0]]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


def line_of(text: str) -> tuple[str]:
    """Returns the row of a line."""
    return (text,)


def marked_lines(documents: Iterable[Document]) -> Marked:
    """Yields the lines of documents, each with whether a document begins with it."""
    if isinstance(documents, StoredDocuments):
        begins = np.zeros(len(documents.lines), bool)
        begins[documents.starts] = True
        yield from zip(documents.lines.column(0), begins.tolist(), strict=True)
        return
    for document in documents:
        yield from ((line, number == 0) for number, line in enumerate(document))


def lines_of(documents: Iterable[Document]) -> Iterator[str]:
    """Yields the lines of documents that are not blank, in their order."""
    return (line for line, _ in marked_lines(documents) if line)


def marked_rows(where: str, rows: Iterable[str], begins: Documents) -> Marked:
    """Yields the lines of rows, each with whether a document begins with it.

    Raises:
        CorpusError: there is no text. `where` names the rows; without it they may have none.
    """
    behind_blank = False
    # Whether the document has begun, and has text: blank lines before the first text belong to it.
    has_begun = has_text = found = False
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
            begin = not has_begun or (begin and has_text)
            has_begun, has_text = True, bool(line) or (has_text and not begin)
            found = found or has_text
            behind_blank = not line
            yield line, begin
    if where and not found:
        raise CorpusError(f"{where}: there is no text. Name a file or split that has text.")


def in_passages(lines: Marked) -> Iterator[Document]:
    """Yields documents; those of more than about 1,000 words are cut, so that none fills memory."""
    document: Document = []
    words = 0
    for line, begins in lines:
        # Blank lines alone would be a document without a word.
        if document and (begins or (words >= _MOST_WORDS and line)):
            yield document
            document, words = [], 0
        document.append(line)
        words += len(line.split())
    if any(document):
        yield document


def _is_title(line: str) -> bool:
    """Returns whether a line is a heading of the first level: `= Title =`, not `= = Part = =`."""
    words = line.split()
    inner = words[1:-1]
    return len(words) > 2 and words[0] == words[-1] == "=" and "=" not in (inner[0], inner[-1])
