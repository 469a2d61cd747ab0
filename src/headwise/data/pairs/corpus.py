"""Parallel corpora: pairs that are cleaned, counted and divided into parts.

A corpus has a training, a validation and a test part. A part that is given as data of its own is
taken as it is: only pairs with an empty side are skipped, so that a score on a published test set
means what it means elsewhere. A part that is not given is divided off the training pairs by a hash
of the source string. A source that occurs twice is therefore never in two parts.

Two rules turn a hash into a part (`data.division`). Files and datasets have their shares of the
different source strings to the nearest whole number. Of the built-in interface strings the hash
alone decides, so that a string stays in its part in every release of the language pack and for
every language, and published figures stay comparable.

The pairs stand on the disk, in the cache, where every run finds them (`data.store`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from headwise.data.corpora import Corpus, Source, read_sources
from headwise.data.division import PARTS, fixed_parts_of, parts_of, sample_in_words
from headwise.data.pairs.reading import (
    RawPair,
    language_pack,
    read_interface_strings,
    read_text_pairs,
)
from headwise.data.pairs.settings import (
    FilePair,
    InterfaceStrings,
    PairSettings,
    ParallelSettings,
)
from headwise.data.parts import Facts, Kind, PartFacts, write_facts, write_parts
from headwise.data.sources import CorpusError, part_in_words, text_fields
from headwise.data.streams import Reader, origin_of, text_corpus_fields


class Pair(NamedTuple):
    """A sentence and its translation, each one line of text."""

    source: str
    target: str


def _encoded(pair: Pair, part: str | None) -> bytes:
    return "\0".join((*([part] if part else []), *pair, "")).encode()


_KEY = attrgetter("source")
PAIRS = Kind(Pair, (str, str), key=_KEY, identity=_KEY, content="\0".join, encoded=_encoded)


@dataclass(frozen=True)
class ParallelCorpus(Corpus[Sequence[Pair]]):
    """Sentence pairs in three parts; `target_language` is None if its code is not known."""

    target_language: str | None = None


def load_parallel_corpus(settings: ParallelSettings) -> ParallelCorpus:
    """Reads a parallel corpus, skips empty pairs, and divides off the parts that are not given.

    Raises:
        CorpusError: data that cannot be read, or too little data to fill the three parts. The
            message names the file, line or field and says how to mend it.

    Example:
        >>> from headwise.data.pairs.settings import InterfaceStrings
        >>> corpus = load_parallel_corpus(InterfaceStrings(language="de"))
        >>> len(corpus.train) > len(corpus.validation) > 50
        True
    """
    built_in = {}
    if isinstance(settings, InterfaceStrings):
        language: str | None = settings.language
        read = partial(read_interface_strings, settings.language)
        built_in["train"] = Source(language_pack(settings.language), read)
    else:
        language = settings.target_language
    fields = text_corpus_fields("pairs", settings, built_in, _READER, _make, _make_test, PAIRS.open)
    return ParallelCorpus(**fields, target_language=language)


# --- sources ----------------------------------------------------------------------------------


def _files(given: FilePair) -> list[list[Path]]:
    return [[given.source, given.target]]


def _of_files(settings: Any, files: Sequence[Path], max_bytes: int | None) -> Iterator[RawPair]:
    return read_text_pairs(files[0], files[1], max_bytes)


def _of_split(settings: Any, rows: Any, where: str) -> Iterator[Sequence[str]]:
    mending = "Set source_field and target_field to two of these."
    return text_fields(rows, (settings.source_field, settings.target_field), where, mending)


def _of_stream(settings: PairSettings, rows: Iterable[Sequence[str]]) -> Iterator[Pair]:
    return _cleaned("train", rows, settings, Counter())


_READER = Reader(_files, _of_files, _of_split, _of_stream, filters=("max_length", "max_ratio"))


# --- pairs in parts ---------------------------------------------------------------------------


def _make(settings: ParallelSettings, sources: Mapping[str, Source], folder: Path) -> None:
    read, words = read_sources(sources, origin_of(settings, _READER))
    left_out: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
    rows = {part: _cleaned(part, read[part], settings, left_out[part]) for part in read}
    shares = settings.fractions(read)
    rule = fixed_parts_of if isinstance(settings, InterfaceStrings) else parts_of
    facts = write_parts(
        folder,
        PAIRS,
        rows,
        PARTS if "train" in read else PARTS[1:],  # it is not read where it is a stream
        divide=(lambda keys: rule(keys, *shares)) if any(shares) else None,
        drop_leaks=settings.drop_leaks,
        train_fraction=settings.train_fraction,
    )
    left_out["train"][_DROPPED] = facts.dropped
    _check_not_empty(facts, left_out)
    facts.notes = {"corpus": words["corpus"]}
    for part, of_part in facts.parts.items():
        facts.notes[part] = _note(of_part, left_out[part], words.get(part, ""))
    if settings.train_fraction < 1.0:
        kept = facts.parts["train"].number
        facts.notes |= sample_in_words(kept, facts.sampled_from, "pairs")
    write_facts(folder, facts)


def _make_test(corpus: Path, source: Source, folder: Path) -> None:
    """Writes the pairs of a further test set; `corpus` is the folder of the parts."""
    rows, origin = source.read()
    left_out: Counter[str] = Counter()
    cleaned = _cleaned("test", rows, PairSettings(), left_out)
    facts = write_parts(folder, PAIRS, {"test": cleaned}, corpus=corpus)
    of_test = facts.parts["test"]
    if not of_test.number:
        raise CorpusError(
            f"there are no pairs ({left_out.total():,} read, all with an empty side), expected "
            f"at least one; {origin}"
        )
    facts.notes = {"test": _note(of_test, left_out, origin)}
    write_facts(folder, facts)


# Why pairs are left out.
_EMPTY = "with an empty side skipped"
_FILTERED = "too long or too unequal left out"
_DROPPED = "of the held-out parts left out"


def _cleaned(
    part: str, rows: Iterable[Sequence[str]], settings: PairSettings, left_out: Counter[str]
) -> Iterator[Pair]:
    """Yields the pairs of a part that are kept; counts the others."""
    for source, target in rows:
        pair = Pair(_one_line(source), _one_line(target))
        if not (pair.source and pair.target):
            left_out[_EMPTY] += 1
        elif part == "train" and _is_filtered(pair, settings):
            left_out[_FILTERED] += 1
        else:
            yield pair


def _one_line(text: str) -> str:
    """Returns text without outer white space; line breaks inside it become spaces.

    Everything after the corpus (hypothesis files, sacrebleu, `headwise predict`) takes a line
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


