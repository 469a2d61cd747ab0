"""Parallel corpora: pairs that are cleaned, counted and divided into parts.

A corpus has a training, a validation and a test part. A part that is given as data of its own is
taken as it is: only pairs with an empty side are skipped, so that a score on a published test set
means what it means elsewhere. A part that is not given is divided off the training pairs by a hash
of the source string. A source that occurs twice is therefore never in two parts.

Two rules turn a hash into a part:

- Files and datasets are divided by the rule of all tasks, `splits.divide`: a part has its share of
  the different source strings, to the nearest whole number.
- The built-in interface strings are divided by `part_of`: a hash of the string alone decides. A
  string stays in its part in every release of the language pack and for every language, so that
  published figures stay comparable. Its parts have their shares only approximately.
"""

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headwise.tasks.further_tests import in_test_set
from headwise.tasks.sources import CorpusError, file_in_words, part_in_words
from headwise.tasks.splits import PARTS, Part, divide, given_parts, sample
from headwise.tasks.text.parallel.reading import (
    RawPair,
    read_hub_pairs,
    read_interface_strings,
    read_text_pairs,
)
from headwise.tasks.text.parallel.settings import (
    FilePair,
    FilePairTest,
    HubPairTest,
    InterfaceStrings,
    PairSettings,
    ParallelFiles,
    ParallelSettings,
)


class Pair(NamedTuple):
    """A sentence and its translation, each one line of text."""

    source: str
    target: str


@dataclass
class PartCounts:
    """Counts of the pairs of one part: `read = kept + empty + filtered + dropped_leaks`.

    A sample of the training part keeps fewer.

    Attributes:
        read: pairs that were read.
        kept: pairs in the corpus.
        empty: pairs that were skipped because a side is empty.
        filtered: pairs that were left out by `max_length` or `max_ratio`.
        dropped_leaks: pairs that were left out by `drop_leaks`.
        duplicates: kept pairs that repeat an earlier pair of the same part word for word.
        leaked: kept pairs whose source also occurs in the training part (for the test part: in the
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
class ParallelCorpus:
    """Sentence pairs in three parts, none of which is empty.

    Attributes:
        train, validation, test: the pairs of each part.
        counts: how many pairs of each part were read, kept and left out.
        notes: facts about the data for the screen and the report: label to text.
        target_language: code of the target language; None if it is not known.
        tests: the pairs of each further test set by its name.
    """

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]
    counts: dict[Part, PartCounts] = field(repr=False)
    notes: dict[str, str] = field(repr=False)
    target_language: str | None = None
    tests: dict[str, list[Pair]] = field(default_factory=dict)

    def digest(self) -> str:
        """Returns a hash of all pairs and of their division, without further test sets."""
        digest = hashlib.sha256()
        for part in PARTS:
            for pair in getattr(self, part):
                digest.update("\0".join((part, *pair, "")).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def load_parallel_corpus(settings: ParallelSettings) -> ParallelCorpus:
    """Reads a parallel corpus, skips empty pairs, and divides off the parts that are not given.

    Args:
        settings: an `InterfaceStrings`, `ParallelFiles` or `ParallelHub`.

    Raises:
        CorpusError: data that cannot be read, or too little data to fill the three parts. The
            message names the file, line or field and says how to mend it.

    Example:
        >>> from headwise.tasks.text.parallel.settings import InterfaceStrings
        >>> corpus = load_parallel_corpus(InterfaceStrings(language="de"))
        >>> len(corpus.train) > len(corpus.validation) > 50
        True
    """
    rows: dict[Part, Iterable[RawPair]] = {}
    origins: dict[str, str] = {}
    if isinstance(settings, InterfaceStrings):
        rows["train"], origin = read_interface_strings(settings.language)
        target_language: str | None = settings.language
    elif isinstance(settings, ParallelFiles):
        for part, files in given_parts(settings).items():
            rows[part], origins[part] = _read_files(files, settings.max_bytes)
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
            origins[part] = f"split {split}"
        origin = settings.origin
        target_language = settings.target_language

    pairs, counts = _clean(rows, settings)
    _divide_off(pairs, counts, settings.fractions(rows), settings)
    if settings.drop_leaks:
        _drop_leaks(pairs, counts)
    pairs["train"], sampled = sample(
        pairs["train"], lambda pair: "\0".join(pair), settings.train_fraction, "pairs"
    )
    _count(pairs, counts)
    _check_not_empty(counts)
    notes: dict[str, str] = {
        part: _note(counts[part], pairs[part], origins.get(part, "")) for part in PARTS
    }
    known = {pair.source for part in ("train", "validation") for pair in pairs[part]}
    tests = {}
    for name, test in settings.tests.items():
        with in_test_set(name):
            tests[name], notes[f"test {name}"] = _load_test(test, known, settings.max_bytes)
    return ParallelCorpus(
        train=pairs["train"],
        validation=pairs["validation"],
        test=pairs["test"],
        counts=counts,
        notes={"corpus": origin} | notes | sampled,
        target_language=target_language,
        tests=tests,
    )


def digest_pairs(pairs: Iterable[Pair]) -> str:
    """Returns a hash of the pairs of one part."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update("\0".join((*pair, "")).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _read_files(files: FilePair, max_bytes: int | None) -> tuple[list[RawPair], str]:
    """Returns the pairs of two files, and the files in words."""
    names = ", ".join(file_in_words(path) for path in (files.source, files.target))
    return read_text_pairs(files.source, files.target, max_bytes), names


