"""The tokenizer of a model's folder makes of a text what the run makes of it."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headwise.data.labelled.corpus import Example
from headwise.data.labelled.dataset import Examples
from headwise.data.tokenizers.for_models import (
    classifier_tokenizer,
    language_model_tokenizer,
    masked_model_tokenizer,
)
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TextTokenizer
from headwise.tasks.generating import prompt_ids

LINES = ["a small file opens", "the file is été <unk> small", "close a file", "a file opens"] * 3
PIECES = {"@@": ["a sm@@ all fi@@ le"] * 3, "▁": ["▁a ▁sm all ▁fi le"] * 3}


def learned(kind):
    marks = {"marks": kind} if kind in PIECES else {}
    name = "presegmented" if marks else kind
    settings = TextTokenizerSettings(type=name, vocab_size=330, min_frequency=1, **marks)
    return TextTokenizer.train(PIECES.get(kind, LINES), settings)


def ready_made(kind, folder):
    """A tokenizer of another library's making, which a run takes as its own."""
    parts = {
        "byte-level": (
            models.BPE(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
            trainers.BpeTrainer(vocab_size=300, show_progress=False),
        ),
        "sentencepiece": (
            models.Unigram(),
            pre_tokenizers.Metaspace(),
            decoders.Metaspace(),
            trainers.UnigramTrainer(
                vocab_size=60, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
            ),
        ),
        "characters": (
            models.WordLevel(unk_token="<unk>"),
            pre_tokenizers.Split("", "isolated"),
            decoders.Fuse(),
            trainers.WordLevelTrainer(special_tokens=["<unk>", "\n"], show_progress=False),
        ),
    }
    model, before, after, trainer = parts[kind]
    backend = Tokenizer(model)
    backend.pre_tokenizer, backend.decoder = before, after
    backend.train_from_iterator(LINES, trainer)
    # Tokens that are added stand behind the vocabulary, as in GPT-2.
    special = {"pad": "[PAD]", "bos": "[BEGIN]", "eos": "<|endoftext|>", "mask": "[MASK]"}
    if "<unk>" in backend.get_vocab():
        special["unk"] = "<unk>"
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{role}_token": token for role, token in special.items()}
    )
    made.save_pretrained(folder)
    return TextTokenizer.ready_made(TextTokenizerSettings(pretrained=str(folder)), mask=True)


LEARNED, READY_MADE = ["bpe", "word", "@@", "▁"], ["byte-level", "sentencepiece", "characters"]


@pytest.fixture(params=[*LEARNED, *READY_MADE])
def tokenizer(request, tmp_path):
    if request.param in LEARNED:
        return learned(request.param)
    return ready_made(request.param, tmp_path / "ready-made")


def reloaded(tokenizer, folder):
    tokenizer.save_pretrained(folder / "model")
    return AutoTokenizer.from_pretrained(folder / "model")


TEXTS = ["a file", "a file opens\nthe small file\n\nclose", "a\n", "", "  a file \n  small "]
WRITTEN = "a file <bos> opens <eos>"  # special tokens as ordinary text


def test_a_language_model_reads_its_lines(tokenizer, tmp_path):
    made = reloaded(language_model_tokenizer(tokenizer.tokenizer, 64), tmp_path)
    assert (made.model_max_length, made.padding_side) == (64, "left")
    assert made.bos_token_id == made.eos_token_id == tokenizer.eos_token_id
    # The text's own <unk> leaves a gap in a vocabulary of words.
    assert max(made.get_vocab().values()) + 1 == tokenizer.vocab_size
    for text in [*TEXTS, WRITTEN]:
        assert made(text)["input_ids"] == prompt_ids(tokenizer, text)
    padded = made(["a", "a file opens"], padding=True)
    assert [row[0] for row in padded["attention_mask"]] == [0, 1]
    # Padding is a token of its own: tools that leave it out of losses would leave out line ends.
    assert padded["input_ids"][0][0] == made.pad_token_id == tokenizer.pad_token_id
    short, long = made.batch_decode(padded["input_ids"], skip_special_tokens=True)
    assert (short[0], long[0]) == ("\n", "\n") and len(short) < len(long)


def test_what_a_language_model_writes_goes_on_from_its_prompt(tokenizer, tmp_path):
    made = reloaded(language_model_tokenizer(tokenizer.tokenizer, 64), tmp_path)
    prompt, rest = "a file", "opens\nthe small file\n\nclose"
    ids, start = made(f"{prompt} {rest}")["input_ids"], len(made(prompt)["input_ids"])
    before, after = tokenizer.decode([ids[1:start], ids[1:]])
    written = made.decode(ids[start:], skip_special_tokens=True)
    assert written == after[len(before) :]
    assert written.count("\n") == 3


def test_a_masked_model_reads_its_masks(tokenizer, tmp_path):
    made = reloaded(masked_model_tokenizer(tokenizer.tokenizer, 64), tmp_path)
    for line in ["a small file opens", "close a file", "file"]:
        whole = [tokenizer.bos_token_id, *tokenizer.encode([line])[0]]
        assert made(line)["input_ids"] == whole
    whole, mask = made("a small file opens")["input_ids"], tokenizer.mask_token_id
    hidden = made(f"a small {made.mask_token} opens")["input_ids"]
    at = hidden.index(mask)
    # What stands before the mask and behind it is what stands there in the whole text.
    assert hidden[:at] == whole[:at]
    behind = len(hidden) - at - 1
    assert behind > 1 and hidden[at + 1 :] == whole[-behind:]


def test_a_classifier_reads_one_text_or_two(tokenizer, tmp_path):
    made = reloaded(classifier_tokenizer(tokenizer.tokenizer, 9), tmp_path)
    single = [Example(text, None, "x") for text in ("a file", "a small file opens a file", WRITTEN)]
    pairs = [Example("a file", "close a file", "x"), Example("a small file opens", "file", "x")]
    for examples, most in ((single, 9), (single, 64), (pairs, 64)):
        items = Examples(examples, tokenizer, ["x"], most)
        for example, item in zip(examples, items, strict=True):
            second = () if example.pair is None else (example.pair,)
            found = made(example.text, *second, truncation=True, max_length=most)
            assert found["input_ids"] == item["input_ids"]
    assert made.model_max_length == 9
