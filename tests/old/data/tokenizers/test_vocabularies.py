"""Vocabularies that somebody else has made: tokenizers of Hugging Face, and words in pieces."""

import copy
import shutil
from pathlib import Path

import pytest
import tiny_tasks
import torch
import yaml
from pydantic import ValidationError
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from headwise.data.tokenizers.settings import TextTokenizerSettings, TokenizerSettings
from headwise.data.tokenizers.tokenization import TextTokenizer, TranslationTokenizer
from headwise.recipes import load_recipe
from headwise.recipes.catalogue import task_class
from headwise.runs.evaluating import read_outcome
from headwise.runs.one_run import train_system
from headwise.runs.preparing import claim_folder, prepare_task
from headwise.runs.reading import open_run

QUIET = Console(quiet=True)
BERTS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["open the file", "close the file", "open it", "one two three four five six seven eight"]


def berts():
    """As BERT's: pieces of words, a begin and an end that it calls otherwise, a template."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    backend.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=BERTS, show_progress=False)
    )
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), BERTS, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{role}_token": token for role, token in roles.items()}
    )


def gpts():
    """As GPT-2's: bytes, and one special token for everything but padding."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=270,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    return PreTrainedTokenizerFast(tokenizer_object=backend, **ends)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of tokenizers as somebody else has saved them."""
    made = {}
    for name, tokenizer in (("bert", berts()), ("gpt", gpts())):
        made[name] = str(tmp_path_factory.mktemp(name))
        tokenizer.save_pretrained(made[name])
    made["bare"] = str(tmp_path_factory.mktemp("bare"))
    shutil.copy(f"{made['bert']}/tokenizer.json", made["bare"])
    return made


def text_tokenizer(name, *, mask=False, **special):
    return TextTokenizer.ready_made(
        TextTokenizerSettings(pretrained=name, special_tokens=special), mask=mask
    )


# Special tokens


def test_begin_and_end_are_those_of_bert_and_its_template_is_left_out(folders):
    tokenizer = text_tokenizer(folders["bert"], mask=True)
    names = tokenizer.tokenizer.convert_ids_to_tokens
    ids = [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id]
    assert names([*ids, tokenizer.mask_token_id]) == ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    (row,) = tokenizer.encode(["open the file"])
    assert names(row)[-1] == "[SEP]" and "[CLS]" not in names(row)
    assert tokenizer.decode([row]) == ["open the file"]
    assert tokenizer.encode(["open it"], eos=False)[0] == tokenizer.encode(["open it"])[0][:-1]


def test_a_token_that_is_missing_is_asked_for_and_added(folders):
    with pytest.raises(ValueError, match=r"no token for pad: .*tokenizer.special_tokens={pad: <p"):
        text_tokenizer(folders["gpt"])
    with pytest.raises(ValueError, match="no token for mask"):
        text_tokenizer(folders["gpt"], mask=True, pad="<pad>")


def test_added_tokens_come_behind_all_others(folders):
    tokenizer = text_tokenizer(folders["gpt"], pad="<pad>")
    assert tokenizer.pad_token_id == tokenizer.vocab_size - 1
    text = "open <pad> the  file\tü"  # what stands in a text is ordinary text
    (row,) = tokenizer.encode([text])
    assert tokenizer.pad_token_id not in row and tokenizer.decode([row]) == [text]


def test_padding_has_a_token_of_its_own(folders):
    with pytest.raises(ValueError, match=r"bos and pad are both '<\|endoftext\|>', expected diff"):
        text_tokenizer(folders["gpt"], pad="<|endoftext|>")


def test_a_translation_does_not_end_where_it_begins(folders):
    given = {"pretrained": folders["gpt"], "special_tokens": {"pad": "<pad>"}}
    with pytest.raises(ValueError, match=r"bos and eos are the same token .*{bos: <bos>}"):
        TranslationTokenizer.ready_made(TokenizerSettings(**given))
    given["special_tokens"]["bos"] = "<bos>"
    made = TranslationTokenizer.ready_made(TokenizerSettings(**given))
    assert made.is_joint and made.decode_target(made.target.encode(["open it"])) == ["open it"]


def test_a_file_of_the_tokenizers_library_is_enough(folders):
    roles = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    bare, whole = text_tokenizer(folders["bare"], **roles), text_tokenizer(folders["bert"])
    assert bare.encode(TEXTS) == whole.encode(TEXTS)


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"open": 0, "it": 1, "[UNK]": 2}, unk_token="[UNK]"),
        models.BPE({"o": 0, "p": 1, "[UNK]": 2}, [], unk_token="[UNK]"),
        models.Unigram([("open", -1.0), ("it", -1.0), ("[UNK]", -2.0)], unk_id=2),
    ],
)
def test_the_unknown_token_may_be_named_by_the_model_alone(model, tmp_path):
    Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    tokenizer = text_tokenizer(str(tmp_path), pad="P", bos="B", eos="E")
    assert tokenizer.unk_token_id == 2
    assert tokenizer.is_unknown(torch.tensor(tokenizer.encode(["x"]))).tolist() == [[True, False]]


