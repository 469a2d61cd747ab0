"""Running text that is read while it is trained on."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headwise.data.running.documents import Document, Marked, marked_rows
from headwise.data.running.settings import TextFiles
from headwise.data.sources import read_lines, text_fields
from headwise.data.streams import Stream

_PASSAGE_WORDS = 1000


class TextStream(Stream[Document]):
    """The training part of running text as a stream, whose items are documents.

    One of more than about 1,000 words is several items, so that none fills the memory.
    """

    @staticmethod
    def files_of(train: Sequence[Path]) -> Sequence[Sequence[Path]]:
        return [[path] for path in train]

    def rows_of(self, shard: int) -> Iterator[str]:
        if isinstance(self.settings, TextFiles):
            return read_lines(self.settings.train[shard], self.settings.max_bytes)
        rows, mending = self.split_of(shard), "Set field to one of these."
        texts = text_fields(rows, [self.settings.field], self.where(shard), mending)
        return (text for (text,) in texts)

    def read(self, shard: int, rows: Iterable[str]) -> Marked:
        return marked_rows(self.where(shard), rows, self.settings.documents)

    def items(self, shard: int, rows: Iterable[str]) -> Iterator[Document]:
        return _cut(self.read(shard, rows))


def _cut(lines: Marked) -> Iterator[Document]:
    """Yields documents; those of more than about 1,000 words are cut into pieces."""
    document: Document = []
    words = 0
    for line, begins in lines:
        # Blank lines alone would be a document without a word.
        if document and (begins or (words >= _PASSAGE_WORDS and line)):
            yield document
            document, words = [], 0
        document.append(line)
        words += len(line.split())
    if document:
        yield document
