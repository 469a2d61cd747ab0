"""Heads that are cut out are heads that give zeros, also after saving and loading."""

import copy
import json

import pytest
import torch
import transformers as tf
from support.architectures import (
    MODELS,
    assert_near,
    attentions,
    build,
    gate,
    inputs,
    refused,
    tokens,
    width_of,
    without,
)
from torch import nn
from torch.nn.utils import parametrizations, prune

import headwise as hw

# Heads that have norms, sinks or biases of their own, or share maps in ways that are not known.
UNPRUNABLE = ("olmo2", "gpt-oss", "t5", "phi3", "vit to gpt2")
PRUNABLE = [name for name in MODELS if name not in UNPRUNABLE]


@pytest.mark.parametrize("name", PRUNABLE)
@torch.no_grad()
def test_pruned_heads_are_ablated_ones(name):
    """One of each group that shares keys in one attention, a whole group in another."""
    model = build(name)
    batch, paths = inputs(name, model), list(attentions(model))
    heads = {paths[-1]: [1, 2]} if name == "albert" else {paths[-1]: [1, 2], paths[0]: [2, 3]}
    attentions(model)[paths[-1]].weight.requires_grad_(False)
    pruned = copy.deepcopy(model)
    assert hw.prune_heads(pruned, heads) is pruned
    with without(model, heads):
        assert_near(pruned(**batch).logits, model(**batch).logits)
    after, before = ([p.requires_grad for p in m.parameters()] for m in (pruned, model))
    assert after == before and not all(before)
    for path in heads:
        assert width_of(attentions(pruned)[path]) * 2 == width_of(attentions(model)[path])


@pytest.mark.parametrize("evenly", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "bert", "qwen3", "gpt-neox", "bart", "bert to bert"])
@torch.no_grad()
def test_pruned_models_are_saved_loaded_gated_and_generate(name, evenly, tmp_path):
    model = build(name)
    paths, plain = list(attentions(model)), copy.deepcopy(model)
    if evenly:
        gone = {path: [0, 3] for path in paths}
        hw.prune_heads(model, gone)
    else:
        gone = {paths[-1]: [0, 1, 3], paths[0]: [0, 3]}
        hw.prune_heads(model, {paths[-1]: torch.tensor([0, 1])})
        hw.prune_heads(model, {paths[-1]: [1], paths[0]: [0, 3]})  # 1 was 3 before
    left = [*model.config.headwise_heads_left.values()]
    assert left == ([[1, 2]] * len(paths) if evenly else [[2], [1, 2]])
    model.save_pretrained(tmp_path)
    kind, batch = type(model), inputs(name, model)
    with without(plain, gone):
        assert_near(model(**batch).logits, plain(**batch).logits)
    with pytest.raises(RuntimeError, match="mismatched_sizes"):
        kind.from_pretrained(tmp_path)
    loaded = hw.load_pruned(kind, tmp_path, attn_implementation="eager").eval()
    state, expected = loaded.state_dict(), model(**batch).logits
    saved = {k: v for k, v in model.state_dict().items() if "pooler" not in k}
    assert type(loaded) is kind and all(torch.equal(state[k], v) for k, v in saved.items())
    assert_near(loaded(**batch).logits, expected)
    if name != "bert":
        arguments = {"input_ids": tokens(2, 5), "max_new_tokens": 4}
        cached, uncached = (model.generate(**arguments, use_cache=use) for use in (True, False))
        assert torch.equal(cached, uncached)
    hw.prune_heads(loaded, {paths[-1]: [1] if evenly else []}).save_pretrained(tmp_path / "again")
    again = hw.load_pruned(kind, tmp_path / "again").eval()
    assert_near(hw.gate_heads(again, "gated")(**batch).logits, loaded(**batch).logits)


