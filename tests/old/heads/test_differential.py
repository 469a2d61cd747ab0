"""Differential attention by itself: where it starts, what it subtracts, and its ablations."""

import pytest
import torch
from systems import DIM, HEADS, SYSTEMS

import headwise as hw
from headwise.heads.ablations import drawn_weights
from headwise.models.ablation import ablation_of

BATCH, TIME = 2, 5


@pytest.fixture
def layer():
    return SYSTEMS["differential"].build()


@pytest.fixture
def x():
    return torch.randn(BATCH, TIME, DIM).double()


def ablated(layer, x, name, **options):
    layer.ablation = ablation_of(layer, name, options)
    out = layer(x, is_causal=True)
    layer.ablation = None
    return out


@pytest.mark.parametrize("source", [hw.MultiHeadAttention, torch.nn.MultiheadAttention])
def test_from_a_standard_attention_the_output_stays(source):
    options = {"batch_first": True} if source is torch.nn.MultiheadAttention else {}
    standard = source(DIM, HEADS, **options).double().eval()
    x = torch.randn(BATCH, TIME, DIM).double()
    made = hw.DifferentialAttention.from_attention(standard)
    torch.testing.assert_close(made(x).output, standard(x, x, x)[0], rtol=1e-12, atol=1e-12)
    made(x).output.sin().sum().backward()
    silent = {name for name, p in made.named_parameters() if not p.grad.abs().sum() > 1e-12}
    assert silent == {"k_proj.bias"}  # which no softmax depends on


def test_without_subtraction_it_is_standard_attention(layer, x):
    standard = SYSTEMS["standard"].build()
    standard.load_state_dict(layer.state_dict(), strict=False)
    expected = standard(x, is_causal=True).output
    out = ablated(layer, x, "without-subtraction")
    torch.testing.assert_close(out.output, expected, rtol=1e-12, atol=1e-12)
    assert not out.routing.weights.any()


@pytest.mark.parametrize("name", ["uniform", "random"])
def test_ablations_leave_the_sum_of_a_positions_shares(layer, x, name):
    shares = layer(x, is_causal=True).routing.weights
    (drawn,) = drawn_weights(HEADS, 1, 0, 0, 1)
    each = {"uniform": torch.full((HEADS,), 1 / HEADS), "random": drawn}[name].double()
    out = ablated(layer, x, name)
    torch.testing.assert_close(out.routing.weights, each * shares.sum(-1, keepdim=True))
    assert not torch.allclose(out.output, layer(x, is_causal=True).output)


def test_a_row_of_weights_sums_to_what_is_not_subtracted(layer, x):
    out = layer(x, is_causal=True, need_weights=True)
    torch.testing.assert_close(out.weights.sum(-1), 1 - out.routing.weights.transpose(1, 2))
    assert (out.weights < 0).any()


def test_it_does_not_go_over_the_heads_of_another_module():
    for neutral in (True, False):
        with pytest.raises(ValueError, match="have read already"):
            hw.DifferentialAttention.over_heads(16, 4, 4, neutral=neutral)
