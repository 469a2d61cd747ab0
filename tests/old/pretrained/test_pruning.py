"""A model whose heads are removed computes what it does while they are ablated, and saves it."""

import copy
import random
import warnings
from contextlib import ExitStack

import numpy as np
import pytest
import torch
import transformers as tf
from architectures import inputs, like_llama, random_sizes, source, tiny, tiny_sizes
from test_observing import EVERY, FURTHER, plain, traces
from torch import nn
from torch.nn.utils import parametrizations, prune

import headwise as hw
from headwise.pretrained.layouts import LAYOUTS, attention_modules

_WHOLE = ("cohere", "olmo2", "stablelm", "gpt-oss", "gpt-neox")  # their heads cannot be removed
_PRUNED = [name for name in EVERY if name not in _WHOLE]
_GENERATING = [name for name in _PRUNED if plain(name).can_generate()]
# Experts have no products in float64.
_OF_FLOAT32 = ("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next")
_SETTINGS = {
    "do_sample": False,
    "max_new_tokens": 4,
    "min_new_tokens": 4,
    "output_logits": True,
    "return_dict_in_generate": True,
}


def larger(name, key_heads=1):
    """A model with 4 heads."""
    sizes = {**tiny_sizes(), "heads": 4, "key_heads": key_heads}
    if name not in FURTHER:
        return tiny(name, 0, sizes)
    kind = {"phi3": "Phi3", "granite": "Granite"}[name]
    torch.manual_seed(0)
    config = getattr(tf, f"{kind}Config")(**like_llama(sizes))
    return getattr(tf, f"{kind}ForCausalLM")(config).eval()


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def some_heads(model, draw):
    """Heads of some attentions, drawn such that groups of keys stay even."""
    chosen = {}
    for place in attention_modules(model):
        heads = place.sizes()["num_heads"]
        config = getattr(place.module, "config", None)
        keys = getattr(config, "num_key_value_heads", heads)
        group = heads // keys
        if draw.random() < 0.5 and keys > 1:
            gone = draw.sample(range(keys), draw.randint(1, keys - 1))
            chosen[place.path] = [key * group + each for key in gone for each in range(group)]
        elif group > 1:
            less = draw.randint(1, group - 1)
            chosen[place.path] = [
                key * group + each
                for key in range(keys)
                for each in draw.sample(range(group), less)
            ]
    return chosen


def while_ablated(model, chosen):
    """A context in which these heads are ablated: by hand, of any number at once."""
    stack = ExitStack()
    for place in attention_modules(model):
        dim = place.sizes()["head_dim"]
        columns = [h * dim + i for h in chosen.get(place.path, ()) for i in range(dim)]

        def zero(projection, args, columns=columns):
            heads = args[0].clone()
            heads[..., columns] = 0
            return heads, *args[1:]

        stack.callback(place.projection.register_forward_pre_hook(zero).remove)
    return stack


@pytest.mark.parametrize("name", _PRUNED)
@torch.no_grad()
def test_a_removed_head_is_an_ablated_one(name):
    exact = name not in _OF_FLOAT32
    model = plain(name).to(torch.float64 if exact else torch.float32)
    given = {
        key: value.double() if exact and value.is_floating_point() else value
        for key, value in inputs(model, random.Random(0)).items()
    }
    for place in attention_modules(model):
        with hw.ablated(model, place.path, head=1):
            ablated = model(**given).logits
        pruned = hw.prune_heads(copy.deepcopy(model), {place.path: [1]})
        again = copy.deepcopy(pruned)
        assert parameters(pruned) < parameters(model)
        difference = (again(**given).logits - ablated).abs().max() / ablated.abs().max()
        assert difference < (1e-13 if exact else 1e-5)


