"""Parallel corpora: settings, cleaning, and a division into parts that leaks nothing.

A corpus has a training, a validation and a test part. Parts that are given as such are taken as
they are: only pairs with an empty side are skipped, so that a score on a published test set means
what it means elsewhere. Parts that are not given are divided off the training data by a hash of
the source string: the same string falls into the same part on every machine, in every run, and
however much data is added later, and a string that occurs twice never lands in two parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from headwise.tasks.parts import PARTS, DividedSettings, HubSettings, Part, given_parts, part_of
from headwise.tasks.sources import (
    CorpusError,
    Row,
    read_hub_pairs,
    read_interface_strings,
    read_text_pairs,
)


class Pair(NamedTuple):
    """A sentence and its translation, each one line of text."""

    source: str
    target: str


# --- settings ---------------------------------------------------------------------------------


class _Corpus(DividedSettings):
    """What all corpora have in common."""

    max_length: int | None = Field(
        None,
        ge=1,
        description="leave out training pairs with more words than this on either side (IWSLT14: "
        "175); given validation and test parts are never filtered",
    )
    max_ratio: float | None = Field(
        None,
        ge=1,
        description="leave out training pairs with one side this many times as long as the other, "
        "in words (IWSLT14: 1.5)",
    )
    drop_leaks: bool = Field(
        False,
        description="leave out training pairs whose source also stands in the validation or test "
        "part; otherwise they are counted and kept, as in published work",
    )


class InterfaceStringsCorpus(_Corpus):
    """English interface strings of JupyterLab and their translations: small, real, offline.

    Needs the language pack: ``pip install "headwise[demo]"``.
    """

    corpus: Literal["interface-strings"] = Field(
        "interface-strings", description="the built-in corpus"
    )
    language: Literal["fr", "de", "zh-CN"] = Field(
        "fr", description="the language to translate English into"
    )


class TextFiles(BaseModel):
    """Two text files of which line n of one translates line n of the other."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Path = Field(description="one sentence a line, UTF-8; gzip if the name ends in .gz")
    target: Path = Field(description="the translations, with as many lines")


class FilesCorpus(_Corpus):
    """Plain text files, one sentence a line, optionally gzip."""

    corpus: Literal["files"] = Field("files", description="plain text files")
    train: TextFiles = Field(description="the training pairs")
    validation: TextFiles | None = Field(
        None, description="the validation pairs; without them, a share of the training pairs"
    )
    test: TextFiles | None = Field(
        None, description="the test pairs; without them, a share of the training pairs"
    )
    target_language: str | None = Field(
        None,
        description="code of the target language; BLEU needs it where words are not separated by "
        "spaces (zh, ja)",
    )


class HubCorpus(_Corpus, HubSettings):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    corpus: Literal["hub"] = Field("hub", description="a Hugging Face dataset")
    source_field: str = Field(
        description="column of the source text; translation.de means the record's field"
    )
    target_field: str = Field(description="column of the target text, likewise")
    target_language: str | None = Field(
        None,
        description="code of the target language; BLEU needs it where words are not separated by "
        "spaces (zh, ja)",
    )


CorpusSettings = Annotated[
    InterfaceStringsCorpus | FilesCorpus | HubCorpus, Field(discriminator="corpus")
]


# --- the corpus -------------------------------------------------------------------------------


@dataclass
class PartCounts:
    """What became of the pairs of one part: ``read = kept + empty + filtered + dropped_leaks``.

    Attributes:
        read: pairs read.
        kept: pairs in the corpus.
        empty: skipped because a side is empty.
        filtered: left out by ``max_length`` or ``max_ratio``.
        dropped_leaks: left out by ``drop_leaks``.
        duplicates: kept pairs that repeat an earlier one of this part, word for word.
        leaked: kept pairs whose source also stands in the training part (of a test part: in the
            training or the validation part).
    """

    read: int = 0
    kept: int = 0
    empty: int = 0
    filtered: int = 0
    dropped_leaks: int = 0
    duplicates: int = 0
    leaked: int = 0


@dataclass(frozen=True)
class CorpusNotes:
    """Where a corpus comes from and what was done to it."""

    origin: str
    counts: Mapping[Part, PartCounts]

    def summary(self) -> list[str]:
        """The notes in words, a line for the origin and one for each part.

        >>> notes = CorpusNotes("captions", {"train": PartCounts(read=9, kept=8, empty=1)})
        >>> print(*notes.summary(), sep="\\n")
        captions
        train: 8 pairs (1 with an empty side skipped)
        """
        lines = [self.origin]
        for part, counts in self.counts.items():
            remarks = [
                f"{number:,} {words}"
                for number, words in (
                    (counts.empty, "with an empty side skipped"),
                    (counts.filtered, "too long or too unequal left out"),
                    (counts.dropped_leaks, "of the held-out parts left out"),
                    (counts.duplicates, "repeated"),
                    (counts.leaked, "whose source stands in an earlier part"),
                )
                if number
            ]
            lines.append(
                f"{part}: {counts.kept:,} pairs" + (f" ({', '.join(remarks)})" if remarks else "")
            )
        return lines


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs in three parts, none of them empty."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]
    notes: CorpusNotes = field(repr=False)
    target_language: str | None = None


