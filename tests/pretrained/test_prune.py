"""Heads that are cut out are heads that give zeros, also after saving and loading."""

import copy
import json

import numpy as np
import pytest
import torch
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from support.architectures import (
    EIGHT,
    MODELS,
    assert_near,
    attentions,
    build,
    called,
    gate,
    refused,
    sizes,
    tokens,
    width_of,
    without,
)
from torch import nn
from torch.nn.utils import parametrizations, prune

import headwise as hw

# Heads that have norms, sinks or biases of their own, or share maps in ways that are not known.
WHOLE = ("olmo2", "gpt-oss", "t5", "phi3", "vit to gpt2")
CUT = [name for name in MODELS if name not in WHOLE]


@pytest.mark.parametrize("name", CUT)
@torch.no_grad()
def test_pruned_heads_are_ablated_ones(name):
    """One of each group that shares keys in one attention, a whole group in another."""
    model = build(name)
    given, paths = called(name, model), list(attentions(model))
    chosen = {paths[-1]: [1, 2]} if name == "albert" else {paths[-1]: [1, 2], paths[0]: [2, 3]}
    attentions(model)[paths[-1]].weight.requires_grad_(False)
    pruned = copy.deepcopy(model)
    assert hw.prune_heads(pruned, chosen) is pruned
    with without(model, chosen):
        assert_near(pruned(**given).logits, model(**given).logits)
    learning, were = ([p.requires_grad for p in each.parameters()] for each in (pruned, model))
    assert learning == were and not all(were)
    for path in chosen:
        assert width_of(attentions(pruned)[path]) * 2 == width_of(attentions(model)[path])


@pytest.mark.parametrize("name", [name for name in EIGHT if name != "t5"])
@settings(max_examples=3)
@given(data=st.data())
@torch.no_grad()
def test_heads_are_pruned_at_once_or_one_after_another(name, data):
    size = data.draw(sizes())
    keys = size["key_heads"] if name in ("llama", "qwen3") else size["heads"]
    group = size["heads"] // keys
    model = build(name, size)
    path = data.draw(st.sampled_from(list(attentions(model))))
    # So many of each group; of groups of one, some groups.
    less = data.draw(st.integers(1, group - 1)) if group > 1 else 0
    gone = [key * group + each for key in range(keys) for each in range(less)]
    gone = gone or list(range(data.draw(st.integers(1, keys - 1))))
    once = hw.prune_heads(copy.deepcopy(model), {path: gone})
    with without(model, {path: gone}, of=size["heads"]):
        given = called(name, model)
        assert_near(once(**given).logits, model(**given).logits)
    steps = [[head] for head in gone] if group == 1 else [gone[each::less] for each in range(less)]
    for number, step in enumerate(steps):
        # Numbers have become smaller, by the heads before that are gone, and are any integers.
        before = [head for each in steps[:number] for head in each]
        now = [head - sum(each < head for each in before) for head in step]
        ablated = copy.deepcopy(model)
        hw.prune_heads(model, {path: torch.tensor(now)})
        with hw.ablated(ablated, path, head=np.array(now)):
            assert_near(ablated(**given).logits, model(**given).logits)
    for one, other in zip(once.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("evenly", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "bert", "qwen3", "bart", "bert to bert"])
@torch.no_grad()
def test_pruned_models_are_saved_loaded_gated_and_generate(name, evenly, tmp_path):
    model = build(name)
    paths = list(attentions(model))
    if evenly:
        hw.prune_heads(model, {path: [0, 3] for path in paths})
    else:
        hw.prune_heads(model, {paths[-1]: [0, 1]})
        hw.prune_heads(model, {paths[-1]: [1], paths[0]: [0, 3]})  # 1 was 3 before
    left = [*model.config.headwise_heads_left.values()]
    assert left == ([[1, 2]] * len(paths) if evenly else [[2], [1, 2]])
    model.save_pretrained(tmp_path)
    kind, given = type(model), called(name, model)
    with pytest.raises(RuntimeError, match="mismatched_sizes"):
        kind.from_pretrained(tmp_path)
    loaded = hw.load_pruned(kind, tmp_path, attn_implementation="eager").eval()
    state, expected = loaded.state_dict(), model(**given).logits
    there = {k: v for k, v in model.state_dict().items() if "pooler" not in k}
    assert type(loaded) is kind and all(torch.equal(state[k], v) for k, v in there.items())
    assert_near(loaded(**given).logits, expected)
    if name != "bert":
        read = {"input_ids": tokens(2, 5), "max_new_tokens": 4}
        one, other = (model.generate(**read, use_cache=cache) for cache in (True, False))
        assert torch.equal(one, other)
    hw.prune_heads(loaded, {paths[-1]: [1] if evenly else []}).save_pretrained(tmp_path / "again")
    again = hw.load_pruned(kind, tmp_path / "again").eval()
    assert_near(hw.gate_heads(again, "gated")(**given).logits, loaded(**given).logits)


def test_whole_models_load_too_and_other_classes_over_the_same_base(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    assert hw.load_pruned(tf.GPT2Model, tmp_path).h[0].attn.num_heads == 4
    hw.prune_heads(build("gpt2").transformer, {"h.1.attn": [2]}).save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())["headwise_heads_left"]
    assert said == {"h.1.attn": [0, 1, 3]}
    for kind in (tf.GPT2Model, tf.GPT2ForSequenceClassification):
        assert hw.load_pruned(kind, tmp_path).base_model.h[1].attn.num_heads == 3


def computed(change):
    model = build("bert")
    change(model.bert.encoder.layer[0].attention.output.dense)
    return model


REFUSED = [
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
    (lambda: gate("gpt2"), {"transformer.h.0.attn": [1]}, {"gates", "remove_gates", "fold_gates"}),
    (lambda: computed(parametrizations.weight_norm), None, {"output.dense", "merge"}),
    (lambda: computed(lambda m: prune.l1_unstructured(m, "bias", 0.5)), None, {"bias_orig"}),
    (lambda: hw.CausalLM(hw.CausalLMConfig(layers=1)), {"": [1]}, {"CausalLM", "headwise's own"}),
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
