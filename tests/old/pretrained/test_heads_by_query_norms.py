"""MoH on pretrained models as in its paper: heads are selected by the norms of their queries."""

import random

import pytest
import torch
from architectures import inputs, source, tiny

import headwise as hw

OPTIONS = {"router": "query-norm", "neutral": False, "shared_heads": 1, "top_k": 1}
# The module of a model's first attention that gives the queries, and how wide the heads are.
QUERIES = {
    "llama": ("model.layers.0.self_attn.q_proj", 4),
    "gpt2": ("transformer.h.0.attn.c_attn", 4),
    "bert": ("bert.encoder.layer.0.attention.self.query", 4),
    "gemma3": ("model.layers.0.self_attn.q_proj", 10),
}


@pytest.mark.parametrize("name", QUERIES)
def test_the_heads_of_the_longest_queries_are_selected(name):
    path, width = QUERIES[name]
    model = tiny(name)
    given, seen = inputs(model, random.Random(0)), []
    before = model(**given).logits
    model.get_submodule(path).register_forward_hook(lambda m, args, out: seen.append(out))
    hw.gate_heads(model, "moh", **OPTIONS)
    assert not hw.gate_parameters(model)
    with hw.record(model) as decisions:
        after = model(**given).logits
    assert not torch.allclose(after, before)
    routing = next(iter(decisions.values()))[0]
    queries = seen[0].flatten(2)[..., : 3 * width].unflatten(-1, (3, width))
    longest = 1 + queries.norm(dim=-1)[..., 1:].argmax(-1, keepdim=True)  # the first is shared
    expected = torch.tensor([1.0, 0.0, 0.0]).expand(*queries.shape[:2], 3).scatter(-1, longest, 1.0)
    assert torch.equal(routing.weights, expected)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_it_generates_the_same_with_a_cache_and_without(name):
    model = hw.gate_heads(tiny(name), "moh", **OPTIONS)
    read = source(model, random.Random(0), side="left")
    options = {"max_new_tokens": 5, "do_sample": False, "num_beams": 2}
    cached, anew = (model.generate(**read, use_cache=use, **options) for use in (True, False))
    assert torch.equal(cached, anew)