@pytest.mark.parametrize(
    ("name", "attention"),
    [(n, a) for n in _PRUNED for a in ("eager", "sdpa") if (n, a) != ("gemma2", "sdpa")],
)
@torch.no_grad()
def test_random_heads_of_a_random_model(name, attention):
    draw = random.Random(f"{name} {attention}")
    sizes = random_sizes(draw)
    model = tiny(name, 1, sizes) if name not in FURTHER else plain(name)
    pruned = copy.deepcopy(model)
    chosen = some_heads(pruned, draw)
    hw.prune_heads(pruned, chosen)
    for each in (model, pruned):  # the attentions' own sizes hide nothing of the shared config
        each.set_attn_implementation(attention)
    given = inputs(model, draw)
    with while_ablated(model, chosen):
        ablated = model(**given).logits
    difference = (pruned(**given).logits - ablated).abs().max() / ablated.abs().max()
    assert difference < 1e-5


@pytest.mark.parametrize("name", _WHOLE)
def test_heads_with_weights_of_their_own_are_refused(name):
    model = plain(name)
    before, path = parameters(model), attention_modules(model)[0].path
    with pytest.raises(ValueError, match=r"cannot be removed: \w+ has weights of heads"):
        hw.prune_heads(model, {path: 0})
    assert parameters(model) == before


@pytest.mark.parametrize("name", _GENERATING)
@torch.no_grad()
def test_cache_and_beams(name):
    model, draw = plain(name), random.Random(name)
    pruned = copy.deepcopy(model)
    chosen = some_heads(model, draw)
    for path in list(chosen)[:-1:2]:  # so that layers differ
        del chosen[path]
    hw.prune_heads(pruned, chosen)
    given = source(model, draw, side="left")
    for settings in ({"num_beams": 2}, {"use_cache": False}, {}):
        with while_ablated(model, chosen):
            want = model.generate(**given, **_SETTINGS, **settings)
        got = pruned.generate(**given, **_SETTINGS, **settings)
        assert torch.equal(got.sequences, want.sequences)
        for ours, theirs in zip(got.logits, want.logits, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "phi3", "modernbert", "t5", "bart"])
def test_a_pruned_model_is_recorded_ablated_gated_and_pruned_again(name):
    model = plain(name)
    paths = [place.path for place in attention_modules(model)]
    given = inputs(model, random.Random(0))
    at_once = hw.prune_heads(copy.deepcopy(model), {paths[-1]: [0, 1]})
    hw.prune_heads(model, {paths[-1]: [0]})
    before = model(**given).logits
    with hw.record(model):
        assert torch.equal(model(**given).logits, before)
    with hw.ablated(model, paths[-1], head=0):
        ablated = model(**given).logits
    hw.gate_heads(model, "gated")
    torch.testing.assert_close(model(**given).logits, before, rtol=0, atol=1e-5)
    hw.remove_gates(model)
    hw.prune_heads(model, {paths[-1]: 0})
    scale = ablated.abs().max().item()
    torch.testing.assert_close(model(**given).logits, ablated, rtol=0, atol=1e-5 * scale)
    for ours, theirs in zip(model.parameters(), at_once.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "phi3", "t5", "bart", "bert to bert"])
def test_saved_and_loaded_where_the_config_cannot_say_it(name, tmp_path):
    model = larger(name)
    names = [place.path for place in attention_modules(model)]
    hw.prune_heads(model, {names[-1]: [0]})
    hw.prune_heads(model, {names[-1]: [1], names[0]: [1]})  # 1 was 2 before
    with hw.record(model):
        pass
    with pytest.warns(UserWarning, match=r"load it by headwise.load_pruned\(\w+, folder\)"):
        model.save_pretrained(tmp_path)
    kind = type(model)
    with pytest.raises(RuntimeError):
        kind.from_pretrained(tmp_path)
    loaded = hw.load_pruned(kind, tmp_path)
    assert type(loaded) is kind and not loaded.training
    saved = model.state_dict()
    assert list(loaded.state_dict()) == list(saved)
    assert all(torch.equal(saved[key], tensor) for key, tensor in loaded.state_dict().items())
    given = inputs(model, random.Random(0))
    assert torch.equal(loaded(**given).logits, model(**given).logits)
    again = hw.prune_heads(larger(name), {names[-1]: [0, 2], names[0]: [1]})
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(**given).logits, model(**given).logits)
    with pytest.warns(UserWarning, match="load_pruned"):
        loaded.save_pretrained(tmp_path / "again")


