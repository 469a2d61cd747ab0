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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headwise.data.division import PARTS, fixed_parts_of, parts_of, sample_in_words
from headwise.data.pairs.reading import (
    RawPair,
    language_pack,
    read_hub_pairs,
    read_interface_strings,
    read_text_pairs,
)
from headwise.data.pairs.settings import (
    FilePair,
    FilePairTest,
    HubPairTest,
    InterfaceStrings,
    PairSettings,
    ParallelFiles,
    ParallelHub,
    ParallelSettings,
)
from headwise.data.parts import (
    Facts,
    Kind,
    PartFacts,
    count_known,
    open_parts,
    write_facts,
    write_parts,
)
from headwise.data.settings import given_parts, in_test_set
from headwise.data.sources import CorpusError, file_in_words, hub_identity, part_in_words
from headwise.data.store import file_identity, stored


class Pair(NamedTuple):
    """A sentence and its translation, each one line of text."""

    source: str
    target: str


def _source(pair: Pair) -> str:
    return pair.source


def _encoded(pair: Pair, part: str | None) -> bytes:
    return "\0".join((*([part] if part else []), *pair, "")).encode("utf-8", "surrogatepass")


PAIRS = Kind(Pair, (str, str), key=_source, identity=_source, content="\0".join, encoded=_encoded)


@dataclass(frozen=True)
class ParallelCorpus:
    """Sentence pairs in three parts, none of which is empty.

    Attributes:
        train, validation, test: the pairs of each part.
        notes: facts about the data for the screen and the report: label to text.
        digest: a hash of all pairs and of their division, without further test sets.
        target_language: code of the target language; None if it is not known.
        tests: the pairs of each further test set by its name.
    """

    train: Sequence[Pair]
    validation: Sequence[Pair]
    test: Sequence[Pair]
    notes: dict[str, str] = field(repr=False)
    digest: str
    target_language: str | None = None
    tests: dict[str, Sequence[Pair]] = field(default_factory=dict)


def load_parallel_corpus(settings: ParallelSettings) -> ParallelCorpus:
    """Reads a parallel corpus, skips empty pairs, and divides off the parts that are not given.

    Args:
        settings: an `InterfaceStrings`, `ParallelFiles` or `ParallelHub`.

    Raises:
        CorpusError: data that cannot be read, or too little data to fill the three parts. The
            message names the file, line or field and says how to mend it.

    Example:
        >>> from headwise.data.pairs.settings import InterfaceStrings
        >>> corpus = load_parallel_corpus(InterfaceStrings(language="de"))
        >>> len(corpus.train) > len(corpus.validation) > 50
        True
    """
    made_of = [settings.model_dump_json(exclude={"tests"}), *_identities(settings)]
    folder = stored("pairs", made_of, partial(_make, settings))
    parts, facts = open_parts(folder, PAIRS)
    notes = facts.notes
    tests: dict[str, Sequence[Pair]] = {}
    for name, test in settings.tests.items():
        with in_test_set(name):
            made_of = [
                folder.name,
                test.model_dump_json(),
                str(settings.max_bytes),
                _identity(test),
            ]
            make = partial(_make_test, test, settings.max_bytes, folder)
            of_test, its_facts = open_parts(stored("pairs", made_of, make), PAIRS)
        tests[name] = of_test["test"]
        notes[f"test {name}"] = its_facts.notes["test"]
    language = (
        settings.language if isinstance(settings, InterfaceStrings) else (settings.target_language)
    )
    return ParallelCorpus(
        **parts, notes=notes, digest=facts.digest, target_language=language, tests=tests
    )


# --- reading ----------------------------------------------------------------------------------


def _identities(settings: ParallelSettings) -> list[str]:
    """Returns what tells the data from others, and from what stood in their place before."""
    if isinstance(settings, InterfaceStrings):
        return [language_pack(settings.language)]
    if isinstance(settings, ParallelFiles):
        return [_identity(files) for files in given_parts(settings).values()]
    where = (settings.config, settings.revision)
    return [hub_identity(settings.name, split, *where) for split in settings.splits().values()]


def _identity(of: FilePair | HubPairTest) -> str:
    if isinstance(of, FilePair):
        return f"{file_identity(of.source)} {file_identity(of.target)}"
    return hub_identity(of.name, of.split, of.config, of.revision)


def _read(settings: ParallelSettings) -> tuple[dict[str, Iterable[RawPair]], dict[str, str]]:
    """Returns the pairs of each part that is given, and words on the corpus and on each part."""
    if isinstance(settings, InterfaceStrings):
        pairs, origin = read_interface_strings(settings.language)
        return {"train": pairs}, {"corpus": origin}
    rows: dict[str, Iterable[RawPair]] = {}
    if isinstance(settings, ParallelFiles):
        words = {"corpus": f"text files {settings.train.source.name}, {settings.train.target.name}"}
        for part, files in given_parts(settings).items():
            words[part] = _files_in_words(files)
            rows[part] = read_text_pairs(files.source, files.target, settings.max_bytes)
        return rows, words
    words = {"corpus": settings.origin}
    for part, split in settings.splits().items():
        rows[part] = _read_split(settings, split)
        words[part] = f"split {split}"
    return rows, words


