"""Labelled corpora: examples that are checked, counted and divided into parts.

An example is a text, or a pair of texts, with a label: the name of a class, or a number. A part
that is given as data of its own is taken as it is. A part that is not given is divided off the
training examples by a hash of their first text (`data.division`), so that a text that occurs
twice, as every premise of MNLI does, is never in two parts.

Rows that cannot be examples (with an empty text, with too few or too many fields, without a label)
are skipped and counted. Data that would be misread is an error that names the file and the line.

The examples stand on the disk, in the cache, where every run finds them (`data.store`).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from headwise.data.corpora import Corpus, Source, read_sources
from headwise.data.division import parts_of, sample_in_words
from headwise.data.labelled.reading import (
    GLUE,
    Row,
    glue_origin,
    glue_sources,
    read_docstrings,
    read_hub,
    read_tsv,
)
from headwise.data.labelled.settings import (
    Docstrings,
    ExampleLimits,
    Glue,
    LabelledFiles,
    LabelledHub,
    LabelledSettings,
    Problem,
)
from headwise.data.parts import Facts, Kind, read_facts, write_facts, write_parts
from headwise.data.settings import given_parts
from headwise.data.sources import CorpusError, packages_identity
from headwise.data.streams import Reader, text_corpus_fields
from headwise.ops.checks import did_you_mean
from headwise.ops.labels import IGNORED_LABEL


class Example(NamedTuple):
    """A text or a pair of texts, and its label."""

    text: str
    pair: str | None
    label: str | float  # the name of a class, or a number


def _both_texts(example: Example) -> str:
    return repr(example[:2])


def _encoded(example: Example, part: str | None) -> bytes:
    if part is not None and part.startswith("test"):
        part = f"test {part[5:]}"  # the only test set has an empty name
    return repr((*([part] if part else []), *example)).encode()


EXAMPLES = Kind(
    Example,
    (str, str, str),
    key=attrgetter("text"),
    identity=_both_texts,
    content=repr,
    encoded=_encoded,
)
_NUMBERED = replace(EXAMPLES, columns=(str, str, float))


@dataclass(frozen=True)
class LabelledCorpus(Corpus[Sequence[Example]]):
    """Examples in parts, none of which is empty.

    Attributes:
        test: examples of each test set by its name; the name of a single one is "".
        classes: names of the classes in the order of the outputs of the model; None for a
            regression. They are part of the digest.
    """

    test: dict[str, Sequence[Example]]  # type: ignore[assignment]


@dataclass
class Reading:
    """The rows that a source of labelled texts gives, and what is known of their labels.

    Attributes:
        rows: of `train` and, if they are given, of `validation` and `test`; several test sets are
            named `test NAME`. Those of `train` are read first.
        words: where all of them come from, as `corpus`, and the file or split of each part.
        problem: what labels are.
        classes: names of the classes; None takes the labels of the training rows, sorted.
        label_hint: end of messages on labels that cannot be classes: how to mend it.
        skipped: reasons for skipping rows, and how many rows were skipped for each.
    """

    rows: Mapping[str, Iterable[Row]]
    words: dict[str, str]
    problem: Problem = "classification"
    classes: Sequence[str] | None = None
    label_hint: str = (
        "If labels are numbers, set data.problem to regression; otherwise check whether the column "
        "of the label is the right one."
    )
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def kind(self) -> Kind[Example]:
        return EXAMPLES if self.problem == "classification" else _NUMBERED

    @property
    def names(self) -> list[str] | None:
        """The classes as soon as they are known; None for a regression."""
        if self.problem == "regression" or self.classes is None:
            return None
        return list(self.classes)


def load_labelled_corpus(settings: LabelledSettings) -> LabelledCorpus:
    """Reads labelled texts, and takes parts that are not given from the training part.

    Raises:
        CorpusError: data that cannot be read, an unknown label, or too little data to fill the
            parts. The message names the file and line, and says how to mend it.
    """
    built_in = glue_sources(settings) if isinstance(settings, Glue) else {}
    if isinstance(settings, Docstrings):
        read = partial(read_docstrings, settings.packages)
        built_in = {"train": Source(packages_identity(settings.packages), read)}
    of_split = partial(read_hub, classes=known_classes(settings)[1])
    reader = Reader(_files, _of_files, of_split, _of_stream)
    return labelled_corpus(
        text_corpus_fields("examples", settings, built_in, reader, _make, _make_test, EXAMPLES.open)
    )


def labelled_corpus(fields: Mapping[str, Any]) -> LabelledCorpus:
    """Returns the corpus of fields, of which each test set is one: `test`, or `test NAME`."""
    sets = [name for name in fields if name.partition(" ")[0] == "test"]
    others = {name: value for name, value in fields.items() if name not in sets}
    return LabelledCorpus(**others, test={name[len("test ") :]: fields[name] for name in sets})


# --- sources ----------------------------------------------------------------------------------


def _files(given: Path) -> list[list[Path]]:
    return [[given]]


def _of_files(settings: Any, files: Sequence[Path], max_bytes: int | None) -> Iterator[Row]:
    return read_tsv(files[0], settings, max_bytes)


def _of_stream(settings: ExampleLimits, rows: Iterable[Row]) -> Iterator[Example]:
    # Under another name than the whole part: one piece may well have one label alone.
    return _examples("stream", Reading({"stream": rows}, {}, *known_classes(settings)))


def _origin(settings: LabelledSettings) -> str | None:
    if isinstance(settings, Glue):
        return glue_origin(settings)
    if isinstance(settings, LabelledFiles):
        return f"files {', '.join(path.name for path in given_parts(settings).values())}"
    return settings.origin if isinstance(settings, LabelledHub) else None


def known_classes(settings: ExampleLimits) -> tuple[Problem, list[str] | None]:
    """Returns the problem, and the classes if the settings alone tell them."""
    if isinstance(settings, Glue):
        classes = GLUE[settings.task].classes
        return "regression" if classes is None else "classification", classes
    if isinstance(settings, Docstrings):
        return "classification", settings.packages
    return getattr(settings, "problem", "classification"), getattr(settings, "classes", None)


def has_pairs(settings: ExampleLimits) -> bool:
    """Returns whether examples are pairs of texts."""
    if isinstance(settings, Glue):
        return GLUE[settings.task].hub.pair_field is not None
    return getattr(settings, "pair_field", None) is not None


# --- examples in parts ------------------------------------------------------------------------


def _make(settings: LabelledSettings, sources: Mapping[str, Source], folder: Path) -> None:
    def read() -> Reading:
        return Reading(*read_sources(sources, _origin(settings)), *known_classes(settings))

    make_examples(read, settings.fractions(), settings.train_fraction, folder)


def make_examples(
    read: Callable[[], Reading],
    fractions: tuple[float, float],
    train_fraction: float,
    folder: Path,
) -> None:
    """Makes examples of rows, divides off the parts that are not given, and writes all to a folder.

    `fractions` are the shares of the training examples that become validation and test part.
    """
    reading = read()
    tests = [name for name in reading.rows if name.startswith("test")] or ["test"]
    shares = (
        0.0 if "validation" in reading.rows else fractions[0],
        0.0 if any(name in reading.rows for name in tests) else fractions[1],
    )
    facts = write_parts(
        folder,
        reading.kind,
        {name: _examples(name, reading) for name in reading.rows},
        [*(["train"] if "train" in reading.rows else []), "validation", *tests],
        divide=(lambda keys: parts_of(keys, *shares)) if any(shares) else None,
        train_fraction=train_fraction,
        whole=lambda: repr(reading.names).encode(),
    )
    facts.classes = reading.names
    _check_not_empty(facts, reading, any(fractions))
    facts.notes = {"corpus": reading.words["corpus"]}
    for name, part in facts.parts.items():
        facts.notes[name] = part.note("examples", "examples", reading.words.get(name, ""))
    if skipped := _reasons(reading.skipped):
        facts.notes["skipped"] = skipped
    if train_fraction < 1.0:
        kept = facts.parts["train"].number
        facts.notes |= sample_in_words(kept, facts.sampled_from, "examples")
    if facts.classes is not None:
        facts.notes["classes"] = _named(facts.classes)
    write_facts(folder, facts)


def _make_test(corpus: Path, source: Source, folder: Path) -> None:
    """Writes the examples of a further test set to `folder`; `corpus` holds the other parts."""
    rows, origin = source.read()
    classes = read_facts(corpus).classes
    problem: Problem = "regression" if classes is None else "classification"
    reading = Reading({"test": rows}, {}, problem, classes)
    examples = _examples("test", reading)
    facts = write_parts(folder, reading.kind, {"test": examples}, corpus=corpus)
    of_test, skipped = facts.parts["test"], _reasons(reading.skipped)
    if not of_test.number:
        raise CorpusError(
            f"there are no examples ({origin}; skipped: {skipped or 'none'}), expected at least "
            f"one; check text_field, pair_field and label_field"
        )
    note = of_test.note("examples", "examples", origin)
    facts.notes["test"] = note + (f"; skipped: {skipped}" if skipped else "")
    write_facts(folder, facts)


def _examples(part: str, reading: Reading) -> Iterator[Example]:
    """Yields the examples in rows; counts rows that are none.

    The training rows tell the classes if these are not named.
    """
    names = part == "train" and reading.classes is None and reading.problem == "classification"
    known = set() if names or reading.classes is None else set(reading.classes)
    numbers: set[str | float] = set()  # two of the labels of a regression
    number = 0
    for row in reading.rows[part]:
        text, pair = one_line(row.text), row.pair and one_line(row.pair)
        if row.flaw:
            reading.skipped[row.flaw] += 1
        elif not text or pair == "":
            reading.skipped["an empty text"] += 1
        elif not row.label:
            reading.skipped["no label"] += 1
        else:
            if names:
                known.add(row.label)
            number += 1
            label = _label(row, reading.problem, known)
            if reading.problem == "regression" and len(numbers) < 2:
                numbers.add(label)
            yield Example(text, pair, label)
    if names:
        if not known:  # said here, since all labels of the other parts would be unknown
            raise CorpusError(
                f"{reading.words['corpus']}: there are no examples for the train part (skipped: "
                f"{_reasons(reading.skipped) or 'none'}), expected at least one in every part"
            )
        reading.classes = sorted(known, key=_by_number)
        _check_classes(reading.classes, number, reading.words["corpus"], reading.label_hint)
    if part == "train" and len(numbers) == 1:
        raise CorpusError(
            f"{reading.words['corpus']}: all labels are {numbers.pop()}, expected different "
            f"numbers. Check whether the column of the label is the right one."
        )


def one_line(text: str) -> str:
    """Returns a text as examples have it."""
    return " ".join(text.split())


def _label(row: Row, problem: Problem, known: set[str] | None) -> str | float:
    """Returns the label of a row if it is one of the known classes, or a number."""
    if problem == "regression":
        try:
            number = float(row.label)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number == IGNORED_LABEL:
            raise CorpusError(
                f"{row.where}: the label is {row.label!r}, expected a number other than "
                f"{IGNORED_LABEL}. Correct it, or set data.problem to classification."
            )
        return number
    if known is not None and row.label not in known:
        raise CorpusError(
            f"{row.where}: the label is {row.label!r}, expected one of the classes "
            f"{_named(sorted(known, key=_by_number))}: correct it, or name all classes as "
            f"data.classes{did_you_mean(row.label, known)}"
        )
    return row.label


def _by_number(label: str) -> tuple[float, str]:
    """Returns a sorting key that puts "9" before "10", and numbers before words."""
    try:
        number = float(label)
    except ValueError:
        number = math.inf
    return number if math.isfinite(number) else math.inf, label


def _named(classes: Sequence[str]) -> str:
    """Returns the names of up to a dozen classes as one text."""
    more = f", ... ({len(classes):,} in all)" if len(classes) > 12 else ""
    return ", ".join(classes[:12]) + more


def _check_classes(classes: Sequence[str], count: int, origin: str, hint: str) -> None:
    if len(classes) == 1:
        raise CorpusError(
            f"{origin}: all labels are {classes[0]!r}, expected at least two classes. {hint}"
        )
    if len(classes) > max(2, count / 2):
        raise CorpusError(
            f"{origin}: {len(classes):,} different labels among {count:,} examples ({classes[0]}, "
            f"{classes[1]}, ...), expected fewer, from which classes can be learned. {hint}"
        )


def _check_not_empty(facts: Facts, reading: Reading, may_divide: bool) -> None:
    for part, of_part in facts.parts.items():
        if not of_part.number:
            counts = ", ".join(f"{name} {each.number:,}" for name, each in facts.parts.items())
            left_out = _reasons(reading.skipped)
            raise CorpusError(
                f"{reading.words['corpus']}: there are no examples for the {part} part ({counts}"
                + (f"; skipped: {left_out}" if left_out else "")
                + "). "
                + (
                    "Give more examples, a larger validation_fraction or test_fraction, or data of "
                    "their own for the part."
                    if may_divide
                    else "Every part needs examples of its own."
                )
            )


def _reasons(skipped: Counter[str]) -> str:
    return ", ".join(f"{count:,} with {reason}" for reason, count in skipped.items() if count)
