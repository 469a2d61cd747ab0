"""The page of `hw.explore`: what it holds is what the model computes, whole and with parts removed.

In a browser: test_explorer_browser.
"""

import html
import json
import re
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from support import tiny_models
from support.pages import Page, explored, payload, unpacked
from support.run_folders import headwise
from support.tiny_tasks import answer, run, write_recipe
from torch import nn
from transformers import (
    BertConfig,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
)

import headwise as hw
from headwise.data.tokenizers import TokenizerSettings, learn_tokenizer

STEP = 1 / 127  # of the largest weight of attention, at most
IDS = torch.tensor([[5, 3, 9, 4, 7, 6]])
PAIR = {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]}
ATTACK = "</script><script>alert(1)</script><!--<img src=//x.example/y onerror=z>"


def only_model(page):
    """The only model of a page."""
    (model,) = page.payload["models"]
    return model


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=32, n_layer=2, n_head=4))


def marian():
    stacks, sizes = ("encoder", "decoder"), {"layers": 2, "attention_heads": 4, "ffn_dim": 32}
    options = {f"{stack}_{name}": size for stack in stacks for name, size in sizes.items()}
    options |= {"pad_token_id": 0, "decoder_start_token_id": 0}
    return MarianMTModel(MarianConfig(vocab_size=23, d_model=32, **options))


@pytest.mark.parametrize("make", [gpt2, marian])
def test_attention_is_that_of_transformers(make):
    model = make().eval()
    batch = {"use_cache": False, **(PAIR if make is marian else {"input_ids": IDS})}
    shown = only_model(hw.explore(model, batch, without="none"))
    places = shown["places"]
    cross = [(each["site"], each["keys"]) for each in places if each["keys"] != each["stack"]]
    assert cross == (2 * [("decoder_cross", "encoder")] if make is marian else [])
    model.set_attn_implementation("eager")
    out = model(**batch, output_attentions=True)
    if make is marian:
        pairs = zip(out.decoder_attentions, out.cross_attentions, strict=True)
        expected = [*out.encoder_attentions, *(each for pair in pairs for each in pair)]
    else:
        expected = out.attentions
    attention = explored(shown).attention
    assert len(attention) == len(expected)
    for heads, weights in zip(attention, expected, strict=True):
        assert heads == pytest.approx(weights[0].detach().numpy(), abs=STEP)


@pytest.mark.parametrize("system", tiny_models.PLANS)
def test_a_causal_model_reads_nothing_later_and_shares_all_of_its_weight(system):
    model = tiny_models.model("causal", system)
    page = explored(only_model(hw.explore(model, {"input_ids": IDS}, without="none")))
    assert page.attention
    for heads in page.attention:
        assert heads.shape[1:] == (6, 6)
        assert not heads[:, ~np.tri(6, dtype=bool)].any()
        if system == "differential":
            assert heads.min() < 0 < heads.max()
        else:
            assert heads.sum(-1) == pytest.approx(1, abs=6 * STEP)
    for weights in page.decisions:
        assert weights.sum(-1) == pytest.approx(1)
    with hw.record(model) as routings:
        model(IDS)
    for shown, (routing,) in zip(page.decisions, routings.values(), strict=True):
        weights = routing.weights.reshape(-1, routing.weights.size(-1))
        expected = weights / weights.sum(-1, keepdim=True)
        assert shown == pytest.approx(
            expected.detach().numpy()
        )  # so that none leads or ties falsely


@pytest.mark.parametrize(
    ("kind", "system"),
    [
        *(("causal", system) for system in tiny_models.PLANS),
        *((kind, "mae") for kind in tiny_models.KINDS if kind not in ("causal", "adaptive")),
    ],
)
@torch.no_grad()
def test_what_a_removal_shows_is_a_pass_under_ablated(kind, system):
    model = tiny_models.model(kind, system).float().eval()
    batch = tiny_models.inputs(kind, rows=1)
    batch.pop("decoder_input_ids", None)
    labels = batch["input_ids"] if kind == "images" else tiny_models.labels(kind, rows=1)
    batch = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in {**batch, "labels": labels}.items()
    }
    shown = only_model(hw.explore(model, batch, without="heads"))
    assert shown["removals"]
    passes = zip([None, *shown["removals"]], shown["losses"], strict=True)
    for number, (removal, loss) in enumerate(passes):
        with ExitStack() as stack:
            if removal is not None:
                option = {removal["part"]: removal["number"]}
                stack.enter_context(hw.ablated(model, removal["path"], **option))
            out = model(**batch)
            # With labels a masked language model has the logits of the hidden tokens alone.
            logits = model(batch["input_ids"]).logits if kind == "masked" else out.logits
        assert loss == pytest.approx(float(out.loss), rel=1e-4, abs=1e-6), removal
        if shown["kind"] == "tokens":
            best = unpacked(shown["ids"])[number][:, 0]
            names = [shown["names"][number] for number in best]
            assert names == [str(token) for token in logits[0].argmax(-1).tolist()]


