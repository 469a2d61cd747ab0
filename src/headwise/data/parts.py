"""Rows of text in parts on the disk: divided, sampled and counted as they are written.

Whatever the rows are, sentence pairs or labelled texts, they take the same way. They are written
as they are read, with three hashes of each in memory, 24 bytes a row. The hashes decide in which
part a row stands, and whether it stands in another one too. Then the parts are written, but for
those of which nothing is left out: they stay as they were read.
"""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from headwise.data.division import PARTS, SAMPLE, Hashes, hash_of, sampled
from headwise.data.rows import Row, Rows, write_known, write_rows
from headwise.data.sources import in_training, part_in_words

_FACTS = "facts.json"
_KNOWN = "-known.npy"  # the identities of the rows of a part

Division = Callable[[Hashes], NDArray[np.int8]]


@dataclass(frozen=True)
class Kind(Generic[Row]):
    """How rows are written, told apart and divided.

    Attributes:
        row: the class of a row, a named tuple.
        columns: the type of each of its values.
        key: by what a row is divided; rows with one key stay together.
        identity: by what it is known that a row stands in another part too.
        content: by what a row repeats another one, and is chosen for a sample.
        encoded: the bytes of a row that count for the hash of its part, or, with the name of the
            part, for that of the whole corpus.
    """

    row: type[Row]
    columns: tuple[type, ...]
    key: Callable[[Row], str]
    identity: Callable[[Row], str]
    content: Callable[[Row], str]
    encoded: Callable[[Row, str | None], bytes]

    def open(self, folder: Path, name: str, digest: str = "") -> Rows[Row]:
        """Opens the rows of a part that stand in a folder."""
        return Rows(_path(folder, name), self.row, digest)


class PartFacts(BaseModel):
    """What is known of the rows of one part.

    Attributes:
        number: how many rows it has.
        repeated: how many repeat an earlier row of the part word for word.
        trained: how many stand in the training part too.
        earlier: how many stand in a part that comes before it.
        digest: a hash of the rows.
    """

    number: int = 0
    repeated: int = 0
    trained: int = 0
    earlier: int = 0
    digest: str = ""

    def note(self, items: str, hashed: str, origin: str) -> str:
        """Returns what the notes say of the part: its size, where it comes from, and a hash."""
        size = f"{self.number:,} {items}{in_training(self.trained)}"
        return part_in_words(size, origin, hashed, self.digest)


class Facts(BaseModel):
    """What is known of rows in parts.

    Attributes:
        parts: of each part by its name.
        dropped: how many training rows were left out because they stand in another part.
        sampled_from: how many training rows there were before a sample was taken.
        digest: a hash of all rows and of their division.
        notes: what a person is told of the data: label to text.
        classes: the names of the classes of labelled texts.
        skipped: of images and sounds, why files were left out.
    """

    parts: dict[str, PartFacts]
    dropped: int = 0
    sampled_from: int = 0
    digest: str = ""
    notes: dict[str, str] = {}
    classes: list[str] | None = None
    skipped: list[str] = []


# The hashes of rows: an array of shape `(rows,)`.
_HASHED = np.dtype([("key", np.uint64), ("identity", np.uint64), ("content", np.uint64)])


