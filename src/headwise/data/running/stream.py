"""Running text that is read while it is trained on."""

from collections.abc import Iterable, Iterator

from headwise.data.running.documents import Document, Marked, marked_rows
from headwise.data.running.settings import TextFiles, TextHub
from headwise.data.sources import read_lines
from headwise.data.streams import Stream

_PASSAGE_WORDS = 1000


class TextStream(Stream[Document]):
    """The training part of a text, whose items are documents.

    One of more than about 1,000 words is several items, so that none fills the memory.
    """

    def __init__(self, settings: TextFiles | TextHub) -> None:
        files = settings.train if isinstance(settings, TextFiles) else []
        super().__init__(settings, [[path] for path in files])

    def rows_of(self, shard: int) -> Iterator[str]:
        if isinstance(self.settings, TextFiles):
            return read_lines(self.settings.train[shard], self.settings.max_bytes)
        mending = "Set field to one of these."
        return (text for (text,) in self.fields_of(shard, [self.settings.field], mending))

    def read(self, shard: int, rows: Iterable[str]) -> Marked:
        return marked_rows(self.where(shard), rows, self.settings.documents)

    def items(self, shard: int, rows: Iterable[str]) -> Iterator[Document]:
        return _cut(self.read(shard, rows))


def _cut(lines: Marked) -> Iterator[Document]:
    """Yields documents, the longer of them in pieces of about 1,000 words."""
    document: Document = []
    words = 0
    for line, begins in lines:
        if document and (begins or words >= _PASSAGE_WORDS):
            yield document
            document, words = [], 0
        document.append(line)
        words += len(line.split())
    if document:
        yield document