def load_corpus(settings: CorpusSettings) -> Corpus:
    """Read a corpus, skip what is empty, and divide off the parts that are not given.

    Args:
        settings: one of :class:`InterfaceStringsCorpus`, :class:`FilesCorpus`,
            :class:`HubCorpus`.

    Raises:
        CorpusError: data that cannot be read, or too little to fill the three parts. The message
            names the file, line or field and says how to mend it.

    Example:
        >>> corpus = load_corpus(InterfaceStringsCorpus(language="de"))
        >>> len(corpus.train) > len(corpus.validation) > 50
        True
    """
    rows: dict[Part, Iterable[Row]] = {}
    if isinstance(settings, InterfaceStringsCorpus):
        rows["train"], origin = read_interface_strings(settings.language)
        target_language: str | None = settings.language
    elif isinstance(settings, FilesCorpus):
        for part, files in given_parts(settings).items():
            rows[part] = read_text_pairs(files.source, files.target)
        origin = f"text files {settings.train.source.name}, {settings.train.target.name}"
        target_language = settings.target_language
    else:
        for part, split in settings.splits().items():
            rows[part] = read_hub_pairs(
                settings.name,
                split,
                settings.source_field,
                settings.target_field,
                config=settings.config,
                revision=settings.revision,
            )
        origin = settings.origin
        target_language = settings.target_language

    pairs, counts = _divide_and_clean(rows, settings)
    if settings.drop_leaks:
        _drop_leaks(pairs, counts)
    _count(pairs, counts)
    _check_not_empty(counts)
    return Corpus(
        train=pairs["train"],
        validation=pairs["validation"],
        test=pairs["test"],
        notes=CorpusNotes(origin, counts),
        target_language=target_language,
    )


def _divide_and_clean(
    rows: Mapping[Part, Iterable[Row]], settings: _Corpus
) -> tuple[dict[Part, list[Pair]], dict[Part, PartCounts]]:
    """The given parts, cleaned, and the missing ones divided off the training data."""
    fractions = settings.fractions(rows)
    pairs: dict[Part, list[Pair]] = {part: [] for part in PARTS}
    counts = {part: PartCounts() for part in PARTS}
    for given, part_rows in rows.items():
        for source, target in part_rows:
            pair = Pair(_one_line(source), _one_line(target))
            part = given
            if given == "train":
                part = part_of(pair.source, *fractions)
            counts[part].read += 1
            if not (pair.source and pair.target):
                counts[part].empty += 1
            elif given == "train" and _is_filtered(pair, settings):
                counts[part].filtered += 1
            else:
                pairs[part].append(pair)
    return pairs, counts


def _one_line(text: str) -> str:
    """Text without outer white space; line breaks inside become spaces.

    Everything after the corpus (hypothesis files, sacrebleu, ``headwise translate``) takes a line
    for a sentence.
    """
    return " ".join(filter(None, (line.strip() for line in text.splitlines())))


def _is_filtered(pair: Pair, settings: _Corpus) -> bool:
    if settings.max_length is None and settings.max_ratio is None:
        return False
    shorter, longer = sorted(len(side.split()) for side in pair)
    if settings.max_length is not None and longer > settings.max_length:
        return True
    return settings.max_ratio is not None and longer > settings.max_ratio * shorter


def _drop_leaks(pairs: dict[Part, list[Pair]], counts: dict[Part, PartCounts]) -> None:
    """Leave out training pairs whose source stands in another part."""
    held_out = {pair.source for part in ("validation", "test") for pair in pairs[part]}
    kept = [pair for pair in pairs["train"] if pair.source not in held_out]
    counts["train"].dropped_leaks = len(pairs["train"]) - len(kept)
    pairs["train"] = kept


def _count(pairs: Mapping[Part, list[Pair]], counts: Mapping[Part, PartCounts]) -> None:
    """Count what is kept, repeated, and known from an earlier part."""
    earlier: set[str] = set()
    for part in PARTS:
        counts[part].kept = len(pairs[part])
        counts[part].duplicates = len(pairs[part]) - len(set(pairs[part]))
        counts[part].leaked = sum(pair.source in earlier for pair in pairs[part])
        earlier.update(pair.source for pair in pairs[part])


def _check_not_empty(counts: Mapping[Part, PartCounts]) -> None:
    for part in PARTS:
        if counts[part].kept == 0:
            numbers = ", ".join(
                f"{name} {counts[name].kept:,} of {counts[name].read:,} read" for name in PARTS
            )
            raise CorpusError(
                f"corpus: no pairs for the {part} part ({numbers}). Give more pairs, a larger "
                "validation_fraction or test_fraction, files of its own for the part, or wider "
                "max_length and max_ratio."
            )