def _read_split(settings: ParallelHub | HubPairTest, split: str) -> Iterator[RawPair]:
    columns = (settings.source_field, settings.target_field)
    return read_hub_pairs(settings.name, split, *columns, settings.config, settings.revision)


def _files_in_words(files: FilePair) -> str:
    return ", ".join(file_in_words(path) for path in (files.source, files.target))


# --- pairs in parts ---------------------------------------------------------------------------


def _make(settings: ParallelSettings, folder: Path) -> None:
    """Reads, cleans and divides the pairs of a corpus, and writes them to a folder."""
    read, words = _read(settings)
    left_out: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
    rows = {part: _cleaned(part, read[part], settings, left_out[part]) for part in read}
    shares = settings.fractions(read)
    rule = fixed_parts_of if isinstance(settings, InterfaceStrings) else parts_of
    facts = write_parts(
        folder,
        PAIRS,
        rows,
        PARTS,
        divide=(lambda keys: rule(keys, *shares)) if any(shares) else None,
        drop_leaks=settings.drop_leaks,
        train_fraction=settings.train_fraction,
    )
    left_out["train"][_DROPPED] = facts.dropped
    _check_not_empty(facts, left_out)
    facts.notes = {"corpus": words["corpus"]}
    for part in PARTS:
        facts.notes[part] = _note(facts.parts[part], left_out[part], words.get(part, ""))
    if settings.train_fraction < 1.0:
        kept = facts.parts["train"].number
        facts.notes |= sample_in_words(kept, facts.sampled_from, "pairs")
    write_facts(folder, facts)


def _make_test(
    test: FilePairTest | HubPairTest, max_bytes: int | None, corpus: Path, folder: Path
) -> None:
    """Writes the pairs of a further test set to a folder.

    Args:
        test: which files, or which split of a dataset.
        max_bytes: the most bytes of a file.
        corpus: the folder of the corpus, whose pairs are counted that occur here too.
        folder: where to.
    """
    if isinstance(test, FilePairTest):
        origin = _files_in_words(test)
        rows: Iterable[RawPair] = read_text_pairs(test.source, test.target, max_bytes)
    else:
        origin, rows = test.origin, _read_split(test, test.split)
    left_out: Counter[str] = Counter()
    facts = write_parts(folder, PAIRS, {"test": _cleaned("test", rows, PairSettings(), left_out)})
    of_test = facts.parts["test"]
    if not of_test.number:
        raise CorpusError(
            f"there are no pairs ({left_out.total():,} read, all with an empty side), expected "
            f"at least one; {origin}"
        )
    count_known(of_test, folder, PAIRS, corpus)
    facts.notes = {"test": _note(of_test, left_out, origin)}
    write_facts(folder, facts)


# Why pairs are left out.
_EMPTY = "with an empty side skipped"
_FILTERED = "too long or too unequal left out"
_DROPPED = "of the held-out parts left out"


def _cleaned(
    part: str, rows: Iterable[RawPair], settings: PairSettings, left_out: Counter[str]
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


def _note(facts: PartFacts, left_out: Counter[str], origin: str) -> str:
    """Returns what the notes say of a part: its counts, where it comes from, and a hash."""
    return part_in_words(_in_words(facts, left_out), origin, "pairs", facts.digest)


def _in_words(facts: PartFacts, left_out: Counter[str]) -> str:
    """Returns the counts of a part in words.

    >>> _in_words(PartFacts(number=8), Counter({_EMPTY: 1}))
    '8 pairs (1 with an empty side skipped)'
    """
    counts = {
        **{reason: left_out[reason] for reason in (_EMPTY, _FILTERED, _DROPPED)},
        "repeated": facts.repeated,
        "whose source is also in an earlier part": facts.earlier,
    }
    remarks = [f"{number:,} {words}" for words, number in counts.items() if number]
    return f"{facts.number:,} pairs" + (f" ({', '.join(remarks)})" if remarks else "")


def _check_not_empty(facts: Facts, left_out: Mapping[str, Counter[str]]) -> None:
    kept = {part: facts.parts[part].number for part in PARTS}
    kept["train"] = facts.sampled_from
    for part in PARTS:
        if kept[part] == 0:
            numbers = ", ".join(
                f"{name} {kept[name]:,} of {kept[name] + left_out[name].total():,} read"
                for name in PARTS
            )
            raise CorpusError(
                f"corpus: there are no pairs for the {part} part ({numbers}). Give more pairs, a "
                "larger validation_fraction or test_fraction, files of their own for the part, or "
                "larger max_length and max_ratio."
            )