@pytest.mark.parametrize("make", [gpt2, marian])
def test_padding_is_in_no_loss(make):
    model, lengths = make().eval(), {"input_ids": 6, "decoder_input_ids": 4}
    batch = PAIR if make is marian else {"input_ids": IDS}
    padded = {name: nn.functional.pad(ids, (0, 5)) for name, ids in batch.items()}
    for name in batch:
        mask = (torch.arange(padded[name].size(1)) < lengths[name]).long()[None]
        padded[name.replace("input_ids", "attention_mask")] = mask
    alone, shown = (only_model(hw.explore(model, each)) for each in (batch, padded))
    assert shown["losses"] == pytest.approx(alone["losses"], rel=1e-4)


def test_parts_are_units_or_heads_too_or_none():
    model = tiny_models.model("seq2seq", "mae")
    for without, number in (("none", 0), ("units", 6 * 4), ("heads", 6 * 8)):
        parts = hw.explore(model, {"input_ids": IDS, "labels": IDS}, without=without).removals
        assert len(parts) == number and parts["cost"].is_monotonic_decreasing
        assert set(parts["part"]) == {"none": set(), "units": {"expert"}}.get(
            without, {"expert", "head"}
        )
    # Standard attention has heads alone; an expert of MoA has no head of its own.
    for system, part in (("standard", "head"), ("moa", "expert"), ("agreement", "head")):
        page = hw.explore(tiny_models.model("causal", system), {"input_ids": IDS}, without="heads")
        assert set(page.removals["part"]) == {part}


def test_a_model_is_left_as_it_was():
    model = gpt2()
    modules, before = [*model.modules()], model.eval()(IDS).logits
    hw.explore(model.train(), {"input_ids": IDS})
    assert [*model.modules()] == modules and all(module.training for module in modules)
    assert torch.equal(model.eval()(IDS).logits, before)


@pytest.fixture(scope="module")
def tokenizer():
    settings = TokenizerSettings(vocab_size=300)
    return learn_tokenizer([f"open the file {ATTACK}"] * 9, settings, "lines")


def language_model(tokenizer, **options):
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 1, "attention": "mae"}
    return hw.CausalLM(hw.CausalLMConfig(**{"vocab_size": len(tokenizer), **sizes, **options}))


def test_hostile_tokens_are_text(tokenizer, tmp_path):
    page = hw.explore(language_model(tokenizer), tokenizer, f"open {ATTACK}", name=ATTACK)
    path = page.save(tmp_path / "page.html")
    read = Page(path)
    assert [tag for tag, _ in read.elements].count("script") == 2
    assert not read.loads() and not read.handlers()
    assert payload(path) == json.loads(json.dumps(page.payload))
    text = "".join(explored(only_model(page)).tokens["encoder"])
    assert "alert(1)" in text.replace("\u2581", " ")
    (policy,) = [found["content"] for _, found in read.elements if found.get("http-equiv")]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    frame = page._repr_html_()
    (document,) = re.findall('srcdoc="(.*?)"', frame, re.DOTALL)
    assert html.unescape(document) == path.read_text("utf-8")
    assert 'sandbox="allow-scripts"' in frame and "<script" not in frame


def test_a_masked_text_is_asked_for_what_it_hides():
    texts = ["open the file", "close the file"] * 9
    tokenizer = learn_tokenizer(texts, TokenizerSettings(), "masked")
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 1, "attention": "mae"}
    model = hw.MaskedLM(hw.MaskedLMConfig(vocab_size=len(tokenizer), **sizes))
    hidden = only_model(hw.explore(model, tokenizer, "close the file open the file"))
    asked = np.flatnonzero(np.array(hidden["true"]) >= 0)
    tokens = explored(hidden).tokens["encoder"]
    assert len(asked) == 1 and tokens[asked[0]] == "<mask>" and hidden["is_known"]
    assert hidden["names"][hidden["true"][asked[0]]] in ("▁close", "▁open", "▁file", "▁the")
    given = only_model(hw.explore(model, tokenizer, "open <mask> file"))
    (place,) = np.flatnonzero(np.array(given["true"]) >= 0)
    assert explored(given).tokens["encoder"][place] == "<mask>" and not given["is_known"]
    probability = unpacked(given["shares"])[0, place, 0]
    assert given["losses"][0] == pytest.approx(-np.log(probability))


def test_the_classes_of_tokens_have_their_names(tokenizer):
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 1}
    names = {0: "O", 1: "PER", 2: "LOC"}
    config = BertConfig(vocab_size=len(tokenizer), intermediate_size=16, id2label=names, **sizes)
    shown = only_model(hw.explore(BertForTokenClassification(config), tokenizer, "open the"))
    assert shown["kind"] == "tokens" and shown["names"] == [*names.values()]


