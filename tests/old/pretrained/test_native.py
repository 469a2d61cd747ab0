"""Experts of JetMoE and gates of Qwen3-Next are recorded as those models use them."""

import pytest
import torch
import transformers as tf
from architectures import like_llama, tiny_sizes
from test_observing import plain

import headwise as hw

TOKENS = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 4]])
MASK = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])


def jetmoe():
    torch.manual_seed(0)
    sizes = like_llama(tiny_sizes())
    del sizes["num_attention_heads"]  # follows from the chosen experts
    config = tf.JetMoeConfig(**sizes, kv_channels=4, num_local_experts=5, num_experts_per_tok=2)
    return tf.JetMoeForCausalLM(config).eval()


@torch.no_grad()
def test_experts_are_those_that_the_router_used():
    model = jetmoe()
    used, router = [], model.model.layers[1].self_attention.experts.router
    handle = router.register_forward_hook(lambda *call: used.append(call[-1]))
    before = model(TOKENS, attention_mask=MASK).logits
    handle.remove()
    with hw.record(model) as decisions:
        assert torch.equal(model(TOKENS, attention_mask=MASK).logits, before)
    assert [place.path for place in decisions] == [
        f"model.layers.{layer}.self_attention" for layer in range(2)
    ]
    assert [(place.site, place.layer) for place in decisions] == [
        ("decoder_self", layer) for layer in range(2)
    ]
    (routing,) = list(decisions.values())[1]
    assert (routing.padding == (MASK == 0)).all()
    (_, positions, gates, counts, _), weights = used[0], routing.weights.flatten(0, 1)
    first = 0
    for expert, count in enumerate(counts):
        rows = slice(first, first + count)
        assert torch.equal(weights[positions[rows], expert], gates[rows])
        first += count
    assert (weights > 0).sum() == len(gates) == 2 * TOKENS.numel()
    assert torch.equal(routing.indices.sort(-1).values.flatten(), weights.nonzero()[:, 1])
    assert len(decisions.frame()) == 2 * 6 * 5  # layers, positions without padding, experts
    assert not router._forward_hooks


def test_no_layout_is_advised_for_chosen_heads():
    with pytest.raises(ValueError, match=r"no layout describes; only headwise\.record takes it$"):
        _ = hw.Analysis(jetmoe(), [{"input_ids": TOKENS}]).record


@torch.no_grad()
def test_gates_are_means_over_a_head():
    model = plain("qwen3_next")
    attention = model.model.layers[1].self_attn
    hidden = []
    handle = attention.q_proj.register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    with hw.record(model) as decisions:
        model(TOKENS, attention_mask=MASK)
    handle.remove()
    ((place, (routing,)),) = decisions.items()
    assert place[:2] == ("decoder_self", 1) and place.path == "model.layers.1.self_attn"
    assert (routing.padding == (MASK == 0)).all()
    for head in range(3):
        rows = attention.q_proj.weight[8 * head + 4 : 8 * head + 8]
        gates = torch.sigmoid(hidden[0] @ rows.T).mean(-1)
        torch.testing.assert_close(routing.weights[..., head], gates)


@pytest.mark.parametrize("make", [jetmoe, lambda: plain("qwen3_next")])
@torch.no_grad()
def test_each_pass_of_generation_is_noted(make):
    model = make()
    settings = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    with hw.record(model) as decisions:
        model.generate(TOKENS, attention_mask=MASK, **settings)
    for made in decisions.values():
        assert [each.weights.size(1) for each in made] == [4, 1, 1]
        assert int(made[0].padding.sum()) == 2
