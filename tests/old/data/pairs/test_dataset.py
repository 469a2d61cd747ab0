"""Encoded pairs and batches of them."""

import pickle

import pytest
import torch

from headwise.data.encoded import collate_tokens
from headwise.data.pairs.corpus import Pair
from headwise.data.pairs.dataset import TranslationDataset
from headwise.data.tokenizers.settings import TokenizerSettings
from headwise.data.tokenizers.tokenization import TranslationTokenizer

PAIRS = [
    Pair("open the file", "ouvrir"),
    Pair("it", "le fichier que voici"),
    Pair("close the file", "fermer le fichier"),
]


@pytest.fixture(scope="module")
def tokenizer():
    settings = TokenizerSettings(joint=False, source_vocab_size=262, target_vocab_size=264)
    return TranslationTokenizer.train(PAIRS, settings)


@pytest.fixture(scope="module")
def dataset(tokenizer):
    return TranslationDataset(PAIRS, tokenizer)


def test_items_are_the_encoded_pairs(dataset, tokenizer):
    assert len(dataset) == 3
    for i, pair in enumerate(PAIRS):
        assert dataset[i] == {
            "input_ids": tokenizer.source.encode([pair.source])[0],
            "labels": tokenizer.target.encode([pair.target])[0],
        }
        assert dataset[i - 3] == dataset[i]
        assert dataset.lengths[i].tolist() == [len(ids) for ids in dataset[i].values()]
        assert dataset[i]["labels"][-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_out_of_range(dataset, index):
    with pytest.raises(IndexError):
        dataset[index]


def test_more_pairs_than_are_encoded_at_once(tokenizer):
    pairs = [Pair(str(i), str(2 * i)) for i in range(20_001)]
    dataset = TranslationDataset(pairs, tokenizer)
    assert len(dataset) == len(dataset.lengths) == 20_001
    for i in (0, 9_999, 10_000, 20_000):
        assert tokenizer.decode_target([dataset[i]["labels"]]) == [str(2 * i)]


def test_a_dataset_survives_the_trip_to_a_worker(dataset):
    assert list(pickle.loads(pickle.dumps(dataset))) == list(dataset)


def test_a_batch_is_padded_to_its_longest(dataset, tokenizer):
    items = [dataset[0], dataset[1]]
    batch = collate_tokens(items, pad_token_id=9)
    (s0, t0), (s1, t1) = dataset.lengths[:2]
    assert s0 > s1 and t0 < t1
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, s0)
    assert batch["labels"].shape == (2, t1)
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    assert batch["input_ids"][1].tolist() == items[1]["input_ids"] + [9] * (s0 - s1)
    assert batch["attention_mask"].sum(1).tolist() == [s0, s1]
    assert batch["attention_mask"][1].tolist() == sorted([1] * s1 + [0] * (s0 - s1), reverse=True)
    assert batch["labels"][0].tolist() == items[0]["labels"] + [-100] * (t1 - t0)
    assert tokenizer.decode_target(batch["labels"]) == [PAIRS[0].target, PAIRS[1].target]
