"""Rows of token ids in one array, in memory and in the cache."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest

from headwise.data import encoded
from headwise.data.encoded import Ragged

TEXTS = ["one two", "", "three", *(f"{'word ' * (i % 4)}end" for i in range(20))]


@dataclass
class Lengths:
    """A tokenizer whose ids are the lengths of words."""

    vocab_size: int
    state: str = "lengths of words"

    def encode(self, texts):
        return [[len(word) for word in text.split()] for text in texts]


@dataclass
class TwoIds(Lengths):
    """A tokenizer whose ids are the first and the last of a vocabulary."""

    def encode(self, texts):
        return [[0, self.vocab_size - 1]] * len(texts)


def in_memory(texts):
    return Ragged.of(Lengths(10), lambda: texts)


def in_a_file(texts):
    return Ragged.of(Lengths(10), lambda: texts, [texts])


def in_a_file_of_wide_ids(texts):
    return Ragged.of(Lengths(70_001), lambda: texts, [texts])


@pytest.mark.parametrize("make", [in_memory, in_a_file, in_a_file_of_wide_ids])
def test_rows_are_those_that_were_encoded(make, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(encoded, "_BATCH", 5)
    rows, number = make(TEXTS), len(TEXTS)
    for each in (rows, pickle.loads(pickle.dumps(rows))):
        assert [each[i] for i in range(-number, number)] == Lengths(10).encode(TEXTS) * 2
        assert each.lengths.tolist() == [len(text.split()) for text in TEXTS]
    with pytest.raises(IndexError):
        rows[number]
    assert len(make([]).lengths) == 0


def test_what_is_stored_stays_on_the_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    rows = in_a_file(TEXTS)
    arrays = [value for value in vars(rows).values() if isinstance(value, np.ndarray)]
    assert arrays and all(isinstance(array, np.memmap) for array in arrays)


@pytest.mark.parametrize("last", [2**16 - 1, 2**16, 2**31 - 1])
def test_the_last_id_of_a_vocabulary_is_kept(last, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    rows = Ragged.of(TwoIds(last + 1), lambda: ["x"], [last])
    assert rows[0] == [0, last]
    assert rows.ids.element_size() == (2 if last < 2**16 else 4)
