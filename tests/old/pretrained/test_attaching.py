"""What gate_heads attaches and refuses, and that remove leaves nothing behind."""

import copy
import pickle
import random
import re
from dataclasses import replace

import pytest
import torch
from architectures import ARCHITECTURES, inputs, tiny
from gated import train_at_random
from torch import nn
from transformers import LlamaConfig, LlamaModel

import headwise as hw
from headwise.pretrained.attaching import gates_of
from headwise.pretrained.layouts import LAYOUTS
from headwise.transformers_internals import CACHE


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_copies_and_what_is_left_after_removal(name):
    model = tiny(name)
    given = inputs(model, random.Random(0))
    before, state = model(**given).logits, dict(model.state_dict())
    gated = train_at_random(hw.gate_heads(model))
    assert gated is model
    after = model(**given).logits
    assert not torch.allclose(before, after)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for parameter in hw.gate_parameters(model):
        parameter.zero_()  # those of the copies are their own
    for each in copies:
        assert torch.equal(each(**given).logits, after)
    assert hw.remove_gates(copies[0]) is copies[0]
    for each in (hw.remove_gates(model), copies[0]):
        assert torch.equal(each(**given).logits, before)
        assert list(each.state_dict()) == list(state)
        hooks = [(m._forward_pre_hooks, m._forward_hooks) for m in each.modules()]
        assert not any(before or after for before, after in hooks)
    assert torch.equal(copies[1](**given).logits, after)


def test_sites_and_layers():
    model = tiny("t5")
    hw.gate_heads(model, layers=[1], sites=["decoder_self", "decoder_cross"])
    assert list(gates_of(model)) == [
        "decoder.block.1.layer.0.SelfAttention",
        "decoder.block.1.layer.1.EncDecAttention",
    ]
    hw.remove_gates(model)
    hw.gate_heads(model, sites="encoder_self", layers=0)
    (gates,) = gates_of(model).values()
    assert (gates.site, gates.layer, gates.system.head_dim) == ("encoder_self", 0, 6)


@pytest.mark.parametrize("sites", [["decoder_cross"], ["decoder_self", "decoder_cross"]])
@torch.no_grad()
def test_cross_attention_alone_knows_the_padding_of_its_queries(sites):
    model = train_at_random(hw.gate_heads(tiny("bart"), sites=sites))
    for layer in model.model.decoder.layers if "decoder_self" in sites else ():
        hw.remove_gates(layer.self_attn)
    given = inputs(model, random.Random(1), batch=2, time=6)
    given["decoder_attention_mask"] = torch.ones_like(given["decoder_input_ids"])
    given["decoder_attention_mask"][0, 0] = 0
    with hw.record(model) as decisions:
        model(**given)
    for routing in decisions.values():
        assert torch.equal(routing[0].padding, given["decoder_attention_mask"] == 0)


def test_the_tools_for_systems_know_it():
    model = train_at_random(hw.gate_heads(tiny("gpt2")))
    given = inputs(model, random.Random(0))
    with hw.record(model) as decisions:
        before = model(**given).logits
    assert [place.path for place in decisions] == [
        f"transformer.h.{layer}.attn.head_gates.system" for layer in range(2)
    ]
    with hw.ablated(model, "transformer.h.1.attn", expert=0):
        assert not torch.allclose(model(**given).logits, before)
    assert torch.equal(model(**given).logits, before)
    assert len(hw.gate_parameters(model)) == 12


class OwnSystem(hw.MultiHeadAttention):
    """Scales each head, at first by 1, and decides by the queries of the heads."""

    needs_queries = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale = nn.Parameter(torch.full((self.num_heads,), 2.0))

    def start_neutral(self):
        nn.init.ones_(self.scale)

    def combine(self, heads, inputs, choice):
        self.read = inputs.key
        return super().combine(heads * self.scale[:, None, None], inputs, choice)


QUERIES = {
    "bert": "bert.encoder.layer.0.attention.self.query",
    "llama": "model.layers.0.self_attn.q_proj",
    "qwen3": "model.layers.0.self_attn.q_norm",
    "t5": "decoder.block.0.layer.1.EncDecAttention.q",
    "gpt2": "transformer.h.0.attn.c_attn",
}


