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
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwise.data.division import PARTS, SAMPLE, hash_of, sample_in_words, sampled
from headwise.data.packages import versions
from headwise.data.rows import Rows, writing
from headwise.data.running.reading import (
    python_version,
    read_hub_texts,
    read_package_docs,
    read_pydoc_topics,
)
from headwise.data.running.settings import (
    Documents,
    PackageDocs,
    PydocTopics,
    TextFiles,
    TextFilesTest,
    TextHub,
    TextHubTest,
    TextSettings,
)
from headwise.data.settings import given_parts, in_test_set
from headwise.data.sources import (
    CorpusError,
    file_in_words,
    hub_identity,
    part_in_words,
    read_lines,
)
from headwise.data.store import file_identity, stored

Document = list[str]
Marked = Iterator[tuple[str, bool]]  # lines, each with whether a document begins with it

_PASSAGE_WORDS = 100
_FACTS, _KNOWN = "facts.json", "known.npy"


class StoredDocuments(Sequence[Document]):
    """Documents whose lines stand on the disk.

    Args:
        folder: where `_write` has written them.
        name: of their part.
        digest: a hash of the documents.
    """

    def __init__(self, folder: Path, name: str, digest: str) -> None:
        self.digest = digest
        self.lines: Rows[tuple[str]] = Rows(folder / f"{name}.arrow", _line, digest)
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


def _line(text: str) -> tuple[str]:
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
    """Yields the lines of documents that are not blank, in their order.

    >>> list(lines_of([["= A =", "", "One."], ["Two."]]))
    ['= A =', 'One.', 'Two.']
    """
    return (line for line, _ in marked_lines(documents) if line)


@dataclass(frozen=True)
class TextCorpus:
    """Documents in three parts, each of which has at least one line that is not blank.

    Attributes:
        train, validation, test: documents, each a list of lines.
        notes: facts about the data for the screen and the report: label to text.
        digest: a hash of all lines, of the beginnings of documents and of the division, without
            further test sets.
        tests: documents of each further test set by its name.
    """

    train: Sequence[Document]
    validation: Sequence[Document]
    test: Sequence[Document]
    notes: dict[str, str] = field(repr=False)
    digest: str = ""
    tests: dict[str, Sequence[Document]] = field(default_factory=dict)


def load_text_corpus(settings: TextSettings) -> TextCorpus:
    """Reads a text and divides off the parts that are not given.

    Args:
        settings: a `PydocTopics`, `PackageDocs`, `TextFiles` or `TextHub`.

    Raises:
        CorpusError: data that cannot be read, has no text, or has too little for three parts. The
            message names the file or dataset and says how to mend it.
    """
    made_of = [settings.model_dump_json(exclude={"tests"}), *_identities(settings)]
    folder = stored("texts", made_of, partial(_make, settings))
    parts, notes, digest = _open(folder)
    tests: dict[str, Sequence[Document]] = {}
    for name, test in settings.tests.items():
        with in_test_set(name):
            made_of = [
                folder.name,
                test.model_dump_json(),
                str(settings.max_bytes),
                *_identity(test),
            ]
            make = partial(_make_test, test, settings.max_bytes, folder)
            of_test, its_notes, _ = _open(stored("texts", made_of, make))
        tests[name] = of_test["test"]
        notes[f"test {name}"] = its_notes["test"]
    return TextCorpus(**parts, notes=notes, digest=digest, tests=tests)


def digest_documents(documents: Iterable[Document]) -> str:
    """Returns a hash of the documents of one part."""
    if isinstance(documents, StoredDocuments):
        return documents.digest
    digest = hashlib.sha256()
    for document in documents:
        digest.update("\n".join([*document, "\0"]).encode())
    return digest.hexdigest()


# --- reading ----------------------------------------------------------------------------------


def _identities(settings: TextSettings) -> list[str]:
    """Returns what tells the data from others, and from what stood in their place before."""
    if isinstance(settings, PydocTopics):
        return [python_version()]
    if isinstance(settings, PackageDocs):
        return list(versions(settings.packages))
    if isinstance(settings, TextFiles):
        return [file_identity(path) for paths in given_parts(settings).values() for path in paths]
    where = (settings.config, settings.revision)
    return [hub_identity(settings.name, split, *where) for split in settings.splits().values()]


def _identity(test: TextFilesTest | TextHubTest) -> list[str]:
    if isinstance(test, TextFilesTest):
        return [file_identity(path) for path in test.files]
    return [hub_identity(test.name, test.split, test.config, test.revision)]


def _read(settings: TextSettings) -> tuple[dict[str, Marked], dict[str, str]]:
    """Returns the lines of each part that is given, and words on the corpus and on each part."""
    if isinstance(settings, PydocTopics | PackageDocs):
        documents, origin = (
            read_pydoc_topics()
            if isinstance(settings, PydocTopics)
            else read_package_docs(settings.packages)
        )
        return {"train": marked_lines(documents)}, {"corpus": origin}
    lines: dict[str, Marked] = {}
    if isinstance(settings, TextFiles):
        words = {"corpus": f"text files {', '.join(path.name for path in settings.train)}"}
        for part, paths in given_parts(settings).items():
            lines[part] = _read_files(paths, settings.documents, settings.max_bytes)
            words[part] = _files_in_words(paths)
        return lines, words
    words = {"corpus": settings.origin}
    for part, split in settings.splits().items():
        lines[part] = _read_split(settings, split)
        words[part] = f"split {split}"
    return lines, words


