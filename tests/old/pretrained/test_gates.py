"""A pass of gates in training keeps what it is given, and decides again in the backward pass."""

import copy
import gc
import random
from concurrent.futures import ThreadPoolExecutor
from weakref import ref

import pytest
import torch
from architectures import inputs, tiny
from gated import train_at_random
from torch import nn
from transformers import DynamicCache

import headwise as hw
from headwise.pretrained.attaching import gates_of
from headwise.pretrained.gates import HeadGates
from headwise.transformers_internals import CACHE

SYSTEMS = {
    "mae": {},
    "mae of scaled heads": {"dropped_heads": 2, "scaled_heads": True},
    "gated": {},
    "gated elementwise": {"gate": "elementwise"},
    "moh": {"shared_heads": 1, "top_k": 2},
}


def trained(name, system, dtype=torch.float64):
    model = hw.gate_heads(tiny(name).to(dtype), system.split()[0], **SYSTEMS[system])
    return train_at_random(model).train()


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("name", ["bert", "llama", "bart"])
def test_gradients_are_those_of_a_pass_that_keeps_all(system, name, monkeypatch):
    """To the last digit, with dropout; so are the statistics that the pass has moved."""
    model = trained(name, system)
    given = inputs(model, random.Random(0))
    found = []
    for twice in (True, False):
        if not twice:
            monkeypatch.setattr(HeadGates, "_computes_twice", lambda *args: False)
        each = copy.deepcopy(model)
        torch.manual_seed(5)
        logits = each(**given, use_cache=False).logits
        gradients = torch.autograd.grad(logits.square().mean(), list(each.parameters()))
        found.append((logits, gradients, list(each.buffers())))
    for twice, once in zip(found[0][1], found[1][1], strict=True):
        assert torch.equal(twice, once)
    assert torch.equal(found[0][0], found[1][0])
    for twice, once in zip(found[0][2], found[1][2], strict=True):
        assert torch.equal(twice, once)


@pytest.mark.parametrize("system", ["mae", "moh"])
def test_no_cache_and_no_queries_are_kept_after_a_call(system):
    options = {"router": "query-norm"} if system == "moh" else {}
    model = hw.gate_heads(tiny("llama"), system, **SYSTEMS[system], **options)
    cache = DynamicCache(config=model.config)
    model(torch.tensor([[3, 1, 4]]), **{CACHE: cache})
    kept = ref(cache)
    del cache
    gc.collect()
    assert kept() is None
    for gates in gates_of(model).values():
        assert gates.call.queries is None


def test_no_cache_is_kept_after_an_error():
    model = hw.gate_heads(tiny("llama"))
    attention = model.model.layers[1].self_attn
    attention.v_proj = nn.Linear(3, 3)
    cache = DynamicCache(config=model.config)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.tensor([[3, 1, 4]]), **{CACHE: cache})
    assert attention.head_gates.call.hidden is None and attention.head_gates.call.cache is None


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("twice", [True, False])
def test_what_maps_of_decisions_take_is_not_kept(system, twice, monkeypatch):
    """In a model of bf16 it is float32."""
    if not twice:
        monkeypatch.setattr(HeadGates, "_computes_twice", lambda *args: False)
    model = trained("llama", system, torch.bfloat16)
    taken = []
    for gates in gates_of(model).values():
        for part in gates.system.modules():
            if isinstance(part, nn.Linear):
                part.register_forward_hook(lambda part, args, out: taken.append(ref(args[0])))
    logits = model(**inputs(model, random.Random(0)), use_cache=False).logits
    kept = [each() is not None for each in taken]
    assert kept and (not any(kept) if twice else all(kept))
    logits.sum().backward()


@torch.no_grad()
def test_several_threads_may_call_a_model():
    """Each with a batch and padding of its own."""
    model = train_at_random(hw.gate_heads(tiny("gpt2")))
    batches = [inputs(model, random.Random(each), batch=2, time=9 + each) for each in range(4)]
    expected = [model(**given).logits for given in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda given: model(**given).logits, batches * 20))
    torch.testing.assert_close(found, expected * 20)
