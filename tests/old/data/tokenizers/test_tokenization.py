"""Tokenizers: lossless, deterministic, saved whole, and ordinary for Hugging Face."""

import json
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headwise.data.pairs.corpus import Pair
from headwise.data.tokenizers.settings import (
    SPECIAL_TOKENS,
    TEXT_SPECIAL_TOKENS,
    TextTokenizerSettings,
    TokenizerSettings,
)
from headwise.data.tokenizers.tokenization import TextTokenizer, TranslationTokenizer
from headwise.data.tokenizers.vocabularies import LONGEST_WORD

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
    ids = separate.target.encode([text])
    assert separate.decode_target(ids) == [text]
    assert ids[0].count(separate.eos_token_id) == 1


def test_special_tokens_and_ends(joint):
    assert (joint.pad_token_id, joint.bos_token_id, joint.eos_token_id) == (0, 1, 2)
    assert joint.source.tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
    for encode in (joint.source.encode, joint.target.encode):
        assert [row[-1] for row in encode(["open", "", "fichier"])] == [2, 2, 2]
        assert encode([]) == []


def test_the_first_word_is_the_same_subword_as_elsewhere(joint):
    [[*first, _]] = joint.source.encode(["file"])
    [[*whole, _]] = joint.source.encode(["the file"])
    assert whole[-len(first) :] == first and len(first) < 4


def test_decoding_stops_at_the_end_and_ignores_padding(joint):
    [[*word, eos]] = joint.target.encode(["fichier"])
    generated = torch.tensor([[1, *word, eos, *word], [1, eos, *word, *word]])
    assert joint.decode_target(generated) == ["fichier", ""]
    assert joint.decode_target([[*word, eos, -100, -100], [*word, *word]]) == [
        "fichier",
        "fichier fichier",
    ]
    assert joint.decode_target([]) == []


def test_bytes_that_are_no_text_are_decoded_all_the_same(joint):
    [[first, *_]] = joint.target.encode(["é"])
    assert isinstance(joint.decode_target([[first, 200, 255]])[0], str)


def test_joint_and_separate_vocabularies(joint, separate):
    assert joint.is_joint and joint.source is joint.target
    assert joint.source.vocab_size == joint.target.vocab_size == 285
    assert not separate.is_joint
    assert (separate.source.vocab_size, separate.target.vocab_size) == (270, 275)
    # Each has learned its own language only.
    assert len(separate.source.encode(["fichier"])[0]) > len(separate.target.encode(["fichier"])[0])


@pytest.mark.slow
def test_the_same_corpus_gives_the_same_vocabulary_in_another_process(joint):
    program = (
        "from headwise.data.tokenizers.tokenization import *\n"
        f"pairs = {[tuple(p) for p in PAIRS]!r}\n"
        "t = TranslationTokenizer.train(pairs, TokenizerSettings(vocab_size=285))\n"
        "print(t.source.state)"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == joint.source.state


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 259}, "vocab_size is 259, expected at least 260"),
        ({"joint": False, "target_vocab_size": 3}, "target_vocab_size is 3, expected at least 260"),
        ({"source_vocab_size": 9000}, "source_vocab_size is 9000 and joint is true"),
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
    assert loaded.source.encode(texts) == tokenizer.source.encode(texts)
    assert loaded.target.encode(texts) == tokenizer.target.encode(texts)
    assert loaded.decode_target(loaded.target.encode(texts)) == texts
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["tokenizer"]


