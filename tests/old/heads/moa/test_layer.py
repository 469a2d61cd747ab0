"""What MoA's options change: the noise of its router, its first weights, and its precision."""

import math

import pytest
import torch
from systems import DIM, SYSTEMS, randomize
from torch import nn
from transformers import JetMoeConfig
from transformers.models.jetmoe.modeling_jetmoe import JetMoeAttention, JetMoeRotaryEmbedding

import headwise as hw
from headwise.ops.rotary import Rotary

EXPERTS = 4


@pytest.mark.parametrize(("learned", "size"), [(-1e3, 0.0), (0.0, math.log(2))])
def test_noise_has_at_least_the_deviation_of_its_floor(learned, size):
    """With the router's zeros a logarithm of a ratio of weights is the difference of two noises."""
    layer = hw.MixtureOfAttentionHeads(DIM, EXPERTS, EXPERTS, 3, noisy=True, noise_floor=0.3)
    torch.nn.init.constant_(layer.router_noise.weight, learned)
    x = torch.ones(20_000, 1, DIM)
    with torch.no_grad():
        noise = layer(x).routing.weights.log().diff(dim=-1)
        quiet = layer.eval()(x).routing.weights
    assert noise.std().item() == pytest.approx(2**0.5 * (0.3 + size), rel=0.03)
    assert torch.equal(quiet, torch.full_like(quiet, 1 / EXPERTS))


@pytest.mark.parametrize("gains", [{"key_gain": 0.5}, {"output_gain": 4.0}, {}])
def test_gains_scale_the_bounds_of_what_is_drawn(gains):
    width = 64
    layer = hw.MixtureOfAttentionHeads(width, EXPERTS, 2, 16, **gains)
    glorot = (6 / (width + 16)) ** 0.5
    drawn = {
        layer.k_proj.weight: gains.get("key_gain", 1),
        layer.v_proj.weight: gains.get("key_gain", 1),
        layer.expert_output: gains.get("output_gain", 1),
        layer.expert_query: 1,
    }
    for weight, gain in drawn.items():
        assert 0.97 < weight.abs().max().item() / (gain * glorot) < 1 + 1e-6


def test_the_router_chooses_in_float32_under_autocast():
    layer = SYSTEMS["moa"].build(dtype=torch.float32)
    x = torch.randn(2_000, 1, DIM)
    with torch.no_grad():
        expected = layer(x).routing.indices
        with torch.autocast("cpu", torch.bfloat16):
            chosen = layer(x).routing.indices
            in_bf16 = layer.router(x).topk(layer.top_k).indices
    assert torch.equal(chosen, expected)
    assert not torch.equal(in_bf16, expected)


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("experts", [2, 4, 16])
def test_without_gradients_the_output_is_the_same(tokens, experts):
    """Few tokens go another way there; float64."""
    sizes = {"num_experts": experts, "top_k": 2, "head_dim": 4}
    attention = hw.MixtureOfAttentionHeads(8, **sizes, expert_bias=True).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(tokens, 2, 8, dtype=torch.float64)
    with torch.no_grad():
        without = attention(x)
    torch.testing.assert_close(without.output, attention(x).output.detach())
    torch.testing.assert_close(without.routing.weights, attention(x).routing.weights.detach())


def test_generation_computes_no_loss():
    attention = hw.MixtureOfAttentionHeads(8, num_experts=4, top_k=2, head_dim=4)
    x = torch.randn(1, 3, 8)
    with torch.no_grad():
        assert attention(x, is_causal=True, cache=hw.AttentionCache()).routing.loss is None
        assert attention(x, is_causal=True).routing.loss > 0
    assert attention(x, is_causal=True, cache=hw.AttentionCache()).routing.loss.requires_grad


@pytest.mark.parametrize("causal", [False, True])
def test_heads_for_several_key_heads_equal_those_of_jetmoe(causal):
    """transformers' own attention: the output, and the gradients of every parameter."""
    experts, top_k, keys, width, time = 6, 3, 2, 8, 7
    config = JetMoeConfig(
        hidden_size=DIM, kv_channels=width, num_key_value_heads=keys, num_local_experts=experts,
        num_experts_per_tok=top_k, attention_dropout=0.0, attn_implementation="eager",
    )  # fmt: skip
    theirs = randomize(JetMoeAttention(config, layer_idx=0).double()).train()
    preset = hw.MixtureOfAttentionHeads.presets["jetmoe"]
    sizes = {"num_experts": experts, "top_k": top_k, "head_dim": width}
    ours = hw.MixtureOfAttentionHeads(DIM, **sizes, num_key_value_heads=keys, **preset).double()

    def pairs(name):
        """What theirs has in the place of each of our parameters: its values or its gradient."""
        given = {key: getattr(each, name) for key, each in theirs.named_parameters()}
        k, v = given["kv_proj.weight"].chunk(2)
        return {
            "router.weight": given["experts.router.layer.weight"],
            "k_proj.weight": k,
            "v_proj.weight": v,
            "expert_query": given["experts.input_linear.weight"].mT,
            "expert_output": given["experts.output_linear.weight"].mT,
            "output_bias": given["experts.bias"],
        }

    ours.load_state_dict(pairs("data"))
    x = torch.randn(2, time, DIM, dtype=torch.float64)
    positions = torch.arange(time)
    turns = JetMoeRotaryEmbedding(config)(x.float(), positions.expand(2, -1))
    future = torch.full((time, time), float("-inf"), dtype=torch.float64).triu(1)
    turns = tuple(each.double() for each in turns)
    expected = theirs(x, future if causal else None, turns)[0]
    out = ours(x, is_causal=causal, rotary=Rotary(positions, config.rope_parameters))
    torch.testing.assert_close(out.output, expected, rtol=1e-5, atol=1e-5)  # their turns: float32
    direction = torch.randn_like(expected)
    (out.output * direction).sum().backward(), (expected * direction).sum().backward()
    wanted = pairs("grad")
    assert wanted.keys() == dict(ours.named_parameters()).keys()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-4, atol=1e-4)
    plain = {**preset, "detach_normalizer": True}
    detached = hw.MixtureOfAttentionHeads(DIM, **sizes, num_key_value_heads=keys, **plain).double()
    detached.load_state_dict(ours.state_dict())
    out = detached(x, is_causal=causal, rotary=Rotary(positions, config.rope_parameters))
    torch.testing.assert_close(out.output, expected, rtol=1e-5, atol=1e-5)
    (out.output * direction).sum().backward()
    assert not torch.allclose(detached.router.weight.grad, wanted["router.weight"], atol=1e-2)
