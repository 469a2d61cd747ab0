"""How heads are scaled, and the draw of experts in F steps: one for each training instance, or for
each position.
"""

import pytest
import torch
from systems import DIM, SYSTEMS
from torch.utils.checkpoint import checkpoint

from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.heads.mae.layer import draw_expert, head_scales, kept_shares, left_out_heads

INSTANCE, POSITION = "expert", "expert by position"


def test_experts_are_drawn_in_proportion_to_their_gates():
    gates = torch.tensor([0.1, 0.0, 0.6, 0.3])
    drawn = draw_expert(gates.expand(20_000, 4), torch.rand(20_000, 4))
    assert (drawn.sum(-1) == 1).all()
    frequency = drawn.mean(0)
    assert frequency[1] == 0
    torch.testing.assert_close(frequency, gates, rtol=0, atol=0.015)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_at_the_edges(dtype):
    """An expert of gate 0 is never drawn, and noise of exactly 0 draws one."""
    gates = torch.tensor([0.25, 0.0, 0.75], dtype=dtype)
    for noise, expected in (
        ([0.0, 0.0, 0.5], 0),
        ([0.5, 0.0, 0.5], 2),
        ([0.0, 0.0, 0.0], 2),
        ([0.9999999, 0.0, 0.9999999], 2),
    ):
        drawn = draw_expert(gates, torch.tensor(noise))
        assert drawn.tolist() == [float(i == expected) for i in range(3)]


def test_by_shared_noise_every_position_still_follows_its_own_gate():
    gates = torch.randn(5, 4).softmax(-1)
    drawn = draw_expert(gates.expand(20_000, 5, 4), torch.rand(20_000, 1, 4))
    torch.testing.assert_close(drawn.mean(0), gates, rtol=0, atol=0.015)


def drawn_by(monkeypatch, layer, *args, **masks):
    """The experts that a pass of a layer draws, `(batch, 1 or queries, experts)`."""
    seen = []

    def spy(gates, noise):
        seen.append(draw_expert(gates, noise))
        return seen[-1]

    with monkeypatch.context() as patched:
        patched.setitem(MixtureOfAttentiveExperts.combine.__globals__, "draw_expert", spy)
        layer(*args, **masks)
    (drawn,) = seen
    return drawn


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("step", [INSTANCE, POSITION])
def test_gates_that_are_equal_everywhere_draw_an_expert_per_instance(monkeypatch, step, cross):
    layer = SYSTEMS["mae causal queries"].build(train=True, gate="uniform")
    layer.step = step
    x = torch.randn(40, 12, DIM, dtype=torch.float64)
    args = (x, x[:, :5]) if cross else (x,)
    drawn = drawn_by(monkeypatch, layer, *args)
    assert drawn.shape == (40, 12, 4)
    same = (drawn == drawn[:, :1]).all(-1).all(-1)
    assert same.all() if step == INSTANCE else not same.any()
    assert (drawn[:, 0].sum(0) > 0).all()  # instances differ


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equal_gates_are_in_float32_whatever_the_input_is(dtype):
    layer = SYSTEMS["mae-7"].build(dtype=dtype, train=True, gate="uniform")
    layer.step = INSTANCE
    out = layer(torch.randn(2, 3, DIM, dtype=dtype))
    assert (out.output.dtype, out.routing.weights.dtype) == (dtype, torch.float32)


def test_checkpoints_work_after_gradients_of_each_example():
    layer = SYSTEMS["mae-7"].build(dtype=torch.float32, train=True)
    values = dict(layer.named_parameters()), dict(layer.named_buffers())
    x = torch.randn(2, 3, DIM, requires_grad=True)

    def loss(parameters, row):
        given = (parameters, values[1])
        return torch.func.functional_call(layer, given, (row[None],)).output.sum()

    torch.func.vmap(torch.func.grad(loss), (None, 0))(values[0], x.detach())
    checkpoint(lambda x: layer(x).output, x, use_reentrant=False).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("step", [INSTANCE, POSITION])
def test_the_expert_of_a_position_depends_on_nothing_later(monkeypatch, step):
    layer = SYSTEMS["mae-7"].build(train=True)
    layer.step = step
    with torch.no_grad():
        layer.gate.output.weight.mul_(10)  # so that gates differ much
    x = torch.randn(40, 10, DIM, dtype=torch.float64)
    changed = x.clone()
    changed[:, 6:] += 10 * torch.randn_like(changed[:, 6:])
    drawn = []
    for inputs in (x, changed):
        torch.manual_seed(3)
        drawn.append(drawn_by(monkeypatch, layer, inputs, is_causal=True))
    assert torch.equal(drawn[0][:, :6], drawn[1][:, :6])
    assert not torch.equal(drawn[0][:, 6:], drawn[1][:, 6:])


@pytest.mark.parametrize(("heads", "dropped"), [(2, 1), (6, 1), (8, 1), (6, 2), (5, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_of_heads_are_those_of_the_mixture_to_the_digit(heads, dropped, dtype):
    left_out = left_out_heads(heads, dropped).to(dtype)
    gates = torch.randn(3, len(left_out), dtype=dtype).softmax(-1).requires_grad_()
    found = head_scales(gates, left_out, dropped, kept_shares(heads, dropped)[dtype])
    expected = (1 - gates @ left_out) / (1 - left_out.mean(0))
    assert torch.equal(found, expected)
    grads = [torch.autograd.grad(y.square().sum(), gates) for y in (found, expected)]
    torch.testing.assert_close(*grads)