def test_hugging_face_reads_it_without_us(joint, tmp_path):
    joint.save(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    batch = tokenizer(["open the file and it", "it"], padding=True, return_tensors="pt")
    assert sorted(batch) == ["attention_mask", "input_ids"]
    assert batch["input_ids"][0].tolist() == joint.source.encode(["open the file and it"])[0]
    assert batch["input_ids"][1, -1] == 0 == batch["attention_mask"][1, -1]
    assert tokenizer.decode(batch["input_ids"][1], skip_special_tokens=True) == "it"


def test_a_save_that_fails_leaves_the_old_folder_as_it_was(joint, separate, tmp_path, monkeypatch):
    folder = tmp_path / "tokenizer"
    joint.save(folder)

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(
        separate.target.tokenizer, "save_pretrained", fail
    )  # the source is written by then
    with pytest.raises(OSError, match="disk full"):
        separate.save(folder)
    loaded = TranslationTokenizer.load(folder)
    assert loaded.source.encode(["open"]) == joint.source.encode(["open"])


def test_a_folder_without_a_tokenizer_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere, expected one with tokenizer\.json"):
        TranslationTokenizer.load(tmp_path / "nowhere")


def test_a_tokenizer_cut_short_is_an_error_that_names_the_folder(joint, tmp_path):
    joint.save(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    file.write_text(file.read_text()[:1000])
    with pytest.raises(ValueError, match=r"damaged \(tokenizer\.json is not as it was written\)"):
        TranslationTokenizer.load(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "SHA256SUMS").unlink()  # an older version wrote none
    with pytest.raises(ValueError, match=r"tokenizer, expected a tokenizer that can be read"):
        TranslationTokenizer.load(tmp_path / "tokenizer")


# --- one language -----------------------------------------------------------------------------

LINES = ["open the file", "close the file", "open the window", "", "close it"]
TEXT = TextTokenizer.train(LINES, TextTokenizerSettings(vocab_size=285))
WORDS = TextTokenizer.train(LINES, TextTokenizerSettings(type="word", min_frequency=1))


@pytest.mark.parametrize("tokenizer", [TEXT, WORDS])
def test_one_language_has_a_mask_as_well(tokenizer):
    ids = tokenizer.tokenizer.convert_tokens_to_ids(list(TEXT_SPECIAL_TOKENS))
    assert ids == [0, 1, 2, 3, 4]
    named = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert (*named, tokenizer.unk_token_id, tokenizer.mask_token_id) == (0, 1, 2, 3, 4)


@given(st.text(alphabet=st.characters(exclude_characters="\n", exclude_categories=["Cs"])))
def test_any_line_comes_back_as_it_was(text):
    assert TEXT.decode(TEXT.encode([text])) == TEXT.decode(TEXT.encode([text], eos=False)) == [text]


def test_lines_end_with_eos_or_not():
    for tokenizer in (TEXT, WORDS):
        rows = tokenizer.encode(["open the", ""])
        assert rows[1] == [2] and rows[0][-1] == 2
        assert tokenizer.encode(["open the", ""], eos=False) == [rows[0][:-1], []]
        assert tokenizer.encode([]) == []


def test_the_end_of_a_line_is_a_line_end():
    for tokenizer in (TEXT, WORDS):
        [first, blank, last] = tokenizer.encode(["open the file", "", "close it"])
        assert tokenizer.decode([[1, *first, *blank, *last, 0, -100]]) == [
            "open the file\n\nclose it"
        ]
        assert tokenizer.decode([[*first, *last[:-1]], []]) == ["open the file\nclose it", ""]


def test_words_are_numbered_by_frequency_and_unknown_ones_are_unk():
    [row] = WORDS.encode(["the window <unk> opens it"])
    assert row == [5, row[1], 3, 3, row[4], 2]  # "the" is the most frequent
    assert WORDS.decode([row]) == ["the window <unk> <unk> it"]
    assert WORDS.vocab_size == 5 + 6 and WORDS.has_words and not TEXT.has_words


def test_a_vocabulary_with_gaps_has_room_for_its_highest_id():
    words = models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2, "a": 20}, unk_token="<unk>")
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), **special)
    assert TextTokenizer(made).vocab_size == 21


def test_special_tokens_in_a_text_of_words_are_unknown_words():
    assert WORDS.encode(["the <eos> <pad> <bos> <mask> the"]) == [[5, 3, 3, 3, 3, 5, 2]]


def test_rare_words_are_left_out():
    settings = TextTokenizerSettings(type="word", min_frequency=2)
    assert WORDS.tokenizer.get_vocab().keys() >= {"window", "it"}
    vocabulary = TextTokenizer.train(LINES, settings).tokenizer.get_vocab()
    assert set(vocabulary) == {*TEXT_SPECIAL_TOKENS, "the", "open", "close", "file"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 260}, "vocab_size is 260, expected at least 261: the 256 bytes"),
        ({"type": "word", "vocab_size": 5}, "vocab_size is 5, expected at least 6: a word"),
        ({"type": "character"}, "'bpe', 'word' or 'presegmented'"),
        ({"min_frequency": 0}, "min_frequency"),
    ],
)
def test_wrong_settings_of_one_language(settings, message):
    with pytest.raises(ValidationError, match=message):
        TextTokenizerSettings(**settings)


def test_blank_lines_are_no_text_to_learn_from():
    with pytest.raises(ValueError, match="lines is empty"):
        TextTokenizer.train(["", ""], TextTokenizerSettings())


def test_a_word_of_any_length_is_learned_from_in_pieces_and_encoded_whole():
    """Learning from a line of a million letters would take the square of its length."""
    long = "ab" * 4 * LONGEST_WORD
    tokenizer = TextTokenizer.train([long] * 3, TextTokenizerSettings(vocab_size=400))
    assert max(map(len, tokenizer.tokenizer.get_vocab())) == LONGEST_WORD
    for text in (long, f"{long} {long}", "\x00\x01" * 9, "e" + "\u0301" * 2000):
        assert tokenizer.decode(tokenizer.encode([text])) == [text]
    assert len(tokenizer.encode([long])[0]) < 20


def test_no_code_beside_a_tokenizer_is_run_whatever_the_answer(tmp_path, monkeypatch):
    tokenizer = TextTokenizer.train(2 * ["open the file"], TextTokenizerSettings())
    tokenizer.save(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    given = json.loads(config.read_text(encoding="utf-8"))
    given |= {"auto_map": {"AutoTokenizer": [None, "hostile.Own"]}, "tokenizer_class": "Own"}
    config.write_text(json.dumps(given), encoding="utf-8")
    # It would be run as a copy somewhere else.
    code = f"from pathlib import Path\nPath({str(tmp_path / 'was here')!r}).touch()\n"
    (tmp_path / "hostile.py").write_text(code, encoding="utf-8")
    # A text to translate may stand where the answer to a question is read.
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with suppress(ValueError):
        TextTokenizer.load(tmp_path)
    with suppress(ValueError):
        TextTokenizer.train(["a"], TextTokenizerSettings(pretrained=str(tmp_path)))
    assert not (tmp_path / "was here").exists()