@pytest.mark.parametrize("name", QUERIES)
@torch.no_grad()
def test_a_system_of_a_users_own_may_ask_for_queries(name):
    model = tiny(name)
    given = inputs(model, random.Random(0))
    before = model(**given).logits
    hw.gate_heads(model, OwnSystem)
    queries = []
    model.get_submodule(QUERIES[name]).register_forward_hook(
        lambda module, args, output: queries.append(output)
    )
    assert torch.equal(model(**given).logits, before)
    owner = QUERIES[name].rpartition(".")[0].removesuffix(".self")
    system = model.get_submodule(f"{owner}.head_gates.system")
    width = system.num_heads * system.head_dim
    assert torch.equal(system.read, queries[0].flatten(2)[..., :width])


class OwnAttention(nn.Module):
    """An attention that no table knows."""

    def __init__(self):
        super().__init__()
        self.heads, self.is_causal = 3, False
        self.out = nn.Linear(12, 8)

    def forward(self, hidden_states):
        return self.out(hidden_states.repeat(1, 1, 2)[..., :12])


def test_attention_of_a_class_that_is_not_in_the_table():
    model = nn.Sequential(OwnAttention())
    with pytest.raises(ValueError, match=r"OwnAttention.*are unknown.*headwise\.HeadLayout"):
        hw.gate_heads(model)
    x = torch.randn(2, 5, 8)
    before = model(x)
    layouts = {"OwnAttention": hw.HeadLayout(projection="out", num_heads="heads")}
    hw.gate_heads(model, layouts=layouts)
    assert torch.equal(model(x), before)
    train_at_random(model)
    assert not torch.allclose(model(x), before)


class Fused(OwnAttention):
    """Takes the projection's weights, and does not call it."""

    def forward(self, hidden_states):
        return nn.functional.linear(hidden_states.repeat(1, 1, 2)[..., :12], self.out.weight)


def test_a_projection_that_is_not_called_is_noticed():
    layouts = {"Fused": hw.HeadLayout("out", "heads")}
    model = hw.gate_heads(nn.Sequential(Fused()), layouts=layouts)
    with pytest.raises(RuntimeError, match="has not called its output projection 'out'"):
        model(torch.randn(2, 5, 8))


def test_a_projection_that_is_called_by_others_is_noticed():
    model = hw.gate_heads(tiny("gpt2"))
    with pytest.raises(RuntimeError, match="not by that attention"):
        model.transformer.h[0].attn.c_proj(torch.randn(1, 2, 12))


def test_an_attention_may_be_causal_without_saying_so():
    for is_causal, site in {True: "decoder_self", False: "encoder_self"}.items():
        model = own(hw.HeadLayout("out", "heads", is_causal=is_causal))
        assert [gates.site for gates in gates_of(model).values()] == [site]


@torch.no_grad()
def test_continuous_batching_is_refused_before_it_begins():
    model, prompts = tiny("gpt2"), [[5, 6, 7]]
    with (
        hw.ablated(model, "transformer.h.0.attn", head=1),
        pytest.raises(NotImplementedError, match="GPT2LMHeadModel has no continuous batching"),
    ):
        model.generate_batch(prompts)
    hw.gate_heads(model, "gated")
    with pytest.raises(NotImplementedError, match="padded on the left"):
        model.generate(torch.tensor(prompts), cache_implementation="paged")
    hw.remove_gates(model)
    assert "init_continuous_batching" not in vars(model)


class OwnGates(hw.GatedAttention):
    """Passes on what it does not know."""

    def __init__(self, *sizes, mine=1, **options):
        super().__init__(*sizes, **options)


def own(layout, *system):
    return hw.gate_heads(nn.Sequential(OwnAttention()), *system, layouts={"OwnAttention": layout})


def other(name, **changes):
    """The layout of a class in the table, with changes."""
    return {name: replace(LAYOUTS[name], **changes)}


