"""What the corpora of all texts do alike: sources of their parts, and further test sets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from headwise.data.parts import read_facts
from headwise.data.settings import (
    HubSettings,
    HubTest,
    given_parts,
    given_test,
    in_test_set,
)
from headwise.data.sources import file_in_words, load_hub_split
from headwise.data.store import file_identity, stored

OfPart = TypeVar("OfPart")  # what a part is: a sequence of items, or an object that holds them
Open = Callable[[Path, str, str], OfPart]  # of a folder, the name of a part and its hash


@dataclass(frozen=True)
class Corpus(Generic[OfPart]):
    """Data in three parts, none of which is empty.

    Attributes:
        train, validation, test: the items of each part.
        notes: facts about the data for the screen and the report: label to text.
        digest: a hash of all items and of their division, without further test sets; "" if only
            the parts have hashes.
        tests: the items of each further test set by its name.
        classes: of labelled texts, the names of the classes; None for a regression.
    """

    train: OfPart
    validation: OfPart
    test: OfPart
    notes: dict[str, str] = field(repr=False)
    digest: str = ""
    tests: dict[str, OfPart] = field(default_factory=dict)
    classes: list[str] | None = None


class Source(NamedTuple):
    """Where items come from: what tells them from others, and what reads them.

    `read` returns the items, and words on where they come from.
    """

    identity: str
    read: Callable[[], tuple[Iterable[Any], str]]


def files_source(paths: Sequence[Path], read: Callable[[], Iterable[Any]]) -> Source:
    """Returns the source of what `read` makes of files."""
    return Source(
        " ".join(map(file_identity, paths)),
        lambda: (read(), ", ".join(map(file_in_words, paths))),
    )


def split_source(
    dataset: HubSettings | HubTest, split: str, read: Callable[[Any, str], Iterable[Any]]
) -> Source:
    """Returns the source of what `read` makes of a split of a dataset.

    `read` is given the rows, a `datasets.Dataset`, and words on where they are. Beside a stream
    they are a `datasets.IterableDataset`: to load one split would store all of them.
    """
    words = dataset.origin if isinstance(dataset, HubTest) else f"split {split}"
    where = f"dataset {dataset.name!r}, split {split!r}"
    streams = getattr(dataset, "streaming", False) and "[" not in split  # a stream has no slices
    given = (dataset.name, split, dataset.config, dataset.revision)
    rows = load_hub_split(*given, streaming=streams)
    # What is loaded tells by its fingerprint what it is, and is read from then.
    identity = split if streams else rows._fingerprint
    return Source(identity, lambda: (read(rows, where), words))


def read_sources(
    sources: Mapping[str, Source], origin: str | None
) -> tuple[dict[str, Iterable[Any]], dict[str, str]]:
    """Returns the items of each part that is given, and words on the corpus and on each part.

    Without an `origin`, the words on the only part are those on the corpus.
    """
    read = {part: source.read() for part, source in sources.items()}
    words = {part: of_part for part, (_, of_part) in read.items()}
    words = {"corpus": words["train"]} if origin is None else {"corpus": origin, **words}
    return {part: items for part, (items, _) in read.items()}, words


def open_corpus(
    kind: str, made_of: Iterable[object], make: Callable[[Path], None], open_part: Open[OfPart]
) -> tuple[dict[str, Any], Path]:
    """Returns the fields of a `Corpus` without further test sets (see `stored`), and its folder."""
    folder = stored(kind, made_of, make)
    facts = read_facts(folder)
    parts = {name: open_part(folder, name, part.digest) for name, part in facts.parts.items()}
    known = {"notes": facts.notes, "digest": facts.digest, "classes": facts.classes}
    return {**parts, **known}, folder


def given_sources(settings: Any, source: Callable[[Any, Any], Source]) -> dict[str, Source]:
    """Returns the source of each part that is given as files or as a split."""
    return {part: source(settings, given) for part, given in given_parts(settings).items()}


def identity_of(settings: BaseModel, sources: Mapping[str, Source]) -> list[str]:
    """Returns what tells a corpus from others: its settings and its sources."""
    own = settings.model_dump_json(exclude={"tests"})
    return [own, *(source.identity for source in sources.values())]


def corpus_fields(
    kind: str,
    settings: Any,
    sources: Mapping[str, Source],
    source: Callable[[Any, Any], Source],
    make: Callable[[Path], None],
    make_test: Callable[[Path, Source, Path], None],
    open_part: Open[OfPart],
) -> dict[str, Any]:
    """Returns the fields of a `Corpus` whose parts and further test sets stand on the disk.

    Args:
        kind, make, open_part: see `open_corpus`.
        settings, sources: the settings of the data, and the sources of the parts.
        source: returns the source of a further test set.
        make_test: writes a test set, given the folder of the corpus, the source, and where to.
    """
    fields, folder = open_corpus(kind, identity_of(settings, sources), make, open_part)
    fields["tests"] = {}
    for name, test in settings.tests.items():
        with in_test_set(name):
            origin = source(test, given_test(settings, test))
            made_of = [folder.name, test.model_dump_json(), origin.identity]
            make_this = partial(make_test, folder, origin)
            of_test, _ = open_corpus(kind, made_of, make_this, open_part)
        fields["tests"][name] = of_test["test"]
        fields["notes"][f"test {name}"] = of_test["notes"]["test"]
    return fields
