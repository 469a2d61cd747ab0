"""Labelled corpora: examples that are checked, counted and divided into parts.

An example is a text, or a pair of texts, with a label: the name of a class, or a number. A part
that is given as data of its own is taken as it is. A part that is not given is divided off the
training examples by a hash of their first text (`splits.divide`), so that a text that occurs twice,
as every premise of MNLI does, is never in two parts.

Rows that cannot be examples (with an empty text, with too few or too many fields, without a label)
are skipped and counted. Data that would be misread is an error that names the file and the line.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headwise.messages import did_you_mean
from headwise.ops.labels import IGNORED_LABEL
from headwise.tasks.further_tests import in_test_set
from headwise.tasks.sources import CorpusError, file_in_words, part_in_words
from headwise.tasks.splits import divide, given_parts, sample
from headwise.tasks.text.labelled.docstrings import read_docstrings
from headwise.tasks.text.labelled.glue import glue_classes, read_glue
from headwise.tasks.text.labelled.reading import Columns, Row, read_hub, read_tsv
from headwise.tasks.text.labelled.settings import (
    Docstrings,
    ExampleLimits,
    Glue,
    LabelledFiles,
    LabelledFileTest,
    LabelledHub,
    LabelledHubTest,
    LabelledSettings,
    Problem,
)


class Example(NamedTuple):
    """A text or a pair of texts, and its label."""

    text: str
    pair: str | None
    label: str | float  # the name of a class, or a number


@dataclass(frozen=True)
class LabelledCorpus:
    """Examples in parts, none of which is empty.

    Attributes:
        train, validation: examples.
        test: examples of each test set by its name; the name of a single one is "".
        classes: names of the classes in the order of the outputs of the model; None for a
            regression.
        notes: facts about the data for the screen and the report: label to text.
        tests: examples of each further test set by its name.
    """

    train: list[Example]
    validation: list[Example]
    test: dict[str, list[Example]]
    classes: list[str] | None
    notes: dict[str, str]
    tests: dict[str, list[Example]] = field(default_factory=dict)

    def digest(self) -> str:
        """Returns a hash of all examples, their division and the order of the classes.

        Further test sets do not count.
        """
        digest = hashlib.sha256(repr(self.classes).encode())
        tests = [(f"test {name}", examples) for name, examples in self.test.items()]
        for part, examples in [("train", self.train), ("validation", self.validation), *tests]:
            for example in examples:
                digest.update(repr((part, *example)).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def load_labelled_corpus(settings: LabelledSettings) -> LabelledCorpus:
    """Reads labelled texts and divides off the parts that are not given.

    Args:
        settings: a `Docstrings`, `Glue`, `LabelledFiles` or `LabelledHub`.

    Raises:
        CorpusError: data that cannot be read, an unknown label, or too little data to fill the
            parts. The message names the file and, if there is one, the line, and says how to mend
            it.
    """
    skipped: Counter[str] = Counter()
    given: dict[str, Iterable[Row]] = {}
    origins: dict[str, str] = {}
    problem, classes = known_classes(settings)
    if isinstance(settings, Docstrings):
        given["train"], origin = read_docstrings(settings.packages)
    elif isinstance(settings, Glue):
        given, origins, origin = read_glue(
            settings.task,
            settings.folder,
            settings.name,
            settings.revision,
            skipped,
            settings.max_bytes,
        )
    elif isinstance(settings, LabelledFiles):
        columns = Columns(settings.text_field, settings.pair_field, settings.label_field)
        paths = given_parts(settings)
        for part, path in paths.items():
            given[part] = read_tsv(path, columns, skipped, settings.max_bytes)
            origins[part] = file_in_words(path)
        origin = f"files {', '.join(path.name for path in paths.values())}"
    else:
        for part, split in settings.splits().items():
            given[part] = _read_split(settings, split, classes)
            origins[part] = f"split {split}"
        origin = settings.origin
    tests: dict[str, Iterable[Row]] = {}
    for name, test in settings.tests.items():
        if isinstance(test, LabelledFileTest):
            columns = Columns(test.text_field, test.pair_field, test.label_field)
            tests[name] = read_tsv(test.file, columns, skipped, settings.max_bytes)
            with in_test_set(name):
                origins[f"test {name}"] = file_in_words(test.file)
        else:
            tests[name] = _read_split(test, test.split, classes)
            origins[f"test {name}"] = test.origin
    return make_corpus(
        given,
        origin,
        skipped,
        fractions=settings.fractions(),
        problem=problem,
        classes=classes,
        train_fraction=settings.train_fraction,
        tests=tests,
        origins=origins,
    )


def digest_examples(examples: Iterable[Example]) -> str:
    """Returns a hash of the examples of one part."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(tuple(example)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _read_split(
    settings: LabelledHub | LabelledHubTest, split: str, classes: Sequence[str] | None
) -> Iterator[Row]:
    return read_hub(
        settings.name,
        split,
        Columns(settings.text_field, settings.pair_field, settings.label_field),
        config=settings.config,
        revision=settings.revision,
        classes=classes,
    )