class ForeignModel(nn.Module):
    """A model of somebody else's, with a system in it, which reads its input whole or in part."""

    def __init__(self, words, begin=0):
        super().__init__()
        self.embedding, self.begin = nn.Embedding(words, 16), begin
        self.layer = hw.AgreementAttention(16, 4)

    def forward(self, tokens):
        return self.layer(self.embedding(tokens[:, self.begin :])).output


def test_any_module_with_systems_is_shown_by_what_its_output_becomes(tokenizer):
    torch.manual_seed(0)
    model = ForeignModel(len(tokenizer)).eval()
    shown = only_model(hw.explore(model, tokenizer, "open the"))
    ids = tokenizer("open the", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        whole = model(ids)
        with hw.ablated(model, "layer", head=2):
            without = model(ids)
    assert shown["losses"][0] == 0 and shown["removals"][2]["number"] == 2
    assert shown["losses"][3] == pytest.approx(float((without - whole).square().mean()), rel=1e-4)


def test_what_cannot_be_shown_is_refused(tokenizer):
    narrow = language_model(tokenizer, positions="learned", max_positions=3)
    cut = hw.explore(narrow, tokenizer, "open the file again", without="none").payload
    assert cut["says"].endswith("reads the first 3 tokens of it.")
    assert len(cut["models"][0]["stacks"]["encoder"]["tokens"]) == 3
    wide = language_model(tokenizer, embed_dim=80, num_heads=40)
    with pytest.raises(ValueError, match="160,000,000 attention weights, expected at most"):
        hw.explore(wide, {"input_ids": torch.zeros(1, 2000, dtype=torch.long)})
    with pytest.raises(ValueError, match="expected 1: a page shows a single one"):
        hw.explore(gpt2(), {"input_ids": IDS.expand(2, -1)})
    with pytest.raises(ValueError, match="reads 2 positions, expected 3"):
        hw.explore(ForeignModel(len(tokenizer), begin=1), tokenizer, "open the")
    with pytest.raises(ValueError, match="without an"):
        hw.explore(nn.Embedding(9, 4), {"input_ids": IDS})
    for options, message in (
        ({"text": ""}, "text is ''"),
        ({"text": ["open", "save"]}, "expected a text"),
        ({"text": "open", "target": "ouvrir"}, "target is given"),
        ({}, "text is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            hw.explore(language_model(tokenizer), tokenizer, **options)
    broken = language_model(tokenizer)
    broken.lm_head.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="diverged"):
        hw.explore(broken, tokenizer, "open the")


# --- the command ----------------------------------------------------------------------------------


RUNS = [
    *(("translation", "mae"), ("translation", "standard"), ("images", "tim")),
    *(("speech-enhancement", "mae"), ("classification", "moa")),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of some tasks, by task and system."""
    folder, folders = tmp_path_factory.mktemp("runs"), {}
    for task, system in RUNS:
        (folder / task).mkdir(exist_ok=True)
        recipe = write_recipe(task, folder / task)
        folders[task, system] = folder / task / system
        headwise("train", recipe, "--system", system, "--output", folders[task, system])
    return folders


def test_an_item_is_shown_with_what_is_true_of_it(runs, tmp_path):
    for folder in runs.values():
        result = answer("explore", folder, "--item", 1, "--output", tmp_path / "page.html")
        model = payload(tmp_path / "page.html")["models"][0]
        assert model["is_known"] and len(result["removals"]) == len(model["removals"]) > 0
        for removal in result["removals"]:
            assert removal["cost"] == pytest.approx(removal["loss"] - model["losses"][0])
    assert set(model["names"]) == {"long", "short"}


def test_models_are_shown_side_by_side_on_one_text(runs, tmp_path):
    page = tmp_path / "page.html"
    folders = runs["translation", "mae"], runs["translation", "standard"]
    headwise("explore", *folders, folders[0] / "model", "--text", "one two", "--output", page)
    models = payload(page)["models"]
    assert [model["name"] for model in models] == ["mae", "standard", "model"]
    assert len({tuple(model["stacks"]["encoder"]["tokens"]) for model in models}) == 1
    assert models[0]["losses"] == pytest.approx(models[2]["losses"])  # a run, or its folder
    assert not any(model["is_known"] for model in models)  # its own translation


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("translation", "--text two --item 1", "--text and --item are given"),
        ("translation", "--split tset", "--split is 'tset'"),
        ("translation", "--item 9999", "--item is 9999, but test has"),
        ("translation", "--target deux", "--target is given without --text"),
        ("images", "--text cat", "--text is for models of texts"),
        ("speech-enhancement", "--text cat", "--text is for models of texts"),
        ("translation and classification", "--text cat", "different tasks or data"),
    ],
)
def test_what_the_command_cannot_do_is_said(runs, task, arguments, message):
    systems = dict(RUNS)
    asked = [runs[name, systems[name]] for name in task.split(" and ")]
    result = run("explore", *asked, *arguments.split())
    assert result.exit_code == 2 and message in result.stderr.replace("\n", " "), result.output
