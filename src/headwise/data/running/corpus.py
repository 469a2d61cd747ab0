r"""Text corpora: documents of one language that are read and divided into parts.

A text is a sequence of documents, and a document one of lines. A line is what the data has as one:
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

The lines stand on the disk, in the cache, where every run finds them (`data.store`).

Example:
    >>> from headwise.data.running.settings import PydocTopics
    >>> corpus = load_text_corpus(PydocTopics())
    >>> len(corpus.train) > 40, corpus.test[0][0][:20] != ""
    (True, True)
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headwise.data.corpora import Corpus, Source, read_sources
from headwise.data.division import PARTS, SAMPLE, hash_of, sample_in_words, sampled
from headwise.data.parts import Facts, PartFacts, keep_as_read, write_facts
from headwise.data.rows import Rows, write_known, write_rows
from headwise.data.running.documents import (
    Document,
    Marked,
    StoredDocuments,
    in_passages,
    line_of,
    marked_lines,
    marked_rows,
)
from headwise.data.running.reading import (
    python_version,
    read_package_docs,
    read_pydoc_topics,
)
from headwise.data.running.settings import (
    PackageDocs,
    PydocTopics,
    TextSettings,
)
from headwise.data.sources import (
    CorpusError,
    in_training,
    packages_identity,
    part_in_words,
    read_lines,
    text_fields,
)
from headwise.data.streams import Reader, Stream, origin_of, text_corpus_fields

_PASSAGE_WORDS = 100
_KNOWN = "known.npy"  # the hashes of the training lines


@dataclass(frozen=True)
class TextCorpus(Corpus[Sequence[Document]]):
    """Documents in three parts, each of which has at least one line that is not blank.

    The digest is one of all lines, of the beginnings of documents and of the division. Of a
    training part that is a stream, it is one of where it comes from.
    """

    train: Sequence[Document] | Stream[Document]  # type: ignore[assignment]


def load_text_corpus(settings: TextSettings) -> TextCorpus:
    """Reads a text and divides off the parts that are not given.

    Raises:
        CorpusError: data that cannot be read, has no text, or has too little for three parts. The
            message names the file or dataset and says how to mend it.
    """
    given = (settings, _built_in_sources(settings), _READER)
    return TextCorpus(**text_corpus_fields("texts", *given, _make, _make_test, StoredDocuments))


# --- sources ----------------------------------------------------------------------------------


def _built_in_sources(settings: TextSettings) -> dict[str, Source]:
    if isinstance(settings, PydocTopics):
        return {"train": Source(python_version(), partial(_built_in, read_pydoc_topics))}
    if isinstance(settings, PackageDocs):
        identity = packages_identity(settings.packages)
        read = partial(read_package_docs, settings.packages)
        return {"train": Source(identity, partial(_built_in, read))}
    return {}


def _built_in(read: Callable[[], tuple[list[Document], str]]) -> tuple[Marked, str]:
    documents, origin = read()
    return marked_lines(documents), origin


def _files(given: Sequence[Path]) -> list[list[Path]]:
    return [[path] for path in given]  # each begins a document


def _of_files(settings: Any, files: Sequence[Path], max_bytes: int | None) -> Iterator[str]:
    return read_lines(files[0], max_bytes)


def _of_split(settings: Any, rows: Any, where: str) -> Iterator[str]:
    texts = text_fields(rows, [settings.field], where, "Set field to one of these.")
    return (text for (text,) in texts)


def _of_stream(settings: Any, lines: Marked) -> Iterator[Document]:
    return in_passages(lines)


def _marked(settings: Any, where: str, rows: Iterable[str]) -> Marked:
    return marked_rows(where, rows, settings.documents)


_READER = Reader(_files, _of_files, _of_split, _of_stream, _marked)


# --- parts ------------------------------------------------------------------------------------

# What is known of each line: its words, whether a document begins with it, and its hash.
_LINES = np.dtype([("words", np.int32), ("begins", np.bool_), ("hash", np.uint64)])


def _make(settings: TextSettings, sources: Mapping[str, Source], folder: Path) -> None:
    read, words = read_sources(sources, origin_of(settings, _READER))
    found = {part: _write_as_read(folder, part, lines) for part, lines in read.items()}
    ranges = {part: range(len(lines)) for part, lines in found.items()}
    if "train" in found:  # it is not read where it is a stream
        _cut_off(found["train"], ranges, settings.fractions(read), words["corpus"])
    facts = Facts(parts={}, notes={"corpus": words["corpus"]})
    whole = hashlib.sha256()
    sample: dict[str, str] = {}
    seen = np.empty(0, np.uint64)
    as_read = []
    for part in sorted(ranges, key=PARTS.index):
        own = _Lines.of(folder, part if part in found else "train", found, ranges[part])
        if part == "train" and settings.train_fraction < 1.0:
            own, sample = own.sample(settings.train_fraction)
        if part in found and len(own.known) == len(found[part]):
            as_read.append(part)
        facts.parts[part] = _write(folder, part, own, whole, is_written=part in as_read)
        counted = seen if part == "test" else seen[:0]
        digest = facts.parts[part].digest
        facts.notes[part] = _note(own.known, words.get(part, ""), digest, counted)
        if part == "train":
            seen = np.unique(own.known["hash"])
    np.save(folder / _KNOWN, seen)
    keep_as_read(folder, found, as_read)
    facts.notes |= sample
    facts.digest = whole.hexdigest()
    write_facts(folder, facts)


def _make_test(corpus: Path, source: Source, folder: Path) -> None:
    """Writes the documents of a further test set; `corpus` is the folder of the parts."""
    read, origin = source.read()
    known = _write_as_read(folder, "test", read)
    lines = _Lines.of(folder, "test", {"test": known}, range(len(known)))
    of_test = _write(folder, "test", lines, hashlib.sha256(), is_written=True)
    keep_as_read(folder, ["test"], ["test"])
    note = _note(known, origin, of_test.digest, np.load(corpus / _KNOWN))
    write_facts(folder, Facts(parts={"test": of_test}, notes={"test": note}))


def _write_as_read(folder: Path, part: str, lines: Iterable[tuple[str, bool]]) -> NDArray[Any]:
    """Writes lines as they come; returns what is known of each."""
    known = (([line], (len(line.split()), begins, hash_of(line))) for line, begins in lines)
    return write_known(folder / f"{part}.read", [str], known, _LINES)


@dataclass(frozen=True)
class _Lines:
    """The lines of one part, in the file that `_write_as_read` has written, and facts on each.

    Attributes:
        text: returns the lines.
        known: what is known of each.
    """

    text: Callable[[], Iterator[str]]
    known: NDArray[Any]

    @classmethod
    def of(cls, folder: Path, source: str, found: Mapping[str, NDArray[Any]], own: range) -> Self:
        """Returns a range of the lines of a source, with which a document begins."""
        known = found[source][own.start : own.stop].copy()
        known["begins"][:1] = True  # a cut turns a document into two
        rows: Rows[tuple[str]] = Rows(folder / f"{source}.read", line_of, "")
        return cls(lambda: (line for (line,) in rows.between(own.start, own.stop)), known)

    def sample(self, fraction: float) -> tuple[Self, dict[str, str]]:
        """Chooses a share of the passages, lines of about 100 words, which begin documents.

        Only a last passage of a document has fewer, and one that ends in a long line more. They are
        what a sample is made of: of documents, a few may be most of a text.
        """
        ends = np.append(self.known["begins"][1:], True).tolist()
        passage: list[str] = []
        found: list[tuple[int, int, int]] = []  # the first line, the line after the last, the hash
        words = 0
        lines = zip(self.text(), self.known["words"].tolist(), strict=True)
        for number, (line, of_line) in enumerate(lines):
            passage.append(line)
            words += of_line
            if words >= _PASSAGE_WORDS or ends[number]:
                if any(passage):
                    first = number + 1 - len(passage)
                    found.append((first, number + 1, hash_of("\n".join(passage), SAMPLE)))
                passage, words = [], 0
        chosen, known = np.zeros(len(self.known), bool), self.known.copy()
        kept = sampled(np.array([each for *_, each in found], np.uint64), fraction)
        for first, end, _ in compress(found, kept):
            chosen[first:end] = True
            known["begins"][first] = True
        note = sample_in_words(int(kept.sum()), len(found), "passages")
        return type(self)(lambda: compress(self.text(), chosen), known[chosen]), note


def _write(
    folder: Path,
    part: str,
    lines: _Lines,
    whole: Any,
    *,
    is_written: bool,
) -> PartFacts:
    """Writes the lines of a part unless they are, and adds them to the hash of the corpus."""
    digest, begins = hashlib.sha256(), lines.known["begins"]
    ends = np.append(begins[1:], True)  # whether a document ends with a line

    def hashing() -> Iterator[list[str]]:
        for line, begin, end in zip(lines.text(), begins.tolist(), ends.tolist(), strict=True):
            encoded = line.encode() + (b"\n\0" if end else b"\n")
            digest.update(encoded)
            whole.update((part.encode() + b"\n" if begin else b"") + encoded)
            yield [line]

    if is_written:
        deque(hashing(), maxlen=0)
    else:
        write_rows(folder / f"{part}.arrow", [str], hashing())
    np.save(folder / f"{part}-starts.npy", np.flatnonzero(begins))
    return PartFacts(number=int(begins.sum()), digest=digest.hexdigest())


def _cut_off(
    lines: NDArray[Any],
    ranges: dict[str, range],
    fractions: tuple[float, float],
    origin: str,
) -> None:
    """Cuts the parts with a share above 0 off the end of the training text; changes `ranges`."""
    total, end = int(lines["words"].sum()), 1.0
    for part, fraction in zip(("test", "validation"), reversed(fractions), strict=True):
        if fraction:
            end -= fraction
            train = ranges["train"]
            cut = _cut(lines[: train.stop], end * total)
            ranges["train"], ranges[part] = range(cut), range(cut, train.stop)
    _check_not_empty(lines["words"] > 0, ranges, fractions, origin)


def _check_not_empty(
    has_text: NDArray[np.bool_],
    ranges: Mapping[str, range],
    fractions: tuple[float, float],
    origin: str,
) -> None:
    cut = {"train": True, "validation": fractions[0] > 0, "test": fractions[1] > 0}
    counts = {
        part: int(has_text[own.start : own.stop].sum()) if cut[part] else len(own)
        for part, own in sorted(ranges.items(), key=lambda item: PARTS.index(item[0]))
    }
    empty = next((part for part, number in counts.items() if not number), None)
    if empty is not None:
        numbers = ", ".join(f"{name} {number:,}" for name, number in counts.items())
        raise CorpusError(
            f"{origin}: too little text, no line for the {empty} part (lines: {numbers}). Give "
            "more or shorter lines (of a sentence or paragraph each), a larger "
            "validation_fraction or test_fraction, or data of their own for the part."
        )


def _cut(lines: NDArray[Any], words: float) -> int:
    """Returns the number of lines before a cut at a number of words."""
    reached = np.cumsum(lines["words"])
    starts = np.flatnonzero(lines["begins"])
    ends = np.append(starts[1:], len(lines))  # of the documents
    over = np.flatnonzero(reached[ends - 1] > words)
    if not len(over):
        return len(lines)
    document = slice(starts[over[0]], ends[over[0]])
    # The cut is at the nearer side of the line in which the number is reached.
    middles = reached[document] - lines["words"][document] / 2
    behind = np.flatnonzero(middles >= words)
    return int(document.start + behind[0] if len(behind) else document.stop)


def _note(lines: NDArray[Any], origin: str, digest: str, seen: NDArray[np.uint64]) -> str:
    """Returns a line on a part for the user: its size, its source and its hash.

    `seen` are the hashes of the training lines, if those that the part repeats are counted.
    """
    with_text = lines[lines["words"] > 0]
    size = (
        f"{lines['begins'].sum():,} documents, {len(with_text):,} lines, "
        f"{with_text['words'].sum(dtype=np.int64):,} words"
    )
    size += in_training(int(np.isin(with_text["hash"], seen).sum()), " lines")
    return part_in_words(size, origin, "lines", digest)