def known_classes(settings: ExampleLimits) -> tuple[Problem, list[str] | None]:
    """Returns the problem, and the classes if the settings alone tell them.

    >>> known_classes(Glue(task="QNLI"))
    ('classification', ['entailment', 'not_entailment'])
    """
    if isinstance(settings, Glue):
        return glue_classes(settings.task)
    if isinstance(settings, Docstrings):
        return "classification", settings.packages
    return getattr(settings, "problem", "classification"), getattr(settings, "classes", None)


# --- rows as examples -------------------------------------------------------------------------


def make_corpus(
    given: Mapping[str, Iterable[Row]],
    origin: str,
    skipped: Counter[str],
    *,
    fractions: tuple[float, float] = (0.0, 0.0),
    problem: Problem = "classification",
    classes: Sequence[str] | None = None,
    train_fraction: float = 1.0,
    tests: Mapping[str, Iterable[Row]] | None = None,
    origins: Mapping[str, str] | None = None,
    label_hint: str = "If labels are numbers, set data.problem to regression; otherwise check "
    "whether the column of the label is the right one.",
) -> LabelledCorpus:
    """Makes examples of rows, and divides off the parts that are not given.

    Args:
        given: rows of `train` and, if they are given, of `validation` and `test`; several test
            sets are named `test NAME`.
        origin: where the rows come from, in words.
        skipped: reasons for skipping rows, and how many rows were skipped for each; rows with an
            empty text or without a label are added.
        fractions: shares of the training examples that become the validation and the test part if
            these are not given.
        problem: what labels are.
        classes: names of the classes; None takes the labels of the training rows, sorted.
        train_fraction: share of the training examples that is used.
        tests: rows of each further test set by its name.
        origins: which file or split a part is, in words; a further test set is named `test NAME`.
        label_hint: end of messages on labels that cannot be classes: how to mend it.

    Raises:
        CorpusError: an unknown label, a single class, or an empty part.
    """
    known = None if classes is None else set(classes)
    names_of_tests = [name for name in given if name.startswith("test")] or ["test"]
    examples: dict[str, list[Example]] = {
        name: [] for name in ("train", "validation", *names_of_tests)
    }
    # Training rows come first: their labels are the classes if these are not named.
    for part in sorted(given, key=lambda part: part != "train"):
        examples[part] = _examples(given[part], problem, known, skipped)
        if part == "train" and known is None and problem == "classification":
            known = {str(example.label) for example in examples["train"]}
            classes = sorted(known, key=_by_number)
            _check_classes(classes, len(examples["train"]), origin, label_hint)
    _divide_off(
        examples,
        0.0 if "validation" in given else fractions[0],
        0.0 if any(part in given for part in names_of_tests) else fractions[1],
    )
    _check_not_empty(examples, origin, skipped, any(fractions))
    examples["train"], sampled = sample(examples["train"], repr, train_fraction, "examples")
    further = {}
    for name, rows in (tests or {}).items():
        with in_test_set(name):
            further[name] = _examples(rows, problem, known, skipped)
            if not further[name]:
                raise CorpusError(
                    f"there are no examples ({origins and origins.get(f'test {name}')}; skipped in "
                    f"all parts: {_reasons(skipped) or 'none'}), expected at least one; check "
                    f"text_field, pair_field and label_field"
                )
    all_parts = {**examples, **{f"test {name}": found for name, found in further.items()}}
    notes = {"corpus": origin} | _notes(all_parts, skipped, origins or {}) | sampled
    if problem == "classification" and classes is not None:
        notes["classes"] = _named(classes)
    return LabelledCorpus(
        examples.pop("train"),
        examples.pop("validation"),
        {name.removeprefix("test").strip(): part for name, part in examples.items()},
        list(classes) if problem == "classification" and classes is not None else None,
        notes,
        further,
    )