def write_parts(
    folder: Path,
    kind: Kind[Row],
    given: Mapping[str, Iterable[Row]],
    names: Sequence[str] = ("test",),
    *,
    corpus: Path | None = None,
    divide: Division | None = None,
    drop_leaks: bool = False,
    train_fraction: float = 1.0,
    whole: Callable[[], bytes] = bytes,
) -> Facts:
    """Writes rows into a folder, a file a part, and divides off the parts that are not given.

    Args:
        folder, kind: where to, and what the rows are.
        given: the rows of each part that is given. They are read in the order of `names`.
        names: the names of all parts in their order, `train` first.
        corpus: for a further test set, the folder of the parts among which its rows are looked for.
        divide: gives the number of each training row's part in `PARTS`; None divides nothing off.
        drop_leaks: whether training rows are left out that stand in another part.
        train_fraction: the share of the training rows that is taken.
        whole: returns what the hash of the corpus begins with, when all rows have been read.
    """
    read = {
        name: _read(_path(folder, name, ".read"), kind, given[name])
        for name in names
        if name in given
    }
    train = read.get("train", np.empty(0, _HASHED))
    falls_into = np.zeros(len(train), np.int8) if divide is None else divide(train["key"])
    chosen = {name: np.ones(len(rows), bool) for name, rows in read.items()}
    for number, part in enumerate(PARTS):
        if part in names and (part == "train" or part not in read):
            chosen[part] = falls_into == number
    facts = Facts(parts={name: PartFacts() for name in names})
    if "train" in names:
        chosen["train"] = _train(facts, train, chosen, read, drop_leaks, train_fraction)
    hashed = {name: read.get(name, train)[chosen[name]] for name in names}
    digest = hashlib.sha256(whole())
    trained_here = hashed.get("train", train)["identity"]
    trained = trained_here if corpus is None else _known(corpus, "train")
    earlier = trained[:0] if corpus is None else np.union1d(trained, _known(corpus, "validation"))
    whole_parts = [name for name in read if chosen[name].all()]
    for name, of_part in facts.parts.items():
        as_read = Rows(_path(folder, name if name in read else "train", ".read"), kind.row, "")
        own = hashlib.sha256()
        rows = _hashing(compress(as_read, chosen[name]), kind, name, own, digest)
        if name in whole_parts:
            deque(rows, maxlen=0)
        else:
            write_rows(_path(folder, name), kind.columns, rows)
        of_part.digest = own.hexdigest()
        of_part.number = len(hashed[name])
        of_part.repeated = of_part.number - len(np.unique(hashed[name]["content"]))
        identity = hashed[name]["identity"]
        if name != "train":
            of_part.trained = int(np.isin(identity, trained).sum())
        of_part.earlier = int(np.isin(identity, earlier).sum())
        earlier = np.union1d(earlier, identity)
        np.save(_path(folder, name, _KNOWN), np.unique(identity))
    keep_as_read(folder, read, whole_parts)
    facts.digest = digest.hexdigest()
    return facts


def _train(
    facts: Facts,
    train: NDArray[Any],
    chosen: Mapping[str, NDArray[np.bool_]],
    read: Mapping[str, NDArray[Any]],
    drop_leaks: bool,
    fraction: float,
) -> NDArray[np.bool_]:
    """Returns which of the training rows are trained on."""
    kept = chosen["train"]
    if drop_leaks:
        others = [read.get(name, train)[chosen[name]] for name in chosen if name != "train"]
        leaked = kept & np.isin(train["identity"], np.concatenate(others)["identity"])
        facts.dropped, kept = int(leaked.sum()), kept & ~leaked
    facts.sampled_from = int(kept.sum())
    if fraction < 1.0 and facts.sampled_from:
        kept[kept] = sampled(train["content"][kept], fraction)
    return kept


def write_facts(folder: Path, facts: Facts) -> None:
    """Writes what is known of the parts beside them."""
    # Not as pydantic writes JSON: names of files may not be Unicode.
    (folder / _FACTS).write_text(json.dumps(facts.model_dump()), encoding="utf-8")


def read_facts(folder: Path) -> Facts:
    """Reads what `write_facts` has written."""
    return Facts.model_validate(json.loads((folder / _FACTS).read_text(encoding="utf-8")))


def digest_of(rows: Sequence[Row], kind: Kind[Row]) -> str:
    """Returns the hash of the rows of a part."""
    if isinstance(rows, Rows):
        return rows.digest
    digest = hashlib.sha256()
    for row in rows:
        digest.update(kind.encoded(row, None))
    return digest.hexdigest()


def _path(folder: Path, name: str, suffix: str = ".arrow") -> Path:
    return folder / f"{name}{suffix}"


def _known(folder: Path, name: str) -> Hashes:
    """Returns the identities of a part's rows: of none, where it is a stream."""
    path = _path(folder, name, _KNOWN)
    found: Hashes = np.load(path) if path.exists() else np.empty(0, np.uint64)
    return found


def _read(path: Path, kind: Kind[Row], rows: Iterable[Row]) -> NDArray[Any]:
    """Writes rows as they come; returns their hashes."""

    def hashed() -> Iterator[tuple[Row, tuple[int, int, int]]]:
        for row in rows:
            key = hash_of(kind.key(row))
            identity = key if kind.identity is kind.key else hash_of(kind.identity(row))
            yield row, (key, identity, hash_of(kind.content(row), SAMPLE))

    return write_known(path, kind.columns, hashed(), _HASHED)


def _hashing(
    rows: Iterable[Row], kind: Kind[Row], name: str, own: "hashlib._Hash", corpus: "hashlib._Hash"
) -> Iterator[Row]:
    """Yields the rows of a part, and adds them to its own hash and to that of the corpus."""
    for row in rows:
        own.update(kind.encoded(row, None))
        corpus.update(kind.encoded(row, name))
        yield row


def keep_as_read(folder: Path, read: Iterable[str], whole: Container[str]) -> None:
    """Gives whole parts that were written as they were read their names; removes the others."""
    for name in read:
        path = _path(folder, name, ".read")
        if name in whole:
            path.rename(_path(folder, name))
        else:
            path.unlink()