def _read_files(paths: Sequence[Path], begins: Documents, max_bytes: int | None) -> Marked:
    """Yields the lines of files, each of which begins a document."""
    files = ((str(path), read_lines(path, max_bytes)) for path in paths)
    return chain.from_iterable(_marked(where, rows, begins) for where, rows in files)


def _files_in_words(paths: Sequence[Path]) -> str:
    return ", ".join(file_in_words(path) for path in paths)


def _read_split(settings: TextHub | TextHubTest, split: str) -> Marked:
    rows = read_hub_texts(settings.name, split, settings.field, settings.config, settings.revision)
    return _marked(f"dataset {settings.name!r}, split {split!r}", rows, settings.documents)


def _marked(where: str, rows: Iterable[str], begins: Documents) -> Marked:
    """Yields the lines of rows, each with whether a document begins with it."""
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
    if not found:
        raise CorpusError(f"{where}: there is no text. Name a file or split that has text.")


def _is_title(line: str) -> bool:
    """Returns whether a line is a heading of the first level: `= Title =`, not `= = Section = =`.

    >>> [_is_title(line) for line in ("= Homarus gammarus =", "= = Diet = =", "x = y =", "==")]
    [True, False, False, False]
    """
    words = line.split()
    inner = words[1:-1]
    return len(words) > 2 and words[0] == words[-1] == "=" and "=" not in (inner[0], inner[-1])


# --- parts ------------------------------------------------------------------------------------

# What is known of each line: its words, whether a document begins with it, and its hash.
_LINES = np.dtype([("words", np.int32), ("begins", np.bool_), ("hash", np.uint64)])


_NONE = np.empty(0, np.uint64)


def _make(settings: TextSettings, folder: Path) -> None:
    """Reads and divides a text, and writes its parts to a folder."""
    read, words = _read(settings)
    found = {part: _write_as_read(folder / part, lines) for part, lines in read.items()}
    ranges = {part: range(len(lines)) for part, lines in found.items()}
    _cut_off(found["train"], ranges, settings.fractions(read), words["corpus"])
    whole = hashlib.sha256()
    digests: dict[str, str] = {}
    notes = {"corpus": words["corpus"]}
    sample: dict[str, str] = {}
    seen = _NONE
    part: str
    for part in PARTS:
        source = part if part in found else "train"
        lines = found[source][ranges[part].start : ranges[part].stop].copy()
        lines["begins"][:1] = True  # a cut turns a document into two
        rows = Rows(folder / source, _line, "")
        chosen = np.ones(len(lines), bool)
        if part == "train" and settings.train_fraction < 1.0:
            text = (line for (line,) in rows.between(ranges[part].start, ranges[part].stop))
            chosen, sample = _sample(text, lines, settings.train_fraction)
        text = (line for (line,) in rows.between(ranges[part].start, ranges[part].stop))
        lines = lines[chosen]
        digests[part] = _write(folder, part, compress(text, chosen), lines["begins"], whole)
        notes[part] = _note(
            lines, words.get(part, ""), digests[part], seen if part == "test" else _NONE
        )
        if part == "train":
            seen = np.unique(lines["hash"])
            np.save(folder / _KNOWN, seen)
    for part in found:
        (folder / part).unlink()
    _write_facts(folder, digests, notes | sample, whole.hexdigest())


def _make_test(
    test: TextFilesTest | TextHubTest, max_bytes: int | None, corpus: Path, folder: Path
) -> None:
    """Writes the documents of a further test set; `corpus` is the folder of the parts."""
    if isinstance(test, TextFilesTest):
        read = _read_files(test.files, test.documents, max_bytes)
        origin = _files_in_words(test.files)
    else:
        read, origin = _read_split(test, test.split), test.origin
    lines = _write_as_read(folder / "read", read)
    text = (line for (line,) in Rows(folder / "read", _line, ""))
    digest = _write(folder, "test", text, lines["begins"], hashlib.sha256())
    (folder / "read").unlink()
    notes = {"test": _note(lines, origin, digest, np.load(corpus / _KNOWN))}
    _write_facts(folder, {"test": digest}, notes, "")


def _write_as_read(path: Path, lines: Marked) -> NDArray[Any]:
    """Writes lines as they come; returns what is known of each."""
    with writing(path, [str]) as add:

        def each() -> Iterator[tuple[int, bool, int]]:
            for line, begins in lines:
                add([line])
                yield len(line.split()), begins, hash_of(line)

        return np.fromiter(each(), _LINES)