def _load_test(
    test: FilePairTest | HubPairTest, known: set[str], max_bytes: int | None
) -> tuple[list[Pair], str]:
    """Returns the pairs of a further test set, and words on them.

    Args:
        test: which files, or which split of a dataset.
        known: the sources of the training and the validation part.
        max_bytes: the most bytes of a file.
    """
    rows: Iterable[RawPair]
    if isinstance(test, FilePairTest):
        rows, origin = _read_files(test, max_bytes)
    else:
        rows = read_hub_pairs(
            test.name, test.split, test.source_field, test.target_field, test.config, test.revision
        )
        origin = test.origin
    pairs, counts = _clean({"test": rows}, PairSettings())
    _count(pairs, counts, known)
    if not pairs["test"]:
        raise CorpusError(
            f"there are no pairs ({counts['test'].read:,} read, all with an empty side), expected "
            f"at least one; {origin}"
        )
    return pairs["test"], _note(counts["test"], pairs["test"], origin)


def part_of(source: str, validation_fraction: float, test_fraction: float) -> Part:
    """Returns the part of an interface string, which its SHA-256 alone decides.

    The first 8 bytes of the digest are read as a number in [0, 1). Numbers below `test_fraction`
    are the test part, the next `validation_fraction` of them the validation part, and the rest is
    trained on. So a string stays in its part whatever other strings a release has.

    >>> [part_of(text, 0.1, 0.1) for text in ("Save", "Open File", "Undo")]
    ['test', 'validation', 'train']
    """
    digest = hashlib.sha256(source.encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < test_fraction:
        return "test"
    if position < test_fraction + validation_fraction:
        return "validation"
    return "train"


def _clean(
    rows: Mapping[Part, Iterable[RawPair]], settings: PairSettings
) -> tuple[dict[Part, list[Pair]], dict[Part, PartCounts]]:
    """Returns the pairs of the given parts that are kept, and the counts of each part."""
    pairs: dict[Part, list[Pair]] = {part: [] for part in PARTS}
    counts = {part: PartCounts() for part in PARTS}
    for part, part_rows in rows.items():
        for source, target in part_rows:
            pair = Pair(_one_line(source), _one_line(target))
            counts[part].read += 1
            if not (pair.source and pair.target):
                counts[part].empty += 1
            elif part == "train" and _is_filtered(pair, settings):
                counts[part].filtered += 1
            else:
                pairs[part].append(pair)
    return pairs, counts


def _divide_off(
    pairs: dict[Part, list[Pair]],
    counts: Mapping[Part, PartCounts],
    fractions: tuple[float, float],
    settings: PairSettings,
) -> None:
    """Moves training pairs to the parts that are not given.

    Args:
        pairs, counts: changed in place; a pair that moves counts as read in its new part.
        fractions: shares of the validation and of the test part; 0 for a part that is given.
        settings: settings of the corpus.
    """
    if not any(fractions):
        return
    given, pairs["train"] = pairs["train"], []
    sources = {pair.source for pair in given}
    if isinstance(settings, InterfaceStrings):
        parts = {source: part_of(source, *fractions) for source in sources}
    else:
        parts = divide(sources, *fractions)
    for pair in given:
        part = parts[pair.source]
        pairs[part].append(pair)
        if part != "train":
            counts["train"].read -= 1
            counts[part].read += 1


def _one_line(text: str) -> str:
    """Returns text without outer white space; line breaks inside it become spaces.

    Everything after the corpus (hypothesis files, sacrebleu, `headwise translate`) takes a line
    for a sentence.
    """
    return " ".join(filter(None, (line.strip() for line in text.splitlines())))


def _is_filtered(pair: Pair, settings: PairSettings) -> bool:
    if settings.max_length is None and settings.max_ratio is None:
        return False
    shorter, longer = sorted(len(side.split()) for side in pair)
    if settings.max_length is not None and longer > settings.max_length:
        return True
    return settings.max_ratio is not None and longer > settings.max_ratio * shorter


def _drop_leaks(pairs: dict[Part, list[Pair]], counts: dict[Part, PartCounts]) -> None:
    """Leaves out training pairs whose source occurs in another part."""
    held_out = {pair.source for part in ("validation", "test") for pair in pairs[part]}
    kept = [pair for pair in pairs["train"] if pair.source not in held_out]
    counts["train"].dropped_leaks = len(pairs["train"]) - len(kept)
    pairs["train"] = kept


def _count(
    pairs: Mapping[Part, list[Pair]],
    counts: Mapping[Part, PartCounts],
    known: Container[str] = (),
) -> None:
    """Counts the pairs that are kept, repeated, and known from an earlier part.

    Args:
        pairs: the pairs of each part.
        counts: changed in place.
        known: further sources that count as those of an earlier part.
    """
    earlier: set[str] = set()
    for part in PARTS:
        counts[part].kept = len(pairs[part])
        counts[part].duplicates = len(pairs[part]) - len(set(pairs[part]))
        counts[part].leaked = sum(
            pair.source in earlier or pair.source in known for pair in pairs[part]
        )
        earlier.update(pair.source for pair in pairs[part])


def _note(counts: PartCounts, pairs: Sequence[Pair], origin: str) -> str:
    """Returns what the notes say of a part: its counts, where it comes from, and a hash."""
    return part_in_words(_in_words(counts), origin, "pairs", digest_pairs(pairs))


def _in_words(counts: PartCounts) -> str:
    """Returns the counts of a part in words.

    >>> _in_words(PartCounts(read=9, kept=8, empty=1))
    '8 pairs (1 with an empty side skipped)'
    """
    remarks = [
        f"{number:,} {words}"
        for number, words in (
            (counts.empty, "with an empty side skipped"),
            (counts.filtered, "too long or too unequal left out"),
            (counts.dropped_leaks, "of the held-out parts left out"),
            (counts.duplicates, "repeated"),
            (counts.leaked, "whose source is also in an earlier part"),
        )
        if number
    ]
    return f"{counts.kept:,} pairs" + (f" ({', '.join(remarks)})" if remarks else "")


def _check_not_empty(counts: Mapping[Part, PartCounts]) -> None:
    for part in PARTS:
        if counts[part].kept == 0:
            numbers = ", ".join(
                f"{name} {counts[name].kept:,} of {counts[name].read:,} read" for name in PARTS
            )
            raise CorpusError(
                f"corpus: there are no pairs for the {part} part ({numbers}). Give more pairs, a "
                "larger validation_fraction or test_fraction, files of their own for the part, or "
                "larger max_length and max_ratio."
            )
