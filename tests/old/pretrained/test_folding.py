"""Static gates go into the output projection; others are refused."""

import random

import pytest
import torch
from architectures import inputs
from test_observing import EVERY, plain, traces
from torch import nn

import headwise as hw
from headwise.heads.gated import GatedAttention

STATIC = {"gate_inputs": 0, "gate_bias": True}


def gated(name, **options):
    """A model with static gates as after training."""
    model = hw.gate_heads(plain(name), "gated", **STATIC, **options)
    with torch.no_grad():
        for parameter in hw.gate_parameters(model):
            parameter.normal_()
    return model


@pytest.mark.parametrize("gate", ["headwise", "elementwise"])
@pytest.mark.parametrize("name", EVERY)
@torch.no_grad()
def test_a_folded_model_computes_what_the_gated_one_does(name, gate, tmp_path):
    plain_traces = traces(plain(name))
    model = gated(name, gate=gate)
    given = inputs(model, random.Random(0))
    before = model(**given).logits
    assert not torch.allclose(plain(name)(**given).logits, before, rtol=0, atol=1e-5)
    assert hw.fold_gates(model) is model and traces(model) == plain_traces
    torch.testing.assert_close(
        model(**given).logits, before, rtol=0, atol=1e-5 * before.abs().max().item()
    )
    if name in ("gpt2", "bert"):
        model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path)
        assert torch.equal(loaded(**given).logits, model(**given).logits)


@torch.no_grad()
def test_a_folded_model_of_pruned_heads():
    model = gated("llama")
    given = inputs(model, random.Random(0))
    with hw.ablated(model, "model.layers.0.self_attn", head=2):
        before = model(**given).logits
    hw.prune_heads(hw.fold_gates(model), {0: [2]})
    torch.testing.assert_close(
        model(**given).logits, before, rtol=0, atol=1e-5 * before.abs().max().item()
    )


class Halved(hw.MultiHeadAttention):
    """A system of a user: it halves its heads."""

    def combine(self, heads, inputs, choice):
        return self.join(heads, torch.full((), 0.5)), None

    def start_neutral(self):
        pass

    def static_scales(self):
        return torch.full((self.num_heads, 1), 0.5)


@torch.no_grad()
def test_uniform_gates_systems_of_users_and_few_bits():
    model = plain("gpt2")
    given = inputs(model, random.Random(0))
    before = model(**given).logits
    hw.gate_heads(model, "mae", gate="uniform")
    assert torch.equal(hw.fold_gates(model)(**given).logits, before)
    model = hw.gate_heads(plain("bert"), Halved)
    given = inputs(model, random.Random(0))
    before = model(**given).logits
    torch.testing.assert_close(hw.fold_gates(model)(**given).logits, before, rtol=0, atol=1e-4)
    half = hw.gate_heads(plain("bert").bfloat16(), "gated", **STATIC)
    before = half(**given).logits
    assert torch.equal(hw.fold_gates(half)(**given).logits, before)


def test_errors_leave_the_model_as_it_is():
    with pytest.raises(ValueError, match="without gates over its heads"):
        hw.fold_gates(plain("gpt2"))
    model = gated("gpt2")
    last = model.transformer.h[1].attn
    last.head_gates.system = GatedAttention.over_heads(12, 3, 4)
    nn.init.normal_(last.head_gates.system.gate_proj.weight)
    weight = model.transformer.h[0].attn.c_proj.weight.clone()
    with pytest.raises(ValueError, match=r"h.1.attn', a GatedAttention, depend on the input"):
        hw.fold_gates(model)
    assert torch.equal(model.transformer.h[0].attn.c_proj.weight, weight)
    assert hasattr(last, "head_gates")
    for system in ("mae", "moh"):
        options = {"top_k": 2, "shared_heads": 1} if system == "moh" else {}
        with pytest.raises(ValueError, match=r"depend on the input.*gate_inputs=0"):
            hw.fold_gates(hw.gate_heads(plain("gpt2"), system, **options))