WRONG = [
    (lambda: hw.gate_heads(hw.gate_heads(tiny("bert"))), "headwise.remove_gates"),
    (lambda: hw.remove_gates(tiny("bert")), "without gates over its heads"),
    (lambda: hw.gate_heads(hw.MultiHeadAttention(8, 2)), "by its with_attention"),
    (lambda: hw.gate_heads(nn.Linear(2, 2)), "no module whose class is called"),
    (lambda: hw.gate_heads(tiny("bert"), "maee"), "expected one of"),
    (lambda: hw.gate_heads(tiny("bert"), "moa"), "expected one of standard"),
    (lambda: hw.gate_heads(tiny("bert"), sites=["decoder_self"]), "encoder_self"),
    (lambda: hw.gate_heads(tiny("bert"), layers=[2]), "0 to 1"),
    (lambda: hw.gate_heads(tiny("bert"), layers=[]), "name no attention"),
    (lambda: hw.gate_heads(tiny("bert"), sites=[], layers=[0]), "name no attention"),
    (lambda: hw.gate_heads(tiny("bert"), qk_norm=True), "an option of attention itself"),
    (lambda: hw.gate_heads(tiny("bert"), num_heads=4), "expected it to be left out"),
    (lambda: hw.gate_heads(tiny("bert"), dropout=0.1), "an option of attention itself"),
    (lambda: hw.gate_heads(tiny("bert"), "gated", gate_input=0), "did you mean 'gate_inputs'?"),
    (lambda: hw.gate_heads(tiny("bert"), "gated", preset="a"), "options name 'preset', expected"),
    (
        lambda: hw.gate_heads(tiny("bert"), OwnGates, gatee=1),
        "gate_start, mine; did you mean 'gate",
    ),
    (lambda: hw.gate_heads("gpt2"), "expected a model that is loaded"),
    (lambda: own(hw.HeadLayout("out", "out.out_features")), "8 heads, which do not divide 12"),
    (lambda: own(hw.HeadLayout("out", "num_heads")), "num_heads of the layout of OwnAttention is"),
    (lambda: own(hw.HeadLayout("out", "heads", is_causal="causal")), "True or False if there is"),
    (lambda: own(hw.HeadLayout("out", "heads", is_causal="heads")), "'heads', which gives 3"),
    (lambda: own(hw.HeadLayout("proj", "heads")), "projection of the layout of OwnAttention is"),
    (lambda: own(hw.HeadLayout("out", "heads"), OwnSystem), "it has no such module"),
    (
        lambda: hw.gate_heads(tiny("bert"), layouts=other("BertAttention", mask="msk")),
        "mask of the layout of BertAttention is 'msk'",
    ),
    (
        lambda: hw.gate_heads(tiny("gpt2"), layouts=other("GPT2Attention", cache="layer_past")),
        f"expected the one of {CACHE} that holds it",
    ),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_errors_say_what_is_wrong(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_a_llama_that_is_no_decoder():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, intermediate_size=8, vocab_size=20, is_causal=False)
    model = hw.gate_heads(LlamaModel(config))
    assert [gates.site for gates in gates_of(model).values()] == ["encoder_self"]


class OfAnotherName(OwnAttention):
    """Its hidden states have a name of its own."""

    def forward(self, x):
        return super().forward(x)


@torch.no_grad()
def test_hidden_states_may_be_given_by_another_name():
    attention = OfAnotherName()
    x = torch.randn(2, 5, 8)
    before = attention(x=x)
    hw.gate_heads(attention, layouts={"OfAnotherName": hw.HeadLayout("out", "heads")})
    assert torch.equal(attention(x=x), before)


def test_attention_without_parameters():
    """As quantised ones, whose weights are buffers."""
    attention = OwnAttention()
    weight = attention.out.weight.detach().double()
    del attention.out.weight, attention.out.bias
    attention.out.register_buffer("weight", weight)
    attention.out.register_buffer("bias", None)
    layouts = {"OwnAttention": hw.HeadLayout("out", "heads")}
    hw.gate_heads(attention, layouts=layouts)
    assert {p.dtype for p in hw.gate_parameters(attention)} == {torch.float64}