def _note(facts: PartFacts, left_out: Counter[str], origin: str) -> str:
    counts = {
        **{reason: left_out[reason] for reason in (_EMPTY, _FILTERED, _DROPPED)},
        "repeated": facts.repeated,
        "whose source is also in an earlier part": facts.earlier,
    }
    remarks = [f"{number:,} {words}" for words, number in counts.items() if number]
    size = f"{facts.number:,} pairs" + (f" ({', '.join(remarks)})" if remarks else "")
    return part_in_words(size, origin, "pairs", facts.digest)


def _check_not_empty(facts: Facts, left_out: Mapping[str, Counter[str]]) -> None:
    kept = {part: of_part.number for part, of_part in facts.parts.items()}
    if "train" in kept:
        kept["train"] = facts.sampled_from
    empty = next((part for part in kept if not kept[part]), None)
    if empty is not None:
        numbers = ", ".join(
            f"{name} {kept[name]:,} of {kept[name] + left_out[name].total():,} read"
            for name in kept
        )
        raise CorpusError(
            f"corpus: there are no pairs for the {empty} part ({numbers}). "
            + (
                "data.drop_leaks leaves out those of the held-out parts: give other pairs to train "
                "on, or set data.drop_leaks=false."
                if left_out[empty][_DROPPED]
                else "Give more pairs, a larger validation_fraction or test_fraction, files of "
                "their own for the part, or larger max_length and max_ratio."
            )
        )
