"""Plain models of transformers are recorded and ablated, and are what they were afterwards."""

import random

import pytest
import torch
import transformers as tf
from architectures import (
    ARCHITECTURES,
    inputs,
    like_llama,
    source,
    tiny,
    tiny_sizes,
)
from torch import nn

import headwise as hw
from headwise.pretrained.layouts import attention_modules

_LLAMA = like_llama(tiny_sizes())
_EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
_HEAD_DIM = {"head_dim": 4}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "shared_expert_intermediate_size": 8,
}
FURTHER = {
    "qwen3_next": lambda: tf.Qwen3NextForCausalLM(
        tf.Qwen3NextConfig(**_LLAMA, **_EXPERTS, **_HEAD_DIM, **_LINEAR)
    ),
}
EVERY = [*ARCHITECTURES, *FURTHER]


def plain(name):
    if name in ARCHITECTURES:
        return tiny(name)
    torch.manual_seed(0)
    return FURTHER[name]().eval()


def zero_by_hand(place, head):
    """A hook that zeroes what a head gives to the output projection."""
    dim = place.sizes()["head_dim"]

    def zero(projection, args):
        heads = args[0].clone()
        heads[..., head * dim : (head + 1) * dim] = 0
        return heads, *args[1:]

    return place.projection.register_forward_pre_hook(zero)


def traces(model):
    hooks = [(len(m._forward_pre_hooks), len(m._forward_hooks)) for m in model.modules()]
    config = [m.config.to_dict() for m in model.modules() if isinstance(m, tf.PreTrainedModel)]
    names = ("save_pretrained", "init_continuous_batching")
    kept = [name for m in model.modules() for name in vars(m) if name in names]
    return list(model.state_dict()), hooks, config, kept


@pytest.mark.parametrize("name", EVERY)
@torch.no_grad()
def test_a_removed_head_is_one_zeroed_by_hand(name):
    model = plain(name)
    given, before = inputs(model, random.Random(0)), traces(model)
    logits = model(**given).logits
    with hw.record(model) as decisions:
        assert torch.equal(model(**given).logits, logits)
    assert bool(decisions) == ("next" in name)
    for place in attention_modules(model):
        with hw.ablated(model, place.path, head=1):
            removed = model(**given).logits
        hook = zero_by_hand(place, 1)
        assert torch.equal(removed, model(**given).logits)
        hook.remove()
        assert not torch.equal(removed, logits)
    assert traces(model) == before
    assert torch.equal(model(**given).logits, logits)


@pytest.mark.parametrize("name", [name for name in EVERY if plain(name).can_generate()])
@torch.no_grad()
def test_with_a_cache_and_beams(name):
    model = plain(name)
    given = source(model, random.Random(0), side="left")
    place = attention_modules(model)[-1]
    settings = {
        "num_beams": 2,
        "do_sample": False,
        "max_new_tokens": 4,
        "min_new_tokens": 4,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    with hw.ablated(model, place.path, head=0):
        removed = model.generate(**given, **settings)
    hook = zero_by_hand(place, 0)
    by_hand = model.generate(**given, **settings)
    hook.remove()
    assert torch.equal(removed.sequences, by_hand.sequences)
    assert all(map(torch.equal, removed.logits, by_hand.logits))


def test_contexts_inside_one_another_and_errors():
    model = plain("gpt2")
    before = traces(model)
    only = {"standard": {"name": "only-head", "head": 0}}
    with pytest.raises(KeyError), hw.record(model), hw.ablated(model, only):
        assert traces(model) != before
        raise KeyError
    with pytest.raises(ValueError, match="expected that of a module with a system"):
        hw.ablated(model, "no.path", head=0).__enter__()
    assert traces(model) == before
    unknown = tf.BloomModel(tf.BloomConfig(vocab_size=20, hidden_size=12, n_layer=1, n_head=3))
    with pytest.raises(ValueError, match=r"BloomAttention.*layouts="), hw.record(unknown):
        pass
    with pytest.raises(ValueError, match="without any system"), hw.record(nn.Linear(2, 2)):
        pass
