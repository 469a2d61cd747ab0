"""The data set of labelled text: encoded pairs, cut examples, and batches of equal size."""

import pytest

from headwise.data.labelled.corpus import Example
from headwise.data.labelled.dataset import Examples, fitted
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TextTokenizer
from headwise.training.batching import TokenBudgetSampler

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.fixture(scope="module")
def tokenizer():
    lines = [" ".join(WORDS), " ".join(reversed(WORDS))] * 3
    return TextTokenizer.train(lines, TextTokenizerSettings(vocab_size=300))


def test_a_pair_is_read_as_roberta_reads_it(tokenizer):
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    one, two = tokenizer.encode(["one two", "three"], eos=False)
    pairs = [Example("one two", "three", "b"), Example("three", "one two", "a")]
    items = Examples(pairs, tokenizer, ["a", "b"], 100)
    assert items[0] == {"input_ids": [bos, *one, eos, eos, *two, eos], "label": 1.0}
    assert items[1] == {"input_ids": [bos, *two, eos, eos, *one, eos], "label": 0.0}
    alone = Examples([Example("three", None, 2.5)], tokenizer, None, 100)
    assert alone[0] == {"input_ids": [bos, *two, eos], "label": 2.5}
    assert alone.cut == 0


@pytest.mark.parametrize("max_length", [8, 9, 12, 19])
@pytest.mark.parametrize("lengths", [(30, None), (3, None), (3, 30), (30, 3), (30, 29), (2, 2)])
def test_what_is_too_long_is_cut_from_the_longer_text(max_length, lengths):
    kept = fitted(*lengths, max_length)

    def length(text, pair):
        return 1 + text + (0 if pair is None else 1 + pair)

    # The twin: one token at a time, from whichever text is longer.
    text, pair = lengths
    while length(text, pair) > max_length:
        if pair is not None and pair > text:
            pair -= 1
        else:
            text -= 1
    assert length(*kept) == length(text, pair)
    assert sorted(filter(None, kept)) == sorted(filter(None, (text, pair)))


def test_cut_examples_keep_their_ends_and_are_counted(tokenizer):
    long = " ".join(WORDS * 5)
    data = [Example(long, long, "a"), Example("one", long, "a"), Example("one", "two", "a")]
    items = Examples(data, tokenizer, ["a"], 20)
    assert [len(items[i]["input_ids"]) for i in range(2)] == [20, 20]
    assert items.cut == 2
    eos = tokenizer.eos_token_id
    for item in (items[0], items[1]):
        assert item["input_ids"][0] == tokenizer.bos_token_id
        assert item["input_ids"].count(eos) == 3 and item["input_ids"][-1] == eos
        first = item["input_ids"].index(eos)
        assert item["input_ids"][first + 1] == eos


def test_batches_are_of_one_size_whatever_the_lengths(tokenizer):
    """Where the label goes with the length, those of one length would be of one class."""
    long = Example(" ".join(WORDS * 2), None, "up")
    short = [Example(" ".join(WORDS[: 1 + i % 7]), None, "down") for i in range(20)]
    for data in (short, [*short, long]):
        items = Examples(data, tokenizer, ["up", "down"], 100)
        assert len(set(items.true_lengths)) > 3 and max(items.true_lengths) < 100
        batches = list(TokenBudgetSampler(items.lengths, 400, shuffle=False))
        assert {len(batch) for batch in batches[:-1]} == {4}