@pytest.mark.parametrize("name", ["mistral", "qwen3", "phi3", "granite", "vit", "t5"])
def test_saved_and_loaded_by_transformers_where_the_config_says_it(name, tmp_path):
    model = larger(name, key_heads=2)
    paths = [place.path for place in attention_modules(model)]
    if name != "t5":  # in which layers get biases of their own when they differ
        hw.prune_heads(model, {paths[0]: [1, 2]})
        assert hasattr(model.config, "headwise_heads_left")
        del paths[0]
    hw.prune_heads(model, {path: [0, 3] for path in paths})
    assert not hasattr(model.config, "headwise_heads_left")
    assert model.config.num_attention_heads == 2
    given = inputs(model, random.Random(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(loaded(**given).logits, model(**given).logits)
    with pytest.raises(ValueError, match="tells of no heads that were removed"):
        hw.load_pruned(type(model), tmp_path)
    with pytest.raises(
        ValueError, match="kind is AutoModel, expected the class of the model itself"
    ):
        hw.load_pruned(tf.AutoModel, tmp_path)
    with pytest.raises(ValueError, match="output_loading_info is True, expected it to be left out"):
        hw.load_pruned(type(model), tmp_path, output_loading_info=True)


def test_another_class_is_not_loaded(tmp_path):
    hw.prune_heads(plain("llama"), {0: [1]}).save_pretrained(tmp_path)
    for kind in (tf.BertModel, tf.MistralForCausalLM):
        with pytest.raises(ValueError, match=r"type 'llama'; expected .*: LlamaForCausalLM"):
            hw.load_pruned(kind, tmp_path)


def test_continuous_batching_where_the_config_says_how_many_keys_there_are(tmp_path, monkeypatch):
    kind = tf.LlamaForCausalLM
    monkeypatch.setattr(kind, "init_continuous_batching", lambda model: "begun")
    model = hw.prune_heads(larger("llama", key_heads=2), {0: [0, 2]})
    assert model.init_continuous_batching() == "begun"
    hw.prune_heads(model, {1: [0, 1]}).save_pretrained(tmp_path)
    for each in (model, hw.load_pruned(kind, tmp_path)):
        with hw.record(each), pytest.raises(NotImplementedError, match="no continuous batching"):
            each.init_continuous_batching()
        with pytest.raises(NotImplementedError, match="fewer heads of keys than its config says"):
            each.init_continuous_batching()


def test_t5_keeps_one_bias_for_all_layers_where_they_keep_the_same_heads():
    model = plain("t5")
    selves = [p.path for p in attention_modules(model) if p.path.endswith("SelfAttention")]
    hw.prune_heads(model, {path: [1] for path in selves})
    names = [name for name in model.state_dict() if "relative" in name]
    assert len(names) == 2 and model.state_dict()[names[0]].size(1) == 2
    hw.prune_heads(model, {selves[0]: [1]})
    assert len([name for name in model.state_dict() if "relative" in name]) == 3


def test_biases_of_t5_that_were_trained_apart_come_back(tmp_path):
    """Even if all layers keep the same heads in the end."""
    model = plain("t5")
    selves = [p.path for p in attention_modules(model) if p.path.endswith("SelfAttention")]
    for path in selves:
        hw.prune_heads(model, {path: [1]})
        nn.init.normal_(model.get_submodule(path).relative_attention_bias.weight)
    with pytest.warns(UserWarning, match="load_pruned"):
        model.save_pretrained(tmp_path)
    loaded = hw.load_pruned(type(model), tmp_path)
    given = inputs(model, random.Random(0))
    assert torch.equal(loaded(**given).logits, model(**given).logits)


def test_training_goes_on():
    model = plain("gpt2").requires_grad_(False)
    model.transformer.h[0].attn.c_attn.weight.requires_grad_(True)
    hw.prune_heads(model, {0: [1], "transformer.h.1.attn": [0, 2]})
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == ["transformer.h.0.attn.c_attn.weight"]
    model(torch.tensor([[5, 6, 7]])).logits.sum().backward()
    assert model.transformer.h[0].attn.c_attn.weight.grad.shape == (12, 24)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (
            {"transformer.h.0.attn": [0], "transformer.h.1.attn": [3]},
            r"heads of .transformer.h.1.attn. are \[3\], expected some",
        ),
        (
            {"transformer.h.0.attn": [0], "transformer.h.1.attn": [0, 1, 2]},
            r"are \[0, 1, 2\], .* and not all: it has 3",
        ),
        ({0: [1], 5: [0]}, "attention 5, which is none of the model's.*transformer.h.0.attn"),
        ({0: [1], "lm_head": [0]}, "attention 'lm_head', which is none of"),
    ],
)
def test_errors_leave_the_model_as_it_is(heads, message):
    model = plain("gpt2")
    before, kept = traces(model), copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        hw.prune_heads(model, heads)
    assert traces(model) == before
    assert all(torch.equal(kept[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "heads", [torch.tensor([0, 2]), np.array([0, 2]), [torch.tensor(0), np.int64(2)]]
)
def test_heads_may_be_numbers_of_other_tools(heads):
    expected = hw.prune_heads(plain("gpt2"), {0: [0, 2]}).state_dict()
    for name, tensor in hw.prune_heads(plain("gpt2"), {0: heads}).state_dict().items():
        assert torch.equal(tensor, expected[name])
    for one in (np.int64(1), torch.tensor(1)):
        assert hw.prune_heads(plain("gpt2"), {0: one}).transformer.h[0].attn.num_heads == 2
    with pytest.raises(ValueError, match=r"are \[False, True\], expected some of the numbers"):
        hw.prune_heads(plain("gpt2"), {0: torch.tensor([False, True, False])})


def test_further_errors():
    llama = tiny("llama", 0, {**tiny_sizes(), "heads": 4, "key_heads": 2})
    with pytest.raises(ValueError, match=r"leave \[1, 2\] heads in the groups.*2 groups of 2"):
        hw.prune_heads(llama, {0: [1]})
    with pytest.raises(ValueError, match=r"several of.*'decoder.block.0.layer.0.SelfAttention'"):
        hw.prune_heads(plain("t5"), {0: [1]})
    gated = hw.gate_heads(plain("gpt2"))
    with pytest.raises(ValueError, match=r"remove them with headwise.remove_gates"):
        hw.prune_heads(gated, {0: [1]})
    wrapped = plain("gpt2")
    wrapped.transformer.h[0].attn.c_proj = nn.Bilinear(12, 1, 12)
    wrapped.transformer.h[0].attn.c_proj.nx = wrapped.transformer.h[0].attn.c_proj.nf = 12
    with pytest.raises(ValueError, match=r"has a Bilinear as one of its maps.*merge_and_unload"):
        hw.prune_heads(wrapped, {0: [1]})
    for maps, message in (
        ((), "cannot be removed"),
        (("c_proj", "c_attn"), "12 heads|3 heads of 4"),
    ):
        layout = hw.HeadLayout("c_proj", "num_heads", maps=maps)
        with pytest.raises(ValueError, match=message):
            hw.prune_heads(plain("gpt2"), {0: [1]}, layouts={"GPT2Attention": layout})
    with pytest.raises(ValueError, match="of headwise's own"):
        hw.prune_heads(nn.ModuleDict({"a": hw.MultiHeadAttention(8, 2)}), {"a": [0]})


@pytest.mark.parametrize(
    "change",
    [
        parametrizations.weight_norm,
        lambda each: prune.l1_unstructured(each, "weight", 0.5),
        lambda each: prune.l1_unstructured(each, "bias", 0.5),
    ],
)
def test_weights_that_are_computed_are_refused(change):
    """To change what is computed would change nothing."""
    model = plain("bert")
    hw.gate_heads(model, "gated", gate_inputs=0, gate_bias=True)
    change(model.bert.encoder.layer[0].attention.output.dense)
    with pytest.raises(ValueError, match=r"as one of its maps.*not computed of others"):
        hw.fold_gates(model)
    with pytest.raises(ValueError, match=r"as one of its maps.*remove_parametrizations"):
        hw.prune_heads(hw.remove_gates(model), {0: [1]})


def test_every_layout_is_tried():
    tried = {type(place.module).__name__ for n in EVERY for place in attention_modules(plain(n))}
    assert tried == set(LAYOUTS)
