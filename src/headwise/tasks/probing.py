"""Probing: a classifier on top of a sentence encoder tells which properties the encoder captures.

The protocol is that of Li et al. 2019, *Information Aggregation for Multi-Head Attention with
Routing-by-Agreement*, https://arxiv.org/abs/1904.03100 (section 5.1, table 1): three encoder layers
of the base Transformer, the mean of the top layer, and a perceptron are trained together on each of
the ten tasks of Conneau et al. 2018, *What you can cram into a single $&!#* vector: Probing
sentence embeddings for linguistic properties*, https://arxiv.org/abs/1805.01070.

The data are SentEval's files, or are made from any text: three of the ten tasks need no parser.

- SeLen: the number of words of a sentence, in six classes;
- WC: the one of 1,000 words of middle frequency that occurs in it;
- BShift: whether two neighbouring words are swapped.

Details follow https://github.com/facebookresearch/SentEval/tree/main/data/probing. Sentences have 5
to 28 words, each is used once, and all classes have the same size in every split. Hashes of the
sentences and of a seed decide everything: the same text gives the same examples.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, ClassVar, Literal

import datasets
import numpy as np

from headwise.data.builtin import DOCUMENTED, package_signature, paragraphs_of, sentences_of
from headwise.data.load import DataError, Row, file_signature, from_generator, lines
from headwise.data.settings import SPLITS
from headwise.messages import shown
from headwise.tasks.classification import Classification

Classes = dict[str, list[str]]  # name of a class to its sentences

_LENGTHS = range(5, 29)  # words of a sentence
_HELD_OUT = 0.1  # share of the sentences in the validation split, and in the test split
_WORD = re.compile(r"\w+(?:['’-]\w+)*")  # with apostrophes and hyphens inside
_NEIGHBOURS = re.compile(rf"({_WORD.pattern}) (?=({_WORD.pattern}))")
_PARTITIONS = dict(zip(("tr", "va", "te"), SPLITS, strict=True))


def senteval(file: str) -> dict[str, datasets.Dataset]:
    """Returns the splits of a file of SentEval's probing tasks.

    Its lines are partition (tr, va or te), label and sentence, separated by tabs; there may be
    further fields before the sentence.

    Args:
        file: the file, such as bigram_shift.txt, which may be compressed.
    """
    return _split_rows(from_generator(_read_senteval, file=file, signature=file_signature(file)))


def _read_senteval(file: str, **_: object) -> Iterator[Row]:
    for number, line in enumerate(lines(file), start=1):
        fields = line.split("\t")
        if fields[0] not in _PARTITIONS or len(fields) < 3:
            raise DataError(
                f"{file}, line {number:,}: {shown(line)}, expected tr, va or te, a label and a "
                f"sentence, separated by tabs"
            )
        sentence = " ".join(fields[-1].split())
        yield {"split": _PARTITIONS[fields[0]], "text": sentence, "label": fields[1]}


def generated_probe(
    probe: Literal["SeLen", "WC", "BShift"] = "SeLen",
    packages: Sequence[str] = DOCUMENTED,
    file: str | None = None,
    num_bins: int = 6,
    num_words: int = 1000,
    seed: int = 1,
) -> dict[str, datasets.Dataset]:
    """Returns the splits of a probing task that is made from a text.

    Args:
        probe: the task.
        packages: packages whose docstrings, their first paragraphs, are the text.
        file: a text file in place of packages.
        num_bins: the number of classes of SeLen; the smallest is as large as possible.
        num_words: the number of words of WC, which are the classes; little text needs fewer.
        seed: seed of the choice of sentences, of their splits, and of the words that are swapped.
    """
    options = dict(locals())
    signature = package_signature(packages) if file is None else file_signature(file)
    return _split_rows(from_generator(_probe_text, **options, signature=signature))


def _probe_text(
    probe: str, packages: Sequence[str], file: str | None, seed: int, **options: Any
) -> Iterator[Row]:
    paragraphs = chain.from_iterable(map(paragraphs_of, packages)) if file is None else lines(file)
    texts = chain.from_iterable(sentences_of(" ".join(x.split())) for x in paragraphs)
    sentences = [x for x in dict.fromkeys(texts) if len(_WORD.findall(x)) in _LENGTHS]
    if probe == "SeLen":
        classes = sentence_length(sentences, options["num_bins"])
    elif probe == "WC":
        classes = word_content(sentences, options["num_words"])
    else:
        classes = bigram_shift(sentences, seed)
    yield from balanced(classes, seed)


def _split_rows(rows: datasets.Dataset) -> dict[str, datasets.Dataset]:
    splits = np.array(rows["split"][:])
    return {split: rows.select(np.flatnonzero(splits == split)) for split in SPLITS}


# --- the probes -------------------------------------------------------------------------------


def sentence_length(sentences: Sequence[str], num_bins: int = 6) -> Classes:
    """Makes SeLen: sentences by their number of words, in classes with names such as `5-8`.

    The smallest class is as large as possible, since the others are reduced to its size.
    """
    num_words = {sentence: len(_WORD.findall(sentence)) for sentence in sentences}
    counts = Counter(num_words.values())
    for min_size in range(len(sentences) // num_bins, 0, -1):
        begins, size = [], min_size
        for length in sorted(counts):
            if size >= min_size:
                begins.append(length)
                size = 0
            size += counts[length]
        if len(begins) - (size < min_size) >= num_bins:
            break
    else:
        raise DataError(
            f"SeLen: sentences have {len(counts)} different lengths, expected at least one for "
            f"each of {num_bins} classes: give more text, or fewer data.options.num_bins"
        )
    begins = begins[:num_bins]
    classes: Classes = {}
    for begin, end in pairwise([*begins, max(counts) + 1]):
        name = f"{begin}-{end - 1}" if begin < end - 1 else f"{begin}"
        classes[name] = [x for x, length in num_words.items() if begin <= length < end]
    return classes


def word_content(sentences: Sequence[str], num_words: int = 1000) -> Classes:
    """Makes WC: sentences by the one of `num_words` words that occurs in them, once.

    These are the most frequent words of lower case and at least four letters, without the
    2 `num_words` most frequent words of all. The first word of a sentence counts as lower case.
    """
    word_lists = {text: _WORD.findall(text) for text in sentences}
    for words in word_lists.values():
        words[:1] = map(str.lower, words[:1])
    counts = Counter(chain.from_iterable(word_lists.values()))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[2 * num_words :]
    suitable = [x for x in ranked if len(x) >= 4 and x.isalpha() and x.islower()]
    if len(suitable) < num_words:
        raise DataError(
            f"WC: {len(suitable):,} words are suitable, expected at least {num_words:,}: give more "
            f"text, or fewer data.options.num_words"
        )
    classes: Classes = {word: [] for word in suitable[:num_words]}
    for text, words in word_lists.items():
        matches = [word for word in words if word in classes]
        if len(matches) == 1:
            classes[matches[0]].append(text)
    return classes


def bigram_shift(sentences: Sequence[str], seed: int = 1) -> Classes:
    """Makes BShift: class I, half of the sentences, has two neighbouring words swapped; O has none.

    The two words differ and have only a space between them. The first word and punctuation keep
    their places, and sentences with double quotes are left out.
    """
    known = set(sentences)
    classes: Classes = {"O": [], "I": []}
    suitable = [s for s in sentences if not re.search(r"[\"“”„«»]|``|''", s) and _swappable(s)]
    for number, sentence in enumerate(_shuffled(suitable, seed)):
        pairs = _swappable(sentence)
        pair = pairs[_hash(sentence, seed, "place") % len(pairs)]
        begin, end = sentence[: pair.start()], sentence[pair.end(2) :]
        swapped = f"{begin}{pair[2]} {pair[1]}{end}"
        if number % 2 == 0:
            classes["O"].append(sentence)
        elif swapped not in known:
            known.add(swapped)
            classes["I"].append(swapped)
    return classes


def _swappable(sentence: str) -> list[re.Match[str]]:
    first = _WORD.search(sentence)
    pairs = _NEIGHBOURS.finditer(sentence, first.end() if first else 0)
    return [pair for pair in pairs if pair[1].lower() != pair[2].lower()]


def balanced(classes: Classes, seed: int = 1) -> list[Row]:
    """Returns rows of equally many sentences of each class, in each split."""
    smallest = min(classes, key=lambda name: len(classes[name]))
    size = len(classes[smallest])
    if size < 3:
        raise DataError(
            f"the class {smallest!r} has {size} sentences, expected at least 3: give more text, or "
            f"ask for fewer classes (data.options.num_words, num_bins)"
        )
    held_out = max(1, round(_HELD_OUT * size))
    splits = ["validation"] * held_out + ["test"] * held_out + ["train"] * (size - 2 * held_out)
    rows = [
        {"split": split, "text": sentence, "label": name}
        for name, sentences in classes.items()
        for split, sentence in zip(splits, _shuffled(sentences, seed), strict=False)
    ]
    return sorted(rows, key=lambda row: _hash(row["text"], seed, "order"))


def _shuffled(sentences: Sequence[str], seed: int) -> list[str]:
    return sorted(sentences, key=lambda sentence: (_hash(sentence, seed, "choice"), sentence))


def _hash(sentence: str, seed: int, purpose: str) -> int:
    key = "\0".join((str(seed), purpose, sentence))
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


# --- the task ---------------------------------------------------------------------------------


class Probing(Classification):
    """Classification of sentences by one of their properties."""

    name = "probing"
    built_in: ClassVar = {"generated": generated_probe, "senteval": senteval}
    item_name = "sentences"
    loss_unit = "nats per sentence"
    stacks = (("encoder", 28),)  # words of the longest sentence of Conneau et al. 2018
