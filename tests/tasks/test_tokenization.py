"""Tokenizers: lossless, deterministic, saved whole, and ordinary for Hugging Face."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoTokenizer

from headwise.tasks.corpora import Pair
from headwise.tasks.tokenization import (
    MIN_VOCAB_SIZE,
    SPECIAL_TOKENS,
    TokenizerSettings,
    TranslationTokenizer,
)

PAIRS = [
    Pair("open the file", "ouvrir le fichier"),
    Pair("close the file", "fermer le fichier"),
    Pair("open the window", "ouvrir la fenêtre"),
    Pair("close it", "fermer ceci"),
]


# A constant beside the fixture, because hypothesis calls the test many times with one fixture.
JOINT = TranslationTokenizer.train(PAIRS, TokenizerSettings(vocab_size=285))


@pytest.fixture
def joint():
    return JOINT


@pytest.fixture(scope="module")
def separate():
    settings = TokenizerSettings(joint=False, source_vocab_size=270, target_vocab_size=275)
    return TranslationTokenizer.train(PAIRS, settings)


@given(st.text())
def test_any_text_comes_back_as_it_was(text):
    assert JOINT.decode_target(JOINT.encode_target([text])) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " two  spaces ",
        "Hello , world !",
        "don 't",
        "<eos> is <pad> text",
        "中文",
        "e\u0301🙂",
    ],
)
def test_text_that_tokenizers_like_to_change_comes_back_as_it_was(separate, text):
    ids = separate.encode_target([text])
    assert separate.decode_target(ids) == [text]
    assert ids[0].count(separate.eos_token_id) == 1


def test_special_tokens_and_ends(joint):
    assert (joint.pad_token_id, joint.bos_token_id, joint.eos_token_id) == (0, 1, 2)
    assert joint.source.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
    for encode in (joint.encode_source, joint.encode_target):
        assert [row[-1] for row in encode(["open", "", "fichier"])] == [2, 2, 2]
        assert encode([]) == []


def test_the_first_word_is_the_same_subword_as_elsewhere(joint):
    [[*first, _]] = joint.encode_source(["file"])
    [[*whole, _]] = joint.encode_source(["the file"])
    assert whole[-len(first) :] == first and len(first) < 4


def test_decoding_stops_at_the_end_and_ignores_padding(joint):
    [[*word, eos]] = joint.encode_target(["fichier"])
    generated = torch.tensor([[1, *word, eos, *word], [1, eos, *word, *word]])
    assert joint.decode_target(generated) == ["fichier", ""]
    assert joint.decode_target([[*word, eos, -100, -100], [*word, *word]]) == [
        "fichier",
        "fichier fichier",
    ]
    assert joint.decode_target([]) == []


def test_bytes_that_are_no_text_are_decoded_all_the_same(joint):
    [[first, *_]] = joint.encode_target(["é"])
    assert isinstance(joint.decode_target([[first, 200, 255]])[0], str)


def test_joint_and_separate_vocabularies(joint, separate):
    assert joint.is_joint and joint.source is joint.target
    assert joint.source_vocab_size == joint.target_vocab_size == 285
    assert not separate.is_joint
    assert (separate.source_vocab_size, separate.target_vocab_size) == (270, 275)
    # Each has learned its own language only.
    assert len(separate.encode_source(["fichier"])[0]) > len(separate.encode_target(["fichier"])[0])


def test_separate_vocabularies_take_vocab_size_by_default():
    settings = TokenizerSettings(joint=False, vocab_size=265, target_vocab_size=270)
    tokenizer = TranslationTokenizer.train(PAIRS, settings)
    assert (tokenizer.source_vocab_size, tokenizer.target_vocab_size) == (265, 270)


def test_a_small_corpus_gives_a_smaller_vocabulary_than_asked():
    tokenizer = TranslationTokenizer.train(PAIRS, TokenizerSettings(vocab_size=8000))
    assert MIN_VOCAB_SIZE < tokenizer.source_vocab_size < 400


def test_the_same_corpus_gives_the_same_vocabulary_in_another_process(joint):
    program = (
        "from headwise.tasks.tokenization import *\n"
        f"pairs = [Pair(*p) for p in {[tuple(p) for p in PAIRS]!r}]\n"
        "t = TranslationTokenizer.train(pairs, TokenizerSettings(vocab_size=285))\n"
        "print(t.source.backend_tokenizer.to_str())"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == joint.source.backend_tokenizer.to_str()


def test_the_smallest_vocabulary_is_bytes_and_special_tokens():
    tokenizer = TranslationTokenizer.train(PAIRS, TokenizerSettings(vocab_size=MIN_VOCAB_SIZE))
    assert tokenizer.source_vocab_size == 260
    assert tokenizer.decode_target(tokenizer.encode_target(["fenêtre"])) == ["fenêtre"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 259}, "vocab_size must be at least 260, but is 259"),
        ({"joint": False, "target_vocab_size": 3}, "target_vocab_size must be at least 260"),
        ({"source_vocab_size": 9000}, "source_vocab_size is for separate vocabularies"),
        ({"vocabsize": 1000}, "vocabsize"),
        ({"type": "unigram"}, "'bpe'"),
    ],
)
def test_wrong_settings_are_errors_that_name_the_key(settings, message):
    with pytest.raises(ValidationError, match=message):
        TokenizerSettings(**settings)


def test_no_text_is_an_error():
    with pytest.raises(ValueError, match="pairs is empty"):
        TranslationTokenizer.train([], TokenizerSettings())


# --- saving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["joint", "separate"])
def test_what_is_saved_is_loaded(request, tmp_path, which):
    tokenizer = request.getfixturevalue(which)
    tokenizer.save(tmp_path / "new" / "tokenizer")
    loaded = TranslationTokenizer.load(tmp_path / "new" / "tokenizer")
    texts = ["open the fenêtre", "<eos> ", "中"]
    assert loaded.is_joint == tokenizer.is_joint
    assert loaded.encode_source(texts) == tokenizer.encode_source(texts)
    assert loaded.encode_target(texts) == tokenizer.encode_target(texts)
    assert loaded.decode_target(loaded.encode_target(texts)) == texts
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["tokenizer"]


def test_hugging_face_reads_it_without_us(joint, tmp_path):
    joint.save(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    batch = tokenizer(["open the file and it", "it"], padding=True, return_tensors="pt")
    assert sorted(batch) == ["attention_mask", "input_ids"]
    assert batch["input_ids"][0].tolist() == joint.encode_source(["open the file and it"])[0]
    assert batch["input_ids"][1, -1] == 0 == batch["attention_mask"][1, -1]
    assert tokenizer.decode(batch["input_ids"][1], skip_special_tokens=True) == "it"


def test_saving_replaces_the_folder_as_a_whole(joint, separate, tmp_path):
    folder = tmp_path / "tokenizer"
    separate.save(folder)
    joint.save(folder)
    assert not (folder / "source").exists()
    assert TranslationTokenizer.load(folder).is_joint


def test_a_save_that_fails_leaves_the_old_folder_as_it_was(joint, separate, tmp_path, monkeypatch):
    folder = tmp_path / "tokenizer"
    joint.save(folder)

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(separate.target, "save_pretrained", fail)  # the source is written by then
    with pytest.raises(OSError, match="disk full"):
        separate.save(folder)
    loaded = TranslationTokenizer.load(folder)
    assert loaded.encode_source(["open"]) == joint.encode_source(["open"])


def test_a_folder_without_a_tokenizer_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere: there is no tokenizer\.json"):
        TranslationTokenizer.load(tmp_path / "nowhere")


def test_a_tokenizer_cut_short_is_an_error_that_names_the_folder(joint, tmp_path):
    joint.save(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    file.write_text(file.read_text()[:1000])
    with pytest.raises(ValueError, match=r"tokenizer: the tokenizer cannot be read"):
        TranslationTokenizer.load(tmp_path / "tokenizer")
