"""Gated models in PyTorch's and Hugging Face's tools."""

import copy
import random

import accelerate
import pytest
import torch
from architectures import inputs, tiny, tiny_sizes
from gated import train_at_random
from peft import LoraConfig, get_peft_model

import headwise as hw

# Among them is the output projection, whose place LoRA's module takes.
MAPS = {"gpt2": ["c_attn", "c_proj"], "bert": ["query", "attention.output.dense"], "t5": ["q", "o"]}


@pytest.mark.parametrize("first", ["gates", "adapters"])
@pytest.mark.parametrize("name", MAPS)
@torch.no_grad()
def test_lora_sees_what_the_projection_sees(name, first):
    model = tiny(name)
    given = inputs(model, random.Random(0))
    config = LoraConfig(r=2, target_modules=MAPS[name], fan_in_fan_out=name == "gpt2")
    if first == "gates":
        model = get_peft_model(train_at_random(hw.gate_heads(model)), config)
    else:
        model = train_at_random(hw.gate_heads(get_peft_model(model, config)))
        assert all(gate.requires_grad for gate in hw.gate_parameters(model))
    model.eval()
    before = model(**given).logits
    for path, parameter in model.named_parameters():
        if "lora_B" in path:
            parameter.normal_(0.0, 0.1)
    after = model(**given).logits
    assert not torch.allclose(after, before)
    merged = copy.deepcopy(model).merge_and_unload()
    torch.testing.assert_close(merged(**given).logits, after, rtol=1e-4, atol=1e-5)
    with model.disable_adapter():
        torch.testing.assert_close(model(**given).logits, before)


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_model_is_one_graph():
    model = train_at_random(hw.gate_heads(tiny("gpt2", sizes={**tiny_sizes(), "layers": 1})))
    given = inputs(model, random.Random(0), side="left")
    expected = model(**given).logits
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**given).logits, expected)


@pytest.mark.parametrize("wrapped", [False, True])
@torch.no_grad()
def test_a_compiled_model_that_has_run_is_changed_too(wrapped):
    torch.compiler.reset()
    model, plain = tiny("gpt2"), tiny("gpt2")
    given = inputs(model, random.Random(0))
    compiled, prefix = model, ""
    if wrapped:
        compiled, prefix = torch.compile(model, backend="eager"), "_orig_mod."
    else:
        model.compile(backend="eager")
    before = compiled(**given).logits
    path = "transformer.h.0.attn"
    with hw.ablated(compiled, prefix + path, head=1), hw.ablated(plain, path, head=1):
        assert torch.equal(compiled(**given).logits, plain(**given).logits)
    torch.testing.assert_close(compiled(**given).logits, before)
    expected = train_at_random(hw.gate_heads(plain))(**given).logits
    train_at_random(hw.gate_heads(compiled))
    torch.testing.assert_close(compiled(**given).logits, expected)
    torch.testing.assert_close(hw.remove_gates(compiled)(**given).logits, before)


@torch.no_grad()
def test_a_model_whose_weights_are_offloaded():
    model = tiny("gpt2")
    tokens = torch.randint(3, 20, (2, 5))
    before = model(tokens).logits
    hw.gate_heads(accelerate.cpu_offload(model, execution_device="cpu"))
    assert next(model.transformer.h[0].attn.c_proj.parameters()).is_meta
    assert not any(parameter.is_meta for parameter in hw.gate_parameters(model))
    assert torch.equal(model(tokens).logits, before)