def _examples(
    rows: Iterable[Row], problem: Problem, known: set[str] | None, skipped: Counter[str]
) -> list[Example]:
    """Returns the examples in rows; counts rows that are none in `skipped`."""
    examples = []
    for row in rows:
        text, pair = _one_line(row.text), row.pair and _one_line(row.pair)
        if not text or pair == "":
            skipped["an empty text"] += 1
        elif not row.label:
            skipped["no label"] += 1
        else:
            examples.append(Example(text, pair, _label(row, problem, known)))
    return examples


def _divide_off(
    examples: dict[str, list[Example]], validation_fraction: float, test_fraction: float
) -> None:
    """Moves shares of the training examples to the validation and the test part, in place."""
    if not (validation_fraction or test_fraction):
        return
    given, examples["train"] = examples["train"], []
    parts = divide({example.text for example in given}, validation_fraction, test_fraction)
    for example in given:
        examples[parts[example.text]].append(example)


def _one_line(text: str) -> str:
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
        return float(label), label
    except ValueError:
        return math.inf, label


def _named(classes: Sequence[str]) -> str:
    """Returns the names of up to a dozen classes as one text.

    >>> _named(["I", "O"])
    'I, O'
    """
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


def _check_not_empty(
    examples: Mapping[str, Sequence[Example]],
    origin: str,
    skipped: Counter[str],
    may_divide: bool,
) -> None:
    for part, of_part in examples.items():
        if not of_part:
            counts = ", ".join(f"{name} {len(rows):,}" for name, rows in examples.items())
            left_out = _reasons(skipped)
            raise CorpusError(
                f"{origin}: there are no examples for the {part} part ({counts}"
                + (f"; skipped: {left_out}" if left_out else "")
                + "). "
                + (
                    "Give more examples, a larger validation_fraction or test_fraction, or data of "
                    "their own for the part."
                    if may_divide
                    else "Every part needs examples of its own."
                )
            )


def _notes(
    examples: Mapping[str, Sequence[Example]], skipped: Counter[str], origins: Mapping[str, str]
) -> dict[str, str]:
    """Returns what the notes say of each part: its size, where it comes from, and a hash."""
    notes = {}
    trained = {(example.text, example.pair) for example in examples["train"]}
    for name, of_part in examples.items():
        size = f"{len(of_part):,} examples"
        leaked = sum((example.text, example.pair) in trained for example in of_part)
        if name != "train" and leaked:
            size += f", of which {leaked:,} are also in the training part"
        digest = digest_examples(of_part)
        notes[name] = part_in_words(size, origins.get(name, ""), "examples", digest)
    reasons = _reasons(skipped)
    if reasons:
        notes["skipped"] = reasons
    return notes


def _reasons(skipped: Counter[str]) -> str:
    return ", ".join(f"{count:,} with {reason}" for reason, count in skipped.items() if count)
