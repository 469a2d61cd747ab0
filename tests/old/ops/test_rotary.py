"""Rotary positions: against complex numbers, their own property, and transformers."""

import cmath

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from headwise.ops.rotary import Rotary, check_rope_parameters

BATCH, HEADS, TIME = 2, 3, 5


def naive(x, positions, base=10_000.0, share=1.0):
    """Pairs of channels as complex numbers, one token after the other."""
    turned = int(x.size(-1) * share)
    half, out = turned // 2, x.clone()
    for b in range(x.size(0)):
        for t in range(x.size(2)):
            position = int(positions[b, t] if positions.dim() == 2 else positions[t])
            for i in range(half):
                turn = cmath.exp(1j * position * base ** (-2 * i / turned))
                pair = torch.complex(x[b, :, t, i], x[b, :, t, i + half]) * turn
                out[b, :, t, i], out[b, :, t, i + half] = pair.real, pair.imag
    return out


@pytest.mark.parametrize("of_batch", [False, True])
@pytest.mark.parametrize(
    "width, parameters",
    [
        (2, {}),
        (8, {}),
        (6, {"rope_theta": 500.0}),
        (8, {"partial_rotary_factor": 0.5}),
        (10, {"partial_rotary_factor": 0.25, "rope_theta": 50.0}),  # 2 of them
    ],
    ids=str,
)
def test_equals_complex_numbers_forward_and_backward(width, parameters, of_batch):
    positions = torch.randint(0, 900, (BATCH, TIME) if of_batch else (TIME,))
    x = torch.randn(BATCH, HEADS, TIME, width, dtype=torch.float64, requires_grad=True)
    share = parameters.get("partial_rotary_factor", 1.0)
    expected = naive(x, positions, parameters.get("rope_theta", 10_000.0), share)
    got = Rotary(positions, parameters)(x)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    direction = torch.randn_like(x)
    grads = [torch.autograd.grad(y, x, direction) for y in (got, expected)]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)


def test_products_depend_on_distances_alone():
    q, k = torch.randn(2, BATCH, HEADS, TIME, 8, dtype=torch.float64)
    here, there = (Rotary(torch.arange(TIME) + offset) for offset in (0, 71))
    products = here(q) @ here(k).mT
    torch.testing.assert_close(there(q) @ there(k).mT, products)
    assert not torch.allclose(products, q @ k.mT)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
SCALED = [{"rope_type": "linear", "factor": 2.0}, LLAMA3, YARN, {**YARN, "beta_fast": 16}]


@pytest.mark.parametrize("parameters", [{}, {"rope_theta": 500.0}, *SCALED], ids=str)
def test_equals_transformers(parameters):
    whole = {"rope_theta": 10_000.0, "rope_type": "default", **parameters}
    sizes = {"hidden_size": 48, "num_attention_heads": 3, "max_position_embeddings": 256}
    config = LlamaConfig(**sizes, rope_parameters=dict(whole))
    x = torch.randn(BATCH, HEADS, 200, 16)
    positions = torch.arange(200)
    cosines, sines = LlamaRotaryEmbedding(config)(x, positions.expand(BATCH, -1))
    expected, _ = apply_rotary_pos_emb(x, x, cosines, sines)
    check_rope_parameters(parameters, 16)
    torch.testing.assert_close(Rotary(positions, parameters)(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parameters", [{}, *SCALED], ids=str)
def test_a_part_of_a_head_equals_a_head_of_that_width(parameters):
    turn = Rotary(torch.arange(TIME), parameters)
    of_part = Rotary(turn.positions, {**parameters, "partial_rotary_factor": 0.5})
    x = torch.randn(BATCH, HEADS, TIME, 16)
    torch.testing.assert_close(of_part(x), torch.cat([turn(x[..., :8]), x[..., 8:]], -1))


def test_bf16_is_turned_by_angles_in_float32():
    """bf16 tells no position above 256 from the next."""
    x = torch.randn(BATCH, HEADS, TIME, 8).bfloat16()
    turn = Rotary(torch.arange(TIME) + 1000)
    assert turn(x).dtype == torch.bfloat16
    assert torch.equal(turn(x), turn(x.float()).bfloat16())


@pytest.mark.parametrize(
    "parameters, parts",
    [
        (5, ["rope_parameters is 5", "a mapping"]),
        ({"rope_type": "dynamic"}, ["rope_type is 'dynamic'", "default, linear, llama3, yarn"]),
        ({"rope_theta": -1.0}, ["rope_theta is -1.0", "a positive number"]),
        ({"rope_theta": "big"}, ["rope_theta is 'big'", "a positive number"]),
        ({"theta": 500.0}, ["'theta'", "rope_type 'default' has rope_theta"]),
        ({"factor": 2.0}, ["'factor'", "rope_type 'default' has"]),
        ({"partial_rotary_factor": 0.4}, ["turn 3 channels", "head_dim = 8", "an even number"]),
        ({"partial_rotary_factor": 1.5}, ["turn 12 channels", "from 2 to 8"]),
        ({"partial_rotary_factor": "half"}, ["partial_rotary_factor is 'half'", "positive"]),
        ({"rope_type": "linear"}, ["has no 'factor'", "rope_type 'linear' needs"]),
        ({"rope_type": "linear", "factor": "2"}, ["factor is '2'", "a positive number"]),
        ({**LLAMA3, "factor": 0}, ["factor is 0", "a positive number"]),
    ],
    ids=str,
)
def test_parameters_that_do_not_fit_are_an_error(parameters, parts):
    with pytest.raises(ValueError) as error:
        check_rope_parameters(parameters, 8)
    assert all(part in str(error.value) for part in parts), error.value


def test_layers_on_several_devices_share_the_positions():
    turn = Rotary(torch.arange(3))
    for device in ("cpu", "meta"):
        assert turn(torch.zeros(1, 1, 3, 4, device=device)).device.type == device
