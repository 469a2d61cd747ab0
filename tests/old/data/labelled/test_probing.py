"""Probing tasks made from sentences: what each class holds, balance, and that nothing leaks."""

import random
from collections import Counter
from itertools import combinations, pairwise

import pytest

from headwise.data.labelled.probing import (
    balanced_parts,
    bigram_shift,
    sentence_length,
    usable_sentences,
    word_content,
    words_of,
)
from headwise.data.labelled.settings import PAPER_BINS
from headwise.data.sources import CorpusError


def make_sentences(number, seed=0):
    draw = random.Random(seed)
    words = [a + b + c for a in "bdfgk" for b in ("an", "el", "or") for c in ("to", "ix", "um")]
    return [
        " ".join(draw.choices(words, k=draw.randint(3, 32))).capitalize() + "."
        for _ in range(number)
    ]


SENTENCES = usable_sentences(make_sentences(600))


def test_usable_sentences_have_5_to_28_words_and_are_there_once():
    found = usable_sentences(["a b c d", "a b, c - d e.", " a b,  c - d e. ", "x " * 28, "x " * 29])
    assert found == ["a b, c - d e.", " ".join(["x"] * 28)]
    assert {len(words_of(s)) for s in SENTENCES} == set(range(5, 29))


# --- SeLen ------------------------------------------------------------------------------------


def test_sentence_length_puts_each_sentence_where_its_length_belongs():
    classes = sentence_length(SENTENCES, bins=PAPER_BINS)
    assert list(classes) == ["5-8", "9-12", "13-16", "17-20", "21-25", "26-28"]
    assert sum(map(len, classes.values())) == len(SENTENCES)
    for name, of_class in classes.items():
        low, high = map(int, name.split("-"))
        assert of_class and all(low <= len(words_of(s)) <= high for s in of_class)


@pytest.mark.parametrize("num_bins", [2, 3, 6])
def test_the_smallest_class_is_as_large_as_can_be(num_bins):
    short = [s for s in SENTENCES if len(words_of(s)) <= 14]
    classes = sentence_length(short, num_bins)
    sizes = [len(of_class) for of_class in classes.values()]
    assert len(sizes) == num_bins and sum(sizes) == len(short)
    counts = Counter(len(words_of(s)) for s in short)
    smallest = 0
    for starts in combinations(range(6, 15), num_bins - 1):
        borders = pairwise([5, *starts, 15])
        smallest = max(smallest, min(sum(counts[n] for n in range(*ends)) for ends in borders))
    assert min(sizes) == smallest


def test_a_class_of_one_length_is_named_by_it():
    assert list(sentence_length(["a b c d e", "a b c d e f"], num_bins=2)) == ["5", "6"]


def test_too_few_lengths():
    with pytest.raises(CorpusError, match=r"1 different lengths, .* 6 classes"):
        sentence_length(["a b c d e", "a b c d f"])
    with pytest.raises(CorpusError, match="there are no sentences, expected some"):
        sentence_length([])


# --- WC ---------------------------------------------------------------------------------------


def test_word_content_has_one_of_the_words_once():
    # Ranks: w0 most frequent ... so that with 2 words the classes are ranks 5 and 6 that fit.
    counts = {
        "they": 60,
        "have": 50,
        "been": 40,
        "seen": 30,
        "Thor": 9,
        "abc": 8,
        "cats": 7,
        "dogs": 6,
    }
    pool = [word for word, count in counts.items() for _ in range(count)]
    draw = random.Random(1)
    draw.shuffle(pool)
    sentences = [" ".join(pool[i : i + 6]) for i in range(0, len(pool), 6)]
    classes = word_content(sentences, num_words=2)
    assert list(classes) == ["cats", "dogs"]  # "Thor" has a capital, "abc" three letters
    for word, of_class in classes.items():
        other = "dogs" if word == "cats" else "cats"
        expected = [
            s for s in sentences if s.split().count(word) == 1 and s.split().count(other) == 0
        ]
        assert of_class == expected


def test_too_few_words():
    with pytest.raises(CorpusError, match=r"lower-case words .* follow the 2,000 most frequent"):
        word_content(SENTENCES)


# --- BShift -----------------------------------------------------------------------------------


def test_bigram_shift_swaps_two_neighbours_in_half_of_the_sentences():
    classes = bigram_shift(SENTENCES)
    known = set(SENTENCES)
    assert abs(len(classes["O"]) - len(classes["I"])) <= 2
    assert set(classes["O"]) < known and not set(classes["I"]) & known
    # What it was is never among the originals: no sentence is there in both forms.
    bags = {tuple(sorted(words_of(s))): s for s in classes["O"]}
    places = set()
    for inverted in classes["I"]:
        words = words_of(inverted)
        originals = [s for s in SENTENCES if sorted(words_of(s)) == sorted(words)]
        (original,) = originals
        moved = [
            i for i, (a, b) in enumerate(zip(words_of(original), words, strict=True)) if a != b
        ]
        assert len(moved) == 2 and moved[1] == moved[0] + 1
        assert moved[0] > 0 and inverted[-1] == "."
        assert tuple(sorted(words)) not in bags
        places.add(moved[0])
    assert len(places) > 15


def test_bigram_shift_leaves_punctuation_quotes_and_equal_words_alone():
    fixed = ['Say "one two three" to me.', "Go, one, two, three!", "So so so so SO so."]
    assert bigram_shift(fixed) == {"O": [], "I": []}
    for seed in range(20):
        (inverted,) = bigram_shift(["x", "Go, one two, three."], seed)["I"] or [
            "Go, two one, three."
        ]
        assert inverted == "Go, two one, three."


def test_no_sentence_is_inverted_into_another():
    assert bigram_shift(["Go, one two.", "Go, two one."])["I"] == []


# --- parts ------------------------------------------------------------------------------------


def test_parts_are_balanced_and_share_nothing():
    classes = {"a": [f"a {i}" for i in range(50)], "b": [f"b {i}" for i in range(91)]}
    parts = balanced_parts(classes, 0.2, 0.1)
    sizes = {part: Counter(label for _, label in rows) for part, rows in parts.items()}
    assert sizes["test"] == {"a": 5, "b": 5}
    assert sizes["validation"] == {"a": 10, "b": 10}
    assert sizes["train"] == {"a": 35, "b": 35}
    texts = [text for rows in parts.values() for text, _ in rows]
    assert len(set(texts)) == len(texts)
    # Neither classes nor the sentences' own order shows.
    labels = [label for _, label in parts["train"]]
    assert labels != sorted(labels)


def test_everything_is_decided_by_hash_and_seed():
    shuffled = random.Random(3).sample(SENTENCES, len(SENTENCES))
    for make in (bigram_shift, lambda s, seed=1: sentence_length(s)):
        first, second = (balanced_parts(make(s), 0.1, 0.1) for s in (SENTENCES, shuffled))
        assert first == second
        assert first != balanced_parts(make(SENTENCES, seed=2), 0.1, 0.1, seed=2)


def test_a_class_too_small_for_three_parts():
    with pytest.raises(CorpusError, match="class 'b' has 2 sentences, expected at least 3"):
        balanced_parts({"a": list("wxyz"), "b": ["1", "2"]}, 0.1, 0.1)