def _write(
    folder: Path, part: str, text: Iterable[str], begins: NDArray[np.bool_], whole: Any
) -> str:
    """Writes the lines of a part, and adds them to the hash of the corpus; returns their own."""
    digest = hashlib.sha256()
    ends = np.append(begins[1:], True)  # whether a document ends with a line
    with writing(folder / f"{part}.arrow", [str]) as add:
        for line, begin, end in zip(text, begins.tolist(), ends.tolist(), strict=True):
            add([line])
            encoded = line.encode("utf-8", "surrogatepass") + (b"\n\0" if end else b"\n")
            digest.update(encoded)
            whole.update((part.encode() + b"\n" if begin else b"") + encoded)
    np.save(folder / f"{part}-starts.npy", np.flatnonzero(begins))
    return digest.hexdigest()


def _write_facts(folder: Path, digests: dict[str, str], notes: dict[str, str], digest: str) -> None:
    facts = {"digests": digests, "notes": notes, "digest": digest}
    (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _open(folder: Path) -> tuple[dict[str, StoredDocuments], dict[str, str], str]:
    """Returns the parts that a folder has, the notes, and the hash of the corpus."""
    facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    parts = {
        part: StoredDocuments(folder, part, digest) for part, digest in facts["digests"].items()
    }
    return parts, facts["notes"], facts["digest"]


def _cut_off(
    lines: NDArray[Any],
    ranges: dict[str, range],
    fractions: tuple[float, float],
    origin: str,
) -> None:
    """Cuts the parts that are not given off the end of the training text.

    Args:
        lines: what is known of the lines of the training text.
        ranges: which lines of its text each part has; changed in place.
        fractions: shares of the validation and the test part; 0 for a part that is given.
        origin: words on the corpus, for errors.
    """
    total, end = int(lines["words"].sum()), 1.0
    for part, fraction in zip(("test", "validation"), reversed(fractions), strict=True):
        if fraction:
            end -= fraction
            train = ranges["train"]
            cut = _cut(lines[: train.stop], end * total)
            ranges["train"], ranges[part] = range(cut), range(cut, train.stop)
    with_text = int((lines["words"] > 0).sum())
    counts = dict.fromkeys(PARTS, 0)
    for part in PARTS:
        given = ranges[part]
        own = lines if part == "train" or fractions[part == "test"] else None
        counts[part] = (
            len(given) if own is None else int((own["words"][given.start : given.stop] > 0).sum())
        )
    for part in PARTS:
        if not counts[part]:
            parts = 1 + sum(fraction > 0 for fraction in fractions)
            if with_text < parts:
                raise CorpusError(
                    f"{origin}: the training text has {with_text} line{'s' * (with_text > 1)}, "
                    f"expected at least {parts}, one for each part that is made of it. Break it "
                    f"into lines of a sentence or paragraph each, or give data of their own for "
                    f"the parts."
                )
            numbers = ", ".join(f"{name} {number:,}" for name, number in counts.items())
            raise CorpusError(
                f"{origin}: too little text, no line for the {part} part (lines: {numbers}). Give "
                "more or shorter lines, a larger validation_fraction or test_fraction, or data of "
                "their own for the part."
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


def _sample(
    text: Iterable[str], lines: NDArray[Any], fraction: float
) -> tuple[NDArray[np.bool_], dict[str, str]]:
    """Chooses a share of the passages: lines in a row that have about 100 words.

    Only a last passage of a document has fewer, and one that ends in a long line more. They are
    what a sample is made of: of documents, a few may be most of a text.

    Args:
        text: the lines.
        lines: what is known of them; passages begin documents of their own.
        fraction: the share.

    Returns:
        Which lines are chosen, and a note on the sample.
    """
    ends = np.append(lines["begins"][1:], True).tolist()
    passage: list[str] = []
    found: list[tuple[int, int, int]] = []  # the first line, the line after the last, the hash
    words = 0
    for number, (line, of_line) in enumerate(zip(text, lines["words"].tolist(), strict=True)):
        passage.append(line)
        words += of_line
        if words >= _PASSAGE_WORDS or ends[number]:
            if any(passage):
                first = number + 1 - len(passage)
                found.append((first, number + 1, hash_of("\n".join(passage), SAMPLE)))
            passage, words = [], 0
    chosen = np.zeros(len(lines), bool)
    kept = sampled(np.array([each for *_, each in found], np.uint64), fraction)
    for first, end, _ in compress(found, kept):
        chosen[first:end] = True
        lines["begins"][first] = True
    return chosen, sample_in_words(int(kept.sum()), len(found), "passages")


def _note(lines: NDArray[Any], origin: str, digest: str, seen: NDArray[np.uint64]) -> str:
    """Returns a line on a part of the corpus for the user: its size, its source and its hash.

    Args:
        lines: what is known of its lines.
        origin: files or split of the part; empty for a share of the training text.
        digest: a hash of the part.
        seen: the hashes of the training lines, if those that the part repeats are counted.
    """
    with_text = lines[lines["words"] > 0]
    size = (
        f"{lines['begins'].sum():,} documents, {len(with_text):,} lines, "
        f"{with_text['words'].sum(dtype=np.int64):,} words"
    )
    repeated = int(np.isin(with_text["hash"], seen).sum())
    if repeated:
        size += f", of which {repeated:,} lines are also in the training part"
    return part_in_words(size, origin, "lines", digest)
