"""What is hidden, how often, and how sentences become blocks."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headwise.data.running.dataset import MaskedBlocks
from headwise.data.running.masking import MaskingSettings, mask_tokens, pack_sentences
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TextTokenizer

SPECIAL, MASK, VOCABULARY = range(5), 4, 100
WORDS = np.arange(5, VOCABULARY)
TOKENIZER = TextTokenizer.train(
    map(str, WORDS), TextTokenizerSettings(type="word", min_frequency=1)
)


def masked(ids: list[int], seed: int = 0, **shares: float) -> tuple[np.ndarray, np.ndarray]:
    return mask_tokens(
        np.array(ids, dtype=np.int64),
        MaskingSettings(**shares),
        is_word=np.arange(VOCABULARY) > 4,
        mask_id=MASK,
        generator=np.random.default_rng(seed),
    )


def blocks(seed: int = 1, **options: int) -> MaskedBlocks:
    """Five blocks of 40 words each."""
    return MaskedBlocks(
        torch.arange(200, dtype=torch.int32) % len(WORDS) + 5,
        np.array([(start, start + 40) for start in range(0, 200, 40)]),
        MaskingSettings(seed=seed),
        TOKENIZER,
        **options,
    )


# --- masks ------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=60), st.integers(0, 2**31))
def test_labels_are_the_hidden_words_and_nothing_else_changes(ids: list[int], seed: int) -> None:
    inputs, labels = masked(ids, seed)
    words = sum(token not in SPECIAL for token in ids)
    chosen = labels != -100
    expected = {max(1, int(0.15 * words)), max(1, int(0.15 * words) + 1)} if words else {0}
    assert chosen.sum() in expected
    for before, after, label in zip(ids, inputs, labels, strict=True):
        if label == -100:
            assert after == before
        else:
            assert label == before and before not in SPECIAL
            assert after == MASK or after not in SPECIAL


def test_shares_are_those_of_bert() -> None:
    ids = [1, *range(5, 77), 2]  # 72 words: 10.8 of them on average
    hidden = replaced = kept = 0
    for seed in range(2000):
        inputs, labels = masked(ids, seed)
        chosen = labels != -100
        assert chosen.sum() in (10, 11)
        hidden += int((inputs == MASK).sum())
        replaced += int((chosen & (inputs != MASK) & (inputs != labels)).sum())
        kept += int((chosen & (inputs == labels)).sum())
    chosen_in_all = hidden + replaced + kept
    assert chosen_in_all / 2000 == pytest.approx(10.8, abs=0.04)  # 4.5 standard errors
    assert hidden / chosen_in_all == pytest.approx(0.8, abs=0.012)
    # A random word is the very same one once in 95 times.
    assert replaced / chosen_in_all == pytest.approx(0.1 * 94 / 95, abs=0.009)


def test_every_word_is_chosen_as_often_as_any_other() -> None:
    ids = [1, *range(5, 25), 2]
    counts = np.zeros(len(ids))
    for seed in range(4000):
        counts += masked(ids, seed)[1] != -100
    assert counts[0] == counts[-1] == 0
    assert np.abs(counts[1:-1] / 4000 - 0.15).max() < 0.026  # 4.5 standard errors


def test_random_words_are_drawn_from_all_words() -> None:
    drawn = np.concatenate(
        [masked([50] * 60, seed, fraction=1, masked=0, random=1)[0] for seed in range(100)]
    )
    counts = np.bincount(drawn, minlength=VOCABULARY)
    assert counts[:5].sum() == 0
    assert counts[5:].min() > 0.4 * len(drawn) / len(WORDS)
    assert counts[5:].max() < 1.9 * len(drawn) / len(WORDS)


def test_shares_can_be_set() -> None:
    ids = list(range(5, 65))
    inputs, labels = masked(ids, fraction=1, masked=1, random=0)
    assert (inputs == MASK).all() and labels.tolist() == ids
    inputs, labels = masked(ids, fraction=0.5, masked=0, random=0)
    assert inputs.tolist() == ids and (labels != -100).sum() == 30
    # In floating point this is a little more than 1.
    assert MaskingSettings(masked=0.7, random=0.3000000000000001).fraction == 0.15
    with pytest.raises(ValidationError, match=r"masked is 0.8 and random 0.3, expected at most 1"):
        MaskingSettings(random=0.3)


# --- blocks -----------------------------------------------------------------------------------


def test_masks_depend_on_seed_stream_epoch_and_index_alone() -> None:
    data = blocks(dynamic=True)
    first = [data[i] for i in range(5)]
    assert [data[i] for i in (4, 0, 2)] == [first[i] for i in (4, 0, 2)]
    assert blocks(dynamic=True)[3] == first[3] == data[-2]
    data.set_epoch(1)
    assert all(data[i]["labels"] != first[i]["labels"] for i in range(5))
    data.set_epoch(0)
    assert [data[i] for i in range(5)] == first
    assert blocks(seed=2)[0] != first[0]
    assert blocks(stream=1)[0] != first[0]
    places = [[label != -100 for label in item["labels"]] for item in first]
    assert all(places[i] != places[0] for i in range(1, 5))
    with pytest.raises(IndexError):
        data[5]


def test_what_is_not_trained_on_is_fixed() -> None:
    # accelerate calls set_epoch on any data set that has it.
    data = blocks()
    first = data[0]
    data.set_epoch(1)
    assert data[0] == first


def test_a_block_begins_with_bos_and_tells_its_text() -> None:
    data = blocks()
    assert data.lengths.tolist() == [41] * 5
    item = data[2]
    text = [1, *(i % len(WORDS) + 5 for i in range(80, 120))]
    assert data.text(2) == text
    filled = [
        token if label == -100 else label
        for token, label in zip(item["input_ids"], item["labels"], strict=True)
    ]
    assert filled == text


# --- packing ----------------------------------------------------------------------------------


def test_sentences_are_packed_full() -> None:
    assert list(pack_sentences([3, 4, 2], 9)) == [(0, 9)]
    assert list(pack_sentences([3, 4, 3], 9)) == [(0, 7), (7, 10)]
    assert list(pack_sentences([9, 9], 9)) == [(0, 9), (9, 18)]


def test_separators_stand_between_documents_only() -> None:
    assert list(pack_sentences([1, 3, 1, 3, 1], 9)) == [(1, 8)]  # neither first nor last
    assert list(pack_sentences([3, 1, 3], 6)) == [
        (0, 3),
        (4, 7),
    ]  # a block ends where a document does
    assert list(pack_sentences([6, 1, 3], 6)) == [(0, 6), (7, 10)]
    assert list(pack_sentences([2, 1, 1, 2], 5)) == [(0, 2), (4, 6)]
    assert list(pack_sentences([1, 1], 5)) == []


def test_a_sentence_above_a_block_is_cut() -> None:
    assert list(pack_sentences([2, 7, 2], 3)) == [(0, 2), (2, 5), (5, 8), (8, 11)]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 12), max_size=30), st.integers(2, 10))
def test_packing_loses_no_word_and_cuts_no_sentence_that_fits(
    lengths: list[int], capacity: int
) -> None:
    packed = list(pack_sentences(lengths, capacity))
    ends = np.cumsum([0, *lengths])
    sentences = [(int(ends[i]), int(ends[i + 1])) for i, n in enumerate(lengths) if n > 1]
    covered = [position for start, end in packed for position in range(start, end)]
    assert covered == sorted(set(covered))
    assert {p for start, end in sentences for p in range(start, end)} <= set(covered)
    assert all(0 < end - start <= capacity for start, end in packed)
    separators = {int(ends[i]) for i, n in enumerate(lengths) if n == 1}
    for start, end in packed:
        assert start not in separators and end - 1 not in separators
    for start, end in sentences:
        if end - start <= capacity:
            assert any(a <= start and end <= b for a, b in packed)
    # Full: the next sentence would not have fitted.
    for (start, _), (following, _) in pairwise(packed):
        sentence_end = next(end for begin, end in sentences if begin <= following < end)
        assert sentence_end - start > capacity
