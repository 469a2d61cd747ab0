"""Models that are of no run: opened from folders, on the page of `explore`, and served."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf
from saved_models import LONGEST, MODELS, tokenizer
from typer.testing import CliRunner

import headwise as hw
from headwise.cli import app
from headwise.data.tokenizers.vocabularies import token_names
from headwise.report.explorer.inputs import Source
from headwise.report.explorer.payload import Asked, Question
from headwise.report.explorer.recording import Explorer
from headwise.report.plain_models import is_plain, longest_input, open_plain, task_of
from headwise.report.text_items import TextItems

TASKS = {
    "gpt2": "language-modelling",
    "llama": "language-modelling",
    "bert": "masked-language-modelling",
    "roberta": "masked-language-modelling",
    "classifier": "classification",
    "body": "",
    "marian": "translation",
    "t5": "translation",
}


def typed(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_is_opened(saved, name):
    assert is_plain(saved(name))
    model, of_texts = open_plain(saved(name))
    assert type(model) is type(MODELS[name](300)) and not model.training
    assert of_texts.get_vocab() == tokenizer().get_vocab()
    assert task_of(model) == TASKS[name]
    assert longest_input(model, of_texts) == (None if name == "t5" else LONGEST)


@torch.no_grad()
def test_a_pruned_model_is_opened(saved, tmp_path):
    model, of_texts = open_plain(saved("gpt2"))
    hw.prune_heads(model, {0: [1]}).save_pretrained(tmp_path)
    of_texts.save_pretrained(tmp_path)
    opened, _ = open_plain(tmp_path)
    tokens = torch.tensor([[5, 6, 7]])
    assert torch.equal(opened(tokens).logits, model(tokens).logits)


def test_a_model_of_ours_opens_with_its_head(tmp_path):
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 1}
    config = hw.CausalLMConfig(
        vocab_size=300, **sizes, attention={"system": "moa", "size": "2K4E4D"}
    )
    hw.CausalLM(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    model, of_texts = open_plain(tmp_path)
    assert type(model) is hw.CausalLM and task_of(model) == "language-modelling"
    (tmp_path / "text").write_text("open the file\n")
    items = TextItems(model, of_texts, tmp_path / "text")
    ((total, count),) = items.losses().tolist()
    out = model(**items.batches[0])
    assert total / count == pytest.approx(float(out.token_loss)) != pytest.approx(float(out.loss))


def eager_attentions(model, run, of_texts):
    """What the model itself says of its attention, by site, on the tokens of a page."""
    numbers = {name.replace("▁", " "): i for i, name in token_names(of_texts).items()}

    def ids(stack):
        return torch.tensor([[numbers[token] for token in run.stacks[stack].tokens]])

    model.set_attn_implementation("eager")
    given = {"output_attentions": True}
    if "input" in run.stacks or len(run.stacks) == 1:
        out = model(ids(next(iter(run.stacks))), **given)
        return {"encoder_self": out.attentions, "decoder_self": out.attentions}
    out = model(ids("encoder"), decoder_input_ids=ids("decoder"), **given)
    return {
        "encoder_self": out.encoder_attentions,
        "decoder_self": out.decoder_attentions,
        "decoder_cross": out.cross_attentions,
    }


@torch.no_grad()
def test_an_output_that_is_not_finite_is_an_error(saved):
    model, of_texts = open_plain(saved("gpt2"))
    model.transformer.ln_f.bias[0] = torch.inf
    with pytest.raises(ValueError, match="the output of the model has numbers that are not finite"):
        hw.explore(model, of_texts, "open the file")


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_the_page_shows_what_each_head_reads(saved, name):
    model, of_texts = open_plain(saved(name))
    model.train()
    (run,) = hw.explore(model, of_texts, "open the <mask>", name=name).payload.runs
    assert all(module.training for module in model.modules())
    model.eval()
    expected = eager_attentions(model, run, of_texts)
    layers = 1 if len(run.stacks) == 2 else 2
    assert len(run.places) == layers * (3 if len(run.stacks) == 2 else 1)
    for place in run.places:
        (attention,) = place.attentions
        shown = np.stack([head.numbers() for head in attention.heads])
        known = expected[place.site][place.layer][0].numpy()
        # The page has 255 steps of the root of the weight.
        np.testing.assert_allclose(np.sqrt(shown), np.sqrt(known), rtol=0, atol=0.5 / 255 + 1e-5)
        assert place.decides == "nothing"


def test_outputs_of_each_kind(saved):
    def run(name, text, **options):
        return hw.explore(*open_plain(saved(name)), text, **options).payload.runs[0]

    continued = run("gpt2", "open the")
    stack = continued.stacks["decoder"]
    best = {each.position: each.best[0].text for each in continued.output.predictions}
    assert [best[i] for i in range(stack.given, len(stack.tokens))] == stack.tokens[stack.given :]
    filled = run("bert", "open <mask> file")
    (position,) = [each.position for each in filled.output.predictions]
    assert filled.stacks["encoder"].tokens[position] == "<mask>"
    classes = run("classifier", "open").output.classes
    assert {each.text for each in classes} == {"short", "long"}
    assert sum(each.probability for each in classes) == pytest.approx(1)
    translated = run("marian", "open the file", target="close").stacks["decoder"]
    assert "".join(translated.tokens) == "<pad> close" and translated.given is None
    assert run("t5", "open the file").stacks["decoder"].given == 1


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (tf.T5Model(tf.T5Config(vocab_size=9, d_model=8, num_layers=1)), "decoder writes nothing"),
        (tf.BloomModel(tf.BloomConfig(vocab_size=300, hidden_size=8, n_head=2)), "layouts="),
        (tf.ViTModel(tf.ViTConfig(hidden_size=24)), "which reads pixel_values"),
    ],
)
def test_models_that_cannot_be_explored(model, said):
    with pytest.raises(ValueError, match=said):
        hw.explore(model, tokenizer(), "open the file")


def test_a_model_of_another_class_is_explored_by_its_layout(saved):
    class Ours(tf.models.gpt2.modeling_gpt2.GPT2Attention):
        pass

    model, of_texts = open_plain(saved("gpt2"))
    layouts = {"Ours": hw.HeadLayout("c_proj", "num_heads")}
    before = hw.explore(model, of_texts, "open the file").payload
    for block in model.transformer.h:
        block.attn.__class__ = Ours
    assert hw.explore(model, of_texts, "open the file", layouts=layouts).payload == before


@pytest.mark.parametrize("name", ["gpt2", "bert", "marian"])
@torch.no_grad()
def test_a_head_removed_on_the_served_page_is_an_ablated_one(saved, name):
    explorer = Explorer([saved(name)], Source(text="open the <mask>", target=None))
    page = explorer.record(served=True)
    assert page.served and page.takes_target == (name == "marian")
    removal = next(each for each in page.runs[0].ablations if each.head == 2)
    asked = Asked(run=0, path=removal.path, name=removal.name, options=removal.options)
    answer = explorer.answer(Question(ablations=[asked]))
    assert [each.head for each in answer.runs[0].ablated] == [2]
    model, of_texts = open_plain(saved(name))
    with hw.ablated(model, removal.path.removesuffix(".head_gates.system"), head=2):
        by_hand = hw.explore(model, of_texts, "open the <mask>").payload.runs[0]
    assert answer.runs[0].output == by_hand.output != page.runs[0].output
    assert answer.runs[0].places == by_hand.places
    assert explorer.answer(Question()).runs == page.runs


def test_gates_beside_a_model_are_loaded(saved, tmp_path):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "gated")
    model, _ = open_plain(folder)
    hw.save_gates(hw.gate_heads(model, "gated"), folder)
    (run,) = Explorer([folder], Source(text="open")).record().runs
    assert [place.system for place in run.places] == 2 * ["gated"]
    assert run.places[0].decides == "position" and run.places[0].attentions[0].heads


def test_the_command(saved, tmp_path):
    page = tmp_path / "page.html"
    two = saved("gpt2"), saved("llama")
    found = typed("explore", *two, "--text", "open the file", "--output", page)
    assert found.exit_code == 0, found.output
    assert page.stat().st_size > 10_000


def test_side_by_side_with_a_run(runs, saved):
    pair = [runs("translation", "mae"), saved("marian")]
    record = Explorer(pair, Source(text="one two")).record()
    assert [run.task for run in record.runs] == 2 * ["translation"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("explore EMPTY a", "neither a run of headwise, which has a recipe.yaml, nor a model"),
        ("explore WITHOUT a", "has no tokenizer, expected that of the model beside it"),
        ("explore BROKEN a", "cannot be read that gives a model of transformers"),
        ("explore GPT2", "is a model without data, expected a text"),
        ("explore GPT2 a --set evaluation.seed=1", "is no run: it has no recipe"),
        ("explore GPT2 MARIAN a", "are of different tasks"),
        ("explore GPT2 a --target b", "translates nothing"),
        ("explore nobody/nothing a", "is no folder, and no name on the hub"),
        ("explore /no/such/folder a", "there is no folder /no/such/folder, expected that of a run"),
        ("analyse GPT2", "is a model without data, expected --text FILE"),
        ("analyse GPT2 --text TEXT --part train", "neither --set, --data nor --part"),
        ("analyse RUN GPT2 --text TEXT", "expected models of no run alone"),
        ("analyse GPT2 --text missing.txt", "missing.txt: cannot be read"),
        ("analyse GPT2 --text NOTHING", "is empty, expected a text"),
        ("analyse MARIAN --text TEXT", "line 1: expected a text, a tab and its translation"),
        ("analyse CLASSIFIER --text PAIRS", "has the class 'b', expected one of 0, short, 1, long"),
    ],
)
def test_what_is_wrong_is_said(runs, saved, tmp_path, monkeypatch, line, said):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "without", "broken"):
        Path(name).mkdir()
    Path("broken/config.json").write_text("{}")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(saved("gpt2") / name, "without")
    Path("text").write_text("open the file\n")
    Path("pairs").write_text("a\tb\n")
    Path("nothing").write_text("\n \n")
    known = {"GPT2": saved("gpt2"), "MARIAN": saved("marian"), "CLASSIFIER": saved("classifier")}
    if "RUN" in line.split():
        known["RUN"] = runs("classification", "mae")
    words = [known.get(word, word.lower() if word.isupper() else word) for word in line.split()]
    found = typed(*words)
    assert found.exit_code == 2 and said in found.output.replace("\n", ""), found.output


def test_a_page_of_analysis(saved, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(3 * ["open the file", "", "the kernel is dead again and again"]))
    two = saved("gpt2"), saved("llama")
    found = typed("analyse", *two, "--text", text, "--against", two[1], "--output", tmp_path)
    assert found.exit_code == 0, found.output
    assert "<svg" in (tmp_path / "analysis.html").read_text(encoding="utf-8")
    record = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    assert [run["name"] for run in record["runs"]] == ["gpt2", "llama"]
    assert record["against"] == "llama" and record["part"].startswith("text.txt: 6 lines, ")
    for run in record["runs"]:
        assert len(run["ablations"]["results"]) == 6
        assert run["ablations"]["score"] == "nats per token"
        assert run["likeness"]["modules"][0]["mean_attention"] is not None
