"""Blocks of running text: every token once, words and bytes of the text, and batches."""

from itertools import chain

import pytest
import torch

from headwise.data.running.dataset import TextBlocks, collate_blocks
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TextTokenizer

DOCUMENTS = [
    ["= Files =", "", "open the file and close the file", "open the window", ""],
    ["= Windows =", "", "close it and open the file , then close the window"],
] * 3
WORDS = TextTokenizer.train(
    [line for document in DOCUMENTS for line in document],
    TextTokenizerSettings(type="word", min_frequency=1),
)
BPE = TextTokenizer.train(
    [line for document in DOCUMENTS for line in document], TextTokenizerSettings(vocab_size=280)
)


@pytest.mark.parametrize("length", [2, 5, 8, 1000])
def test_every_token_is_predicted_once_from_the_one_before(length):
    blocks = TextBlocks(DOCUMENTS, WORDS, length)
    text = [token for row in WORDS.encode(list(chain(*DOCUMENTS))) for token in row]
    assert [token for i in range(len(blocks)) for token in blocks[i][1:].tolist()] == text
    before = [blocks[i][0].item() for i in range(len(blocks))]
    assert before == [2, *text[length - 1 : -1 : length]][: len(blocks)]
    assert list(blocks.lengths) == [len(blocks[i]) - 1 for i in range(len(blocks))]
    assert sum(blocks.lengths) == len(text) and set(blocks.lengths[:-1]) <= {length}
    with pytest.raises(IndexError, match="expected that of one of"):
        blocks[len(blocks)]


@pytest.mark.parametrize("tokenizer", [WORDS, BPE])
def test_words_and_bytes_are_those_of_the_text(tokenizer):
    blocks = TextBlocks(DOCUMENTS, tokenizer, 8)
    file = "".join(f"{line}\n" for document in DOCUMENTS for line in document)
    assert blocks.words().sum().item() == pytest.approx(len(file.split()) + file.count("\n"))
    assert len(blocks.words()) == len(blocks.utf8_bytes()) == sum(blocks.lengths)
    assert blocks.utf8_bytes().sum().item() == pytest.approx(len(file.encode()))
    if tokenizer is WORDS:
        assert blocks.words().tolist() == [1.0] * len(blocks.words())


def test_labels_are_the_tokens_but_for_the_first_and_padding():
    batch = collate_blocks([torch.tensor([2, 5, 6]), torch.tensor([6, 7, 8])], 0)
    assert batch["input_ids"].tolist() == [[2, 5, 6], [6, 7, 8]]
    assert batch["labels"].tolist() == [[-100, 5, 6], [-100, 7, 8]]
    assert "attention_mask" not in batch
    padded = collate_blocks([torch.tensor([2, 5, 6]), torch.tensor([6, 0])], 0)
    assert padded["labels"].tolist() == [[-100, 5, 6], [-100, 0, -100]]
    assert padded["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
