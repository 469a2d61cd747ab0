"""Corpora of probing tasks: SentEval's files, or examples that are made from any sentences.

Conneau et al. 2018, *What you can cram into a single $&!#* vector: Probing sentence embeddings for
linguistic properties*, https://arxiv.org/abs/1805.01070, with the README of SentEval's probing
data, https://github.com/facebookresearch/SentEval/tree/main/data/probing, for details that the
paper does not give. Three of their ten tasks need no parser, since their labels come from the
sentences themselves:

- SeLen: how many words a sentence has, in six classes;
- WC: which one of 1,000 words of middle frequency occurs in it;
- BShift: whether two neighbouring words are swapped.

As in SentEval, sentences have 5 to 28 words. All classes of a task have the same size in every
part, and each sentence is used once. Hashes of the sentences and of a seed decide everything, so
that the same text gives the same examples everywhere.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import chain, pairwise

from headwise.data.corpora import open_corpus
from headwise.data.division import PARTS, divide, hash_of
from headwise.data.labelled.corpus import (
    EXAMPLES,
    LabelledCorpus,
    Reading,
    labelled_corpus,
    make_examples,
)
from headwise.data.labelled.reading import Row, docstrings, read_senteval
from headwise.data.labelled.settings import (
    DocstringTexts,
    GeneratedProbe,
    ProbingSettings,
    SentEvalFile,
)
from headwise.data.running.corpus import load_text_corpus
from headwise.data.running.documents import lines_of
from headwise.data.running.reading import split_sentences
from headwise.data.sources import CorpusError, file_in_words, packages_identity, versions
from headwise.data.store import file_identity

Classes = dict[str, list[str]]  # name of a class to its sentences

# A word has letters and digits, with apostrophes and hyphens inside; punctuation is not a word.
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def load_probing_corpus(settings: ProbingSettings) -> LabelledCorpus:
    """Reads the examples of a probing task, or makes them from a text.

    Raises:
        CorpusError: data that cannot be read, an unknown label, or too little text. The message
            names the file and line, and says how to mend it.
    """
    if isinstance(settings, SentEvalFile):
        identity, read = file_identity(settings.file), partial(_read_senteval, settings)
    else:
        identity, origin, sentences = _sentences(settings)
        read = partial(_generate, settings, sentences, origin)
    made_of = [settings.model_dump_json(), identity]
    make = partial(make_examples, read, (0.0, 0.0), settings.train_fraction)
    return labelled_corpus(open_corpus("examples", made_of, make, EXAMPLES.open)[0])


# --- SentEval's files -------------------------------------------------------------------------


def _read_senteval(settings: SentEvalFile) -> Reading:
    rows: dict[str, list[Row]] = {part: [] for part in PARTS}
    for part, row in read_senteval(settings.file, settings.max_bytes):
        rows[part].append(row)
    return Reading(
        rows,
        {"corpus": f"SentEval, {file_in_words(settings.file)}"},
        classes=settings.classes,
        label_hint="Check the second field of the lines, which is the label.",
    )


# --- generated probes -------------------------------------------------------------------------


def _generate(settings: GeneratedProbe, found: Callable[[], Sequence[str]], origin: str) -> Reading:
    sentences = usable_sentences(found(), settings.min_words, settings.max_words)
    if settings.probe == "SeLen":
        classes = sentence_length(sentences, settings.num_bins, settings.bins)
    elif settings.probe == "WC":
        classes = word_content(sentences, settings.num_words)
    else:
        classes = bigram_shift(sentences, settings.seed)
    parts = balanced_parts(
        classes, settings.validation_fraction, settings.test_fraction, settings.seed
    )
    rows = {
        part: [Row(part, sentence, None, label) for sentence, label in of_part]
        for part, of_part in parts.items()
    }
    used = sum(map(len, rows.values()))
    origin = (
        f"{settings.probe}, made from {origin}: {used:,} of {len(sentences):,} sentences with "
        f"{settings.min_words} to {settings.max_words} words, the same number in each class"
    )
    return Reading(rows, {"corpus": origin}, classes=list(classes))


def _sentences(settings: GeneratedProbe) -> tuple[str, str, Callable[[], Sequence[str]]]:
    """Returns an identity of the text, which changes with it, its origin in words, and a reader."""
    texts = settings.texts
    if isinstance(texts, DocstringTexts):
        origin = f"docstrings of {', '.join(versions(texts.packages))}"
        identity = packages_identity(texts.packages)
        return (
            identity,
            origin,
            lambda: _split(chain.from_iterable(map(docstrings, texts.packages))),
        )
    max_bytes = settings.max_bytes if texts.max_bytes is None else texts.max_bytes
    corpus = load_text_corpus(texts.model_copy(update={"max_bytes": max_bytes}))
    documents = chain(corpus.train, corpus.validation, corpus.test)
    origin = corpus.notes["corpus"]
    return f"{origin} {corpus.digest}", origin, lambda: _split(lines_of(documents))


def _split(paragraphs: Iterable[str]) -> list[str]:
    return [sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)]


def words_of(sentence: str) -> list[str]:
    """Returns the words of a sentence."""
    return _WORD.findall(sentence)


def usable_sentences(
    sentences: Iterable[str], min_words: int = 5, max_words: int = 28
) -> list[str]:
    """Returns the sentences whose number of words is in range, each of them once."""
    once = dict.fromkeys(" ".join(sentence.split()) for sentence in sentences)
    return [s for s in once if min_words <= len(words_of(s)) <= max_words]


# --- the tasks --------------------------------------------------------------------------------


def sentence_length(
    sentences: Sequence[str], num_bins: int = 6, bins: Sequence[int] | None = None
) -> Classes:
    """Makes SeLen: classifies sentences by their number of words.

    Args:
        sentences: sentences that `usable_sentences` returns.
        num_bins: number of classes, whose borders make the smallest class as large as possible.
        bins: smallest number of words of each class, in place of `num_bins`; those of the paper
            are `PAPER_BINS`. Shorter sentences are left out.

    Returns:
        Classes from short to long sentences, with names such as `5-8`.
    """
    lengths = {sentence: len(words_of(sentence)) for sentence in sentences}
    if not lengths:
        raise CorpusError(
            "SeLen: there are no sentences, expected some whose number of words is in range. Give "
            "more text, or another data.min_words and data.max_words."
        )
    if bins is None:
        bins = _even_bins(Counter(lengths.values()), num_bins)
    longest = max(lengths.values())
    ends = [*(start - 1 for start in bins[1:]), max(longest, bins[-1])]
    names = [
        str(start) if start == end else f"{start}-{end}"
        for start, end in zip(bins, ends, strict=True)
    ]
    classes: Classes = {name: [] for name in names}
    for sentence, length in lengths.items():
        number = sum(start <= length for start in bins)
        if number:
            classes[names[number - 1]].append(sentence)
    return classes


def _even_bins(counts: Mapping[int, int], num_bins: int) -> list[int]:
    """Returns the length at which each bin begins; the bin with the fewest sentences has as many
    as possible.

    >>> _even_bins({5: 10, 6: 1, 7: 9, 8: 20}, 3)
    [5, 6, 8]
    """
    lengths = sorted(counts)
    if len(lengths) < num_bins:
        raise CorpusError(
            f"SeLen: sentences have {len(lengths)} different lengths, expected at least one for "
            f"each of the {num_bins} classes. Give more text, or set data.num_bins to fewer."
        )

    @cache
    def best(first: int, bins: int) -> tuple[int, tuple[int, ...]]:
        """Divides `lengths[first:]` into bins; returns how many sentences the smallest bin has, and
        the first length of each."""
        if bins == 1:
            return sum(counts[n] for n in lengths[first:]), (lengths[first],)
        found = []
        for cut in range(first + 1, len(lengths) - bins + 2):
            smallest, starts = best(cut, bins - 1)
            size = sum(counts[n] for n in lengths[first:cut])
            found.append((min(size, smallest), (lengths[first], *starts)))
        return max(found)

    return list(best(0, num_bins)[1])


def word_content(sentences: Sequence[str], num_words: int = 1000) -> Classes:
    """Makes WC: classifies sentences by the one of `num_words` words that occurs in them, once.

    In the order of frequency, the words are the first lower-case ones of at least four letters
    after rank 2 × `num_words`. For 1,000 words this is rank 2,000, as in SentEval.
    """
    counts = Counter(word for sentence in sentences for word in words_of(sentence))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    suitable = [
        word
        for word in ranked[2 * num_words :]
        if len(word) >= 4 and word.isalpha() and word.islower()
    ]
    if len(suitable) < num_words:
        raise CorpusError(
            f"WC: {len(suitable):,} lower-case words of at least four letters follow the "
            f"{2 * num_words:,} most frequent ones, expected at least {num_words:,}. Give more "
            "text, or set data.num_words to fewer."
        )
    classes: Classes = {word: [] for word in suitable[:num_words]}
    for sentence in sentences:
        found = [word for word in map(str.lower, words_of(sentence)) if word in classes]
        if len(found) == 1:
            classes[found[0]].append(sentence)
    return classes


def bigram_shift(sentences: Sequence[str], seed: int = 1) -> Classes:
    """Makes BShift: half of the sentences stay (O), the others have two neighbours swapped (I).

    As in SentEval, neither the first word nor punctuation moves, and sentences with double quotes
    are left out. Neighbours are two different words with only a space between them.
    """
    known = set(sentences)
    classes: Classes = {"O": [], "I": []}
    suitable = [s for s in sentences if not re.search(r"[\"“”„«»]|``|''", s) and _neighbours(s)]
    for number, sentence in enumerate(_shuffled(suitable, seed)):
        inverted = _invert(sentence, seed)
        if number % 2 == 0:
            classes["O"].append(sentence)
        elif inverted not in known:
            known.add(inverted)
            classes["I"].append(inverted)
    return classes


def _neighbours(sentence: str) -> list[tuple[re.Match[str], re.Match[str]]]:
    """Returns the pairs of neighbouring words that may be swapped."""
    found = list(_WORD.finditer(sentence))[1:]
    return [
        (one, two)
        for one, two in pairwise(found)
        if sentence[one.end() : two.start()] == " " and one.group().lower() != two.group().lower()
    ]


def _invert(sentence: str, seed: int) -> str:
    pairs = _neighbours(sentence)
    one, two = pairs[_hash(sentence, seed, "place") % len(pairs)]
    start, end = sentence[: one.start()], sentence[two.end() :]
    return f"{start}{two.group()} {one.group()}{end}"


# --- parts ------------------------------------------------------------------------------------


def balanced_parts(
    classes: Mapping[str, Sequence[str]],
    validation_fraction: float,
    test_fraction: float,
    seed: int = 1,
) -> dict[str, list[tuple[str, str]]]:
    """Divides the sentences of each class into parts, with classes of equal size.

    Each class gives as many sentences as the smallest class has. Hashes of seed and sentence
    choose them and their parts; each class is divided by the rule of all tasks, `data.division`.

    Returns:
        For `train`, `validation` and `test` rows of sentence and class, in the order of a hash.
    """
    smallest = min(classes, key=lambda name: len(classes[name]))
    size = len(classes[smallest])
    parts: dict[str, list[tuple[str, str]]] = {part: [] for part in PARTS}
    for name, sentences in classes.items():
        chosen = {_key(s, seed, "choice"): s for s in _shuffled(sentences, seed)[:size]}
        part_of_key = divide(chosen, validation_fraction, test_fraction)
        for key, sentence in chosen.items():
            parts[part_of_key[key]].append((sentence, name))
    if not all(parts.values()):  # all classes are divided alike
        raise CorpusError(
            f"probing: the class {smallest!r} has {size:,} sentences, expected at least 3, one for "
            "each part. Give more text, or ask for fewer classes (data.num_words, data.num_bins, "
            "data.bins)."
        )
    for rows in parts.values():
        rows.sort(key=lambda row: _hash(row[0], seed, "order"))
    return parts


def _shuffled(sentences: Sequence[str], seed: int) -> list[str]:
    """Sorts sentences by a hash, so that their order at first does not matter."""
    return sorted(sentences, key=lambda sentence: (_hash(sentence, seed, "choice"), sentence))


def _hash(sentence: str, seed: int, purpose: str) -> int:
    return hash_of(_key(sentence, seed, purpose))


def _key(sentence: str, seed: int, purpose: str) -> str:
    return "\0".join((str(seed), purpose, sentence))