def test_whole_models_load_too_and_other_classes_over_the_same_base(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    assert hw.load_pruned(tf.GPT2Model, tmp_path).h[0].attn.num_heads == 4
    hw.prune_heads(build("gpt2").transformer, {"h.1.attn": [2]}).save_pretrained(tmp_path)
    left = json.loads((tmp_path / "config.json").read_text())["headwise_heads_left"]
    assert left == {"h.1.attn": [0, 1, 3]}
    for kind in (tf.GPT2Model, tf.GPT2ForSequenceClassification):
        assert hw.load_pruned(kind, tmp_path).base_model.h[1].attn.num_heads == 3
    refused({"AutoModel", "GPT2LMHeadModel"}, hw.load_pruned, tf.AutoModel, tmp_path)


def changed(change_projection):
    model = build("bert")
    change_projection(model.bert.encoder.layer[0].attention.output.dense)
    return model


def with_config_of_a_pruned_model():
    """All heads of layer 1 are there, of which the config says that two are left."""
    pruned = hw.prune_heads(build("gpt2"), {"transformer.h.1.attn": [0, 1]})
    return tf.GPT2LMHeadModel(pruned.config)


def test_a_new_model_is_pruned_once_its_config_says_no_more_which_heads_are_left():
    model = with_config_of_a_pruned_model()
    del model.config.headwise_heads_left
    hw.prune_heads(model, {"transformer.h.1.attn": [0]})
    assert model.config.headwise_heads_left == {"h.1.attn": [1, 2, 3]}


def of_fixed_width(name):
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 4, "decoder_layers": 1}
    kind = getattr(tf, name)
    return kind(kind.config_class(**sizes, num_hidden_layers=1))


LEFT = {"2 heads", "transformer.h.1.attn", "has 4", "load_pruned", "headwise_heads_left"}
REFUSED = [
    (with_config_of_a_pruned_model, {"transformer.h.1.attn": [0]}, LEFT),
    (with_config_of_a_pruned_model, {"transformer.h.0.attn": [0]}, LEFT),
    (lambda: build("gpt2"), {"transformer.h.0.attn": [4]}, {"h.0.attn", "4", "3"}),
    (lambda: build("gpt2"), {"transformer.h.0.attn": [-1]}, {"h.0.attn", "-1", "3"}),
    (lambda: build("gpt2"), {"transformer.h.0.attn": [1.5]}, {"h.0.attn", "1.5", "3"}),
    (lambda: build("gpt2"), {0: [1]}, {"0", "h.0.attn"}),  # no numbers of layers
    (
        lambda: hw.prune_heads(build("gpt2"), {"transformer.h.0.attn": [0]}),
        {"transformer.h.0.attn": [3]},  # there are three left
        {"h.0.attn", "3", "2"},
    ),
    (
        lambda: build("gpt2"),  # the first alone could be cut
        {"transformer.h.0.attn": [0], "transformer.h.1.attn": range(4)},
        {"h.1.attn", "not all"},
    ),
    (lambda: build("gpt2"), {"lm_head": [0]}, {"lm_head", "h.0.attn"}),
    (
        lambda: build("llama"),
        {"model.layers.0.self_attn": [1]},
        {"layers.0.self_attn", "[1, 2]", "2 groups", "group=2"},
    ),
    (lambda: build("t5"), None, {"T5Attention", "biases of positions", "ablated"}),
    (lambda: build("olmo2"), None, {"Olmo2Attention", "q_norm", "ablated"}),
    (lambda: build("gpt-oss"), None, {"GptOssAttention", "sinks", "ablated"}),
    (lambda: build("phi3"), None, {"Phi3Attention", "qkv_proj", "ablated"}),
    (lambda: of_fixed_width("TrOCRForCausalLM"), None, {"TrOCRAttention", "fixed", "ablated"}),
    (lambda: of_fixed_width("BigBirdForMaskedLM"), None, {"BigBirdAttention", "fixed", "ablated"}),
    (lambda: build("gpt2"), ["transformer.h.0.attn"], {"heads", "list", "path"}),
    (lambda: gate("gpt2"), {"transformer.h.0.attn": [1]}, {"gates", "remove_gates", "fold_gates"}),
    (lambda: changed(parametrizations.weight_norm), None, {"output.dense", "merge"}),
    (lambda: changed(lambda m: prune.l1_unstructured(m, "bias", 0.5)), None, {"bias_orig"}),
    (lambda: hw.CausalLM(hw.CausalLMConfig(layers=1)), {"": [1]}, {"CausalLM", "with_attention"}),
    (lambda: nn.TransformerEncoderLayer(8, 2), {"": [1]}, {"TransformerEncoderLayer"}),
    (lambda: build("gpt2").transformer.h[0], {"attn": [1]}, {"GPT2Block", "of transformers"}),
]


@pytest.mark.parametrize(("make", "heads", "must_name"), REFUSED)
def test_what_cannot_be_pruned_is_refused_and_stays(make, heads, must_name):
    model = make()
    before = copy.deepcopy(model.state_dict())
    heads = {next(iter(attentions(model))): [2, 3]} if heads is None else heads
    refused(must_name, hw.prune_heads, model, heads)
    after = model.state_dict()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())
