"""Models of no run, as `save_pretrained` writes them: opened, given texts, and analysed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers as tf
from support.tiny_tasks import answer, run, write_lines

import headwise as hw
from headwise.data.tokenizers import TokenizerSettings, learn_tokenizer
from headwise.report.text_models import hide_words, open_transformers_model, text_batch

TEXTS = ["open the file", "close the file again", "the kernel is dead", "read every page of it"]
LONGEST = 24
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BERT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 16,
    "max_position_embeddings": LONGEST,
    "pad_token_id": 0,
}
STACKS = {
    f"{stack}_{name}": number
    for stack in ("encoder", "decoder")
    for name, number in {"layers": 1, "attention_heads": 3, "ffn_dim": 16}.items()
}
PAIR = {"d_model": 24, "max_position_embeddings": LONGEST, "decoder_start_token_id": 0}
CLASSES = {"id2label": {0: "short", 1: "long"}}
GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": LONGEST, **IDS}
MODELS = {
    "gpt2": (tf.GPT2LMHeadModel, GPT2),
    "bert": (tf.BertForMaskedLM, BERT),
    # Its positions begin behind that of padding.
    "roberta": (tf.RobertaForMaskedLM, {**BERT, "max_position_embeddings": LONGEST + 1}),
    "classifier": (tf.BertForSequenceClassification, {**BERT, **CLASSES}),
    "marian": (tf.MarianMTModel, {**PAIR, **STACKS, **IDS, "forced_eos_token_id": None}),
}
TARGETS = {"marian": "close it"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of each model, with its tokenizer beside it."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = learn_tokenizer(2 * TEXTS, TokenizerSettings(vocab_size=300), "masked")
    for name, (kind, settings) in MODELS.items():
        torch.manual_seed(0)
        model = kind(kind.config_class(vocab_size=len(tokenizer), **settings))
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_text_that_is_too_long_is_cut_where_the_model_ends(saved, name):
    model, tokenizer = open_transformers_model(saved / name)
    batch = text_batch(model, tokenizer, "page " * 40, TARGETS.get(name))
    assert batch["input_ids"].shape == (1, LONGEST)
    assert ("labels" in batch) == (name in ("gpt2", "marian"))
    out = model(**batch)
    assert out.logits.isfinite().all() and (out.loss is None) == ("labels" not in batch)


@torch.no_grad()
def test_one_token_in_seven_is_hidden(saved):
    model, tokenizer = open_transformers_model(saved / "bert")
    batch = text_batch(model, tokenizer, "open the file close the file again")
    hidden = hide_words(batch, tokenizer)
    ids, labels = hidden["input_ids"], hidden["labels"]
    is_hidden = ids == tokenizer.mask_token_id
    words = int((~torch.isin(batch["input_ids"], torch.tensor(tokenizer.all_special_ids))).sum())
    assert is_hidden.sum() == -(-words // 7) and torch.equal(is_hidden, labels != -100)
    assert torch.equal(torch.where(is_hidden, labels, ids), batch["input_ids"])


@torch.no_grad()
def test_pruned_heads_stay_away_and_gates_beside_a_model_are_loaded(saved, tmp_path):
    model, tokenizer = open_transformers_model(saved / "gpt2")
    batch = text_batch(model, tokenizer, TEXTS[0])
    hw.prune_heads(model, {"transformer.h.1.attn": [1]})
    expected = model(**batch).logits
    model.save_pretrained(pruned := tmp_path / "pruned")
    tokenizer.save_pretrained(pruned)
    torch.testing.assert_close(open_transformers_model(pruned)[0](**batch).logits, expected)
    gated = shutil.copytree(saved / "gpt2", tmp_path / "gated")
    hw.save_gates(hw.gate_heads(open_transformers_model(gated)[0], "gated"), gated)
    result = answer(*_command(gated, tmp_path, TEXTS), "--ablation-level", "none")
    (findings,) = result["findings"].values()
    assert any("does" in text and "head" in text for text in findings)


def _command(model, folder, texts):
    file = folder / "text.txt"
    write_lines(file, texts)
    return "analyse", model, "--text", file, "--output", folder / "page"


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_language_models_are_analysed_on_a_text(saved, tmp_path, name):
    result = answer(*_command(saved / name, tmp_path, 3 * TEXTS))
    assert "12 lines" in result["data"][name]
    assert any("Of the 6 heads" in text for text in result["findings"][name])
    assert Path(result["page"]).is_file()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("analyse gpt2", "which has no data: add --text FILE"),
        ("analyse gpt2 --text text --split train", "neither --set nor --split"),
        ("analyse gpt2 --text nothing", "is empty, expected a text"),
        ("analyse marian --text text", "--text is for language models, but the model is a Marian"),
        ("analyse without --text text", "has no tokenizer, expected that of the model beside it"),
        ("analyse broken --text text", "cannot be read that gives a model of transformers"),
        ("analyse infinite --text text", "has weights that are not finite, the first in"),
        ("analyse nobody/nothing --text text", "is no folder, and no name on the hub"),
    ],
)
def test_what_is_wrong_is_said(saved, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(shutil.copytree(saved, tmp_path / "here"))
    Path("without").mkdir()
    Path("broken").mkdir()
    Path("broken/config.json").write_text(json.dumps({}))
    for name in ("config.json", "model.safetensors"):
        shutil.copy(Path("gpt2") / name, "without")
    if "infinite" in command:
        model, tokenizer = open_transformers_model("gpt2")
        model.lm_head.weight.data[0] = torch.inf
        model.save_pretrained("infinite")
        tokenizer.save_pretrained("infinite")
    for name, text in {"text": "open the file", "nothing": " "}.items():
        write_lines(Path(name), [text])
    result = run(*command.split())
    assert result.exit_code == 2 and message in result.output.replace("\n", ""), result.output