def test_the_unknown_token_of_a_model_that_lacks_it_is_none(tmp_path):
    Tokenizer(models.WordLevel({"open": 0}, "[UNK]")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = text_tokenizer(str(tmp_path), pad="P", bos="B", eos="E")
    assert tokenizer.unk_token_id is None and tokenizer.vocab_size == 4


def test_no_tokenizer_of_that_name(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer.pretrained is .*none, expected a folder with"):
        text_tokenizer(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pretrained": "x", "vocab_size": 300}, "vocab_size is 300 and pretrained is 'x'"),
        ({"pretrained": "x", "joint": False}, "joint is False and pretrained is 'x'"),
        ({"special_tokens": {"pad": "x"}}, "special_tokens is given without pretrained"),
        ({"pretrained": "x", "special_tokens": {"start": "x"}}, "'pad', 'bos', 'eos'"),
        ({"marks": "▁"}, "marks is '▁', expected only with type: presegmented"),
        ({"type": "presegmented", "vocab_size": 4}, "expected at least 5: a piece"),
    ],
)
def test_settings_that_contradict_each_other(given, said):
    with pytest.raises(ValidationError, match=said):
        TokenizerSettings(**given)


# Words in pieces


@pytest.mark.parametrize(
    ("marks", "line", "whole"),
    [
        ("@@", "the fi@@ le is o@@ p@@ en", "the file is open"),
        ("▁", "▁the ▁fi le ▁is ▁o p en", "the file is open"),
        ("@@", "a", "a"),
        ("▁", "", ""),
        ("@@", "cut o@@", "cut o"),
    ],
)
def test_pieces_are_joined_to_words(marks, line, whole):
    settings = TextTokenizerSettings(type="presegmented", marks=marks, min_frequency=1)
    tokenizer = TextTokenizer.train([line, "x"], settings)
    (row,) = tokenizer.encode([line])
    assert len(row) == len(line.split()) + 1
    assert tokenizer.decode([row]) == [whole] == [tokenizer.join(line)]
    assert not tokenizer.has_words


def test_what_the_vocabulary_lacks_is_unknown():
    settings = TextTokenizerSettings(type="presegmented", vocab_size=7, min_frequency=1)
    tokenizer = TextTokenizer.train(["a a b@@ c"], settings)
    ids = torch.tensor(tokenizer.encode(["a c"])[0])
    assert tokenizer.is_unknown(ids).tolist() == [False, True, False]


# In tasks


def in_pieces(line):
    """Every word in two pieces, as subword-nmt writes them."""
    return " ".join(f"{word[:1]}@@ {word[1:]}" if len(word) > 1 else word for word in line.split())


def train(raw, folder):
    (folder / "recipe.yaml").write_text(yaml.safe_dump(raw))
    recipe = load_recipe(str(folder / "recipe.yaml")).recipe
    run = folder / "run"
    claim_folder(run, recipe)
    train_system(recipe, "run", run, prepare_task(recipe, run, QUIET), QUIET)
    return recipe, run


TASKS = ["translation", "language-modelling", "masked-language-modelling", "classification"]


def raw_recipe(task, folder):
    raw = yaml.safe_load(tiny_tasks.write_recipe(task, folder).read_text())
    raw.pop("systems")
    return raw


@pytest.mark.parametrize("task", TASKS)
def test_a_run_with_a_ready_made_tokenizer_stands_alone(task, folders, tmp_path):
    gone = shutil.copytree(folders["bert"], tmp_path / "gone")
    raw = raw_recipe(task, tmp_path) | {"tokenizer": {"pretrained": str(gone)}}
    recipe, run = train(raw, tmp_path)
    size = len(berts())
    assert task_class(task).nominal_config(recipe).vocab_size == size
    shutil.rmtree(gone)
    opened, model = open_run(run)
    assert model.config.vocab_size == size
    assert prepare_task(opened, run, QUIET).notes["vocabulary"].startswith(f"{size} subwords")
    with pytest.raises(ValueError, match=r"tokenizer.pretrained is .*gone"):
        prepare_task(recipe, tmp_path / "another", QUIET)


def test_translations_of_pieces_are_scored_as_words(tmp_path):
    raw = raw_recipe("translation", tmp_path)
    for side in ("en", "fr"):
        path = tmp_path / f"train.{side}"
        lines = path.read_text().splitlines()
        path.write_text("\n".join(map(in_pieces, lines)) + "\n")
    raw["tokenizer"] = {"type": "presegmented", "vocab_size": 500}
    _, run = train(raw, tmp_path)
    outcome = read_outcome(run)
    shown = [text for s in outcome.samples for text in (*s.given.values(), s.made)]
    assert shown and not any("@@" in text for text in (*shown, *outcome.outputs))


def test_word_perplexity_counts_words_and_not_pieces(tmp_path):
    counts = []
    for pieces in (False, True):
        folder = tmp_path / str(pieces)
        folder.mkdir()
        raw = copy.deepcopy(raw_recipe("language-modelling", folder))
        path = Path(raw["data"]["train"])
        if pieces:
            lines = path.read_text().splitlines()
            path.write_text("\n".join(map(in_pieces, lines)) + "\n")
            raw["tokenizer"] = {"type": "presegmented", "vocab_size": 400, "min_frequency": 1}
        (folder / "recipe.yaml").write_text(yaml.safe_dump(raw))
        task = prepare_task(load_recipe(str(folder / "recipe.yaml")).recipe, folder / "run", QUIET)
        counts.append(sum(float(part.words().sum()) for part in (task.train, task.test)))
        counts.append(sum(float(part.utf8_bytes().sum()) for part in (task.train, task.test)))
    assert counts[:2] == pytest.approx(counts[2:], rel=0.02)  # the parts are divided by words
