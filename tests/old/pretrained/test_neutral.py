"""Before it is trained, a system over the heads changes nothing."""

import random

import pytest
import torch
from architectures import ARCHITECTURES, inputs, tiny
from many_configurations import differences, relative

import headwise as hw

SYSTEMS = {
    "mae": {"dropped_heads": 2},
    "mae of scaled heads": {"scaled_heads": True},
    "gated": {"gate_start": "neutral"},
    "gated by a softplus": {"gate_activation": "softplus", "gate_inputs": 5, "gate_bias": True},
    "gated by shares": dict(hw.GatedAttention.presets["quantizable-transformers"]),
    "moh": {"shared_heads": 1, "top_k": 2, "router_start": "neutral"},
    "standard": {},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_random_models_compute_the_same(name):
    for seed in range(1000, 1003):
        found = differences(name, seed)
        assert max(found.forward, found.generating) <= 1e-6
        assert found.same_texts


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("name", ["bert", "gpt2", "qwen3", "t5"])
def test_every_system_that_can_start_so(system, name):
    model = tiny(name)
    given = inputs(model, random.Random(0))
    before = model(**given).logits
    hw.gate_heads(model, system.split()[0], **SYSTEMS[system])
    assert relative(before, model(**given).logits) <= 1e-6


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_in_few_bits_within_rounding(name):
    model = tiny(name).to(torch.bfloat16)
    given = inputs(model, random.Random(0))
    given = {k: v.bfloat16() if v.is_floating_point() else v for k, v in given.items()}
    before = model(**given).logits
    hw.gate_heads(model)
    after = model(**given).logits
    assert after.dtype == torch.bfloat16
    assert {p.dtype for p in hw.gate_parameters(model)} == {torch.float32}
    assert relative(before.float(), after.float()) <= 2**-7
    model.to(torch.bfloat16)  # the gates too
    assert relative(before.float(), model(**given).logits.float()) <= 2**-7


def test_a_start_that_need_not_be_neutral():
    model = tiny("gpt2")
    given = inputs(model, random.Random(0))
    before = model(**given).logits
    with pytest.raises(ValueError, match="expected 'neutral'"):
        hw.gate_heads(model, "gated", gate_start="random")
    assert torch.equal(model(**given).logits, before)  # nothing is left behind
    hw.gate_heads(model, "gated", gate_start="random", neutral=False)
    assert not torch.allclose(model(**given).logits, before)
