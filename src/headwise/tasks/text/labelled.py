"""Labelled texts: what is checked of them, and a division into parts that leaks nothing.

An example is a text, or a pair of texts, with a label: the name of a class, or a number. Parts that
are given are taken as they are; parts that are not are divided off the training examples by a hash
of their first text, so that a text that occurs twice (as every premise of MNLI does) never lands
in two parts.

Rows that cannot be examples (with an empty text, with too few or too many fields, without a label)
are skipped and counted. What would be read wrongly is an error that names the file and the line.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, NamedTuple

from headwise.tasks.parts import part_of
from headwise.tasks.sources import CorpusError

Problem = Literal["classification", "regression"]
# Packages that headwise or what it needs installs, written in Python and well documented.
PACKAGES = ("huggingface_hub", "matplotlib", "networkx", "numpy", "pandas")

# --- examples ---------------------------------------------------------------------------------


class Example(NamedTuple):
    """A text, or two, and what is to be said of it."""

    text: str
    pair: str | None
    label: str | float  # the name of a class, or a number


class Row(NamedTuple):
    """An example as it was read, with words for messages on where it stands."""

    where: str
    text: str
    pair: str | None
    label: str


@dataclass(frozen=True)
class Labelled:
    """Examples in parts, none of them empty.

    Attributes:
        train, validation: examples.
        test: examples of each test set by its name; a single one has the name "".
        classes: names of the classes in the order of the model's outputs; None for a regression.
        notes: facts for the screen and the report: label to words.
    """

    train: list[Example]
    validation: list[Example]
    test: dict[str, list[Example]]
    classes: list[str] | None
    notes: dict[str, str]

    def digest(self) -> str:
        """A hash of all examples, their division and the order of the classes."""
        digest = hashlib.sha256(repr(self.classes).encode())
        tests = [(f"test {name}", examples) for name, examples in self.test.items()]
        for part, examples in [("train", self.train), ("validation", self.validation), *tests]:
            for example in examples:
                digest.update(repr((part, *example)).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def divide(
    given: Mapping[str, Iterable[Row]],
    origin: str,
    skipped: Counter[str],
    *,
    fractions: tuple[float, float] = (0.0, 0.0),
    problem: Problem = "classification",
    classes: Sequence[str] | None = None,
    label_hint: str = "If they are numbers, set data.problem to regression; else look whether the "
    "label's column is the right one.",
) -> Labelled:
    """Rows as examples in three parts.

    Args:
        given: rows of `train` and, where they are given, `validation` and `test`, or several test
            sets as `test NAME`.
        origin: in words, where the rows come from.
        skipped: reasons why rows were skipped, and how many; those with an empty text are added.
        fractions: shares of the training rows that become the validation and the test part, where
            these are not given.
        problem: what labels are.
        classes: names of the classes; those of the training rows, sorted, if None.
        label_hint: ends messages on labels that cannot be classes: how to mend it.

    Raises:
        CorpusError: an unknown label, one class alone, an empty part.
    """
    known = None if classes is None else set(classes)
    tests = [name for name in given if name.startswith("test")]
    validation_fraction = 0.0 if "validation" in given else fractions[0]
    test_fraction = 0.0 if tests else fractions[1]
    examples: dict[str, list[Example]] = {part: [] for part in ("train", "validation")}
    examples |= {name: [] for name in tests or ["test"]}
    # Training rows first: their labels are the classes, where these are not named.
    for name in sorted(given, key=lambda name: name != "train"):
        for row in given[name]:
            text, pair = _one_line(row.text), row.pair and _one_line(row.pair)
            if not text or pair == "":
                skipped["an empty text"] += 1
                continue
            if not row.label:
                skipped["no label"] += 1
                continue
            part = name
            if name == "train":
                part = part_of(text, validation_fraction, test_fraction)
            examples[part].append(Example(text, pair, _label(row, problem, known)))
        if name == "train" and known is None and problem == "classification":
            labels = {str(example.label) for part in examples.values() for example in part}
            classes = sorted(labels, key=_by_number)
            known = labels
            _check_classes(classes, sum(map(len, examples.values())), origin, label_hint)
    _check_not_empty(examples, origin, skipped, any(fractions))
    notes = {"corpus": origin} | _counts(examples, skipped)
    if problem == "classification" and classes is not None:
        notes["classes"] = _named(classes)
    return Labelled(
        examples.pop("train"),
        examples.pop("validation"),
        {name.removeprefix("test").strip(): part for name, part in examples.items()},
        list(classes) if problem == "classification" and classes is not None else None,
        notes,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _label(row: Row, problem: Problem, known: set[str] | None) -> str | float:
    """The label of a row, checked."""
    if problem == "regression":
        try:
            number = float(row.label)
        except ValueError:
            number = math.nan
        # -100 is what models take for "nothing to predict here".
        if not math.isfinite(number) or number == -100:
            raise CorpusError(
                f"{row.where}: the label is {row.label!r}, expected a number (other than -100). "
                "Correct it, or set data.problem to classification."
            )
        return number
    if known is not None and row.label not in known:
        near = get_close_matches(row.label, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise CorpusError(
            f"{row.where}: the label {row.label!r} is unknown{hint}; the classes are "
            f"{_named(sorted(known, key=_by_number))}. Correct it, or name all classes in "
            "data.classes."
        )
    return row.label


def _by_number(label: str) -> tuple[float, str]:
    """Sorts "9" before "10", and numbers before words."""
    try:
        return float(label), label
    except ValueError:
        return math.inf, label


def _named(classes: Sequence[str]) -> str:
    """Up to a dozen classes by name.

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
            f"{classes[1]}, ...): too many to learn classes from. {hint}"
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
                f"{origin}: no examples for the {part} part ({counts}"
                + (f"; skipped: {left_out}" if left_out else "")
                + "). "
                + (
                    "Give more examples, a larger validation_fraction or test_fraction, or data of "
                    "its own for the part."
                    if may_divide
                    else "Every part needs examples of its own."
                )
            )


def _counts(examples: Mapping[str, Sequence[Example]], skipped: Counter[str]) -> dict[str, str]:
    """How many examples each part has, which were skipped, and which are known from training."""
    notes = {}
    trained = {(example.text, example.pair) for example in examples["train"]}
    for name, of_part in examples.items():
        words = f"{len(of_part):,} examples"
        leaked = sum((example.text, example.pair) in trained for example in of_part)
        if name != "train" and leaked:
            words += f", of which {leaked:,} also stand in the training part"
        notes[name] = words
    reasons = _reasons(skipped)
    if reasons:
        notes["skipped"] = reasons
    return notes


def _reasons(skipped: Counter[str]) -> str:
    return ", ".join(f"{count:,} with {reason}" for reason, count in skipped.items() if count)
