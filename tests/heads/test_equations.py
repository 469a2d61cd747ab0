"""Every system equals its paper's equations, written as plain loops: forward and gradients.

Options, blocks and masks are drawn; named forms are always tried. All in float64.
"""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.forms import BASE, DIM, FORMS, NINE, build, padding, turns
from support.reference import expected
from support.strategies import any_system, fewer, masks, paddings
from torch import Tensor

pytestmark = pytest.mark.quick
KDIM, VDIM = 6, 8


def equal_to_the_loops(module: Any, *sequences: Tensor, rotary: bool = False, **masks: Any) -> None:
    """Output, decisions, auxiliary loss and all gradients are those of the loops."""
    turned = {"rotary": turns(sequences[0].size(1), module)} if rotary else {}
    out = module(*sequences, **masks, **turned)
    base = {"rotary": BASE} if rotary else {}
    output, weights, loss = expected(module, *sequences, **masks, **base)
    torch.testing.assert_close(out.output, output, rtol=1e-9, atol=1e-9)
    assert (out.routing is None) == (weights is None)
    total, expected_total = out.output.sin().sum(), output.sin().sum()
    if weights is not None:
        torch.testing.assert_close(out.routing.weights, weights, rtol=1e-9, atol=1e-9)
        assert (out.routing.loss is None) == (loss is None)
    if loss is not None:
        torch.testing.assert_close(out.routing.loss, loss, rtol=1e-9, atol=1e-12)
        total, expected_total = total + 10 * out.routing.loss, expected_total + 10 * loss
    leaves = {f"input {i}": x for i, x in enumerate(sequences)} | dict(module.named_parameters())
    gradients, expected_gradients = (
        torch.autograd.grad(y, [*leaves.values()], allow_unused=True, materialize_grads=True)
        for y in (total, expected_total)
    )
    for name, x, y in zip(leaves, gradients, expected_gradients, strict=True):
        size = max(1.0, float(y.abs().max()) if y.numel() else 0.0)
        assert (x - y).abs().le(1e-8 * size).all(), name


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def any_call(data: Any, name: str, module: Any, rows: int, time: int, keys: int) -> dict[str, Any]:
    """The masks of a call that the system takes."""
    # Which experts read differs from token to token, so that no mask can be per head.
    heads = 1 if name == "moa" else module.num_heads
    drawn_masks = data.draw(masks(rows, heads, time, keys))
    if getattr(module, "gate_window", None) is not None:
        # What other masks leave of a window no paper says.
        hidden = data.draw(paddings(rows, keys, ("left",)))
        return {"is_causal": True, "key_padding_mask": hidden}
    return drawn_masks


@pytest.mark.parametrize("name", NINE)
@given(data=st.data())
def test_any_options_equal_the_equations(name: str, data: Any) -> None:
    module, rotary = data.draw(any_system(name))
    rows, time = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 4))
    call = any_call(data, name, module, rows, time, time)
    equal_to_the_loops(module, drawn(rows, time, DIM), rotary=rotary, **call)


@pytest.mark.parametrize("name", NINE)
@given(data=st.data())
def test_any_options_equal_the_equations_in_cross_attention(name: str, data: Any) -> None:
    """Keys and values have their own widths and length, and may be fewer than queries."""
    rows, time = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    keys = data.draw(st.sampled_from([2, 4]))
    hidden = data.draw(paddings(rows, keys))
    if name == "tim":
        module, rotary = data.draw(any_system(name, kdim=KDIM, cross_attention=True))
        call = any_call(data, name, module, rows, time, time)
        call["memory_key_padding_mask"] = hidden
        sequences = (drawn(rows, time, DIM), drawn(rows, keys, KDIM))
        return equal_to_the_loops(module, *sequences, rotary=rotary, **call)
    module, _ = data.draw(any_system(name, kdim=KDIM, vdim=VDIM))
    call = any_call(data, name, module, rows, time, keys)
    if getattr(module, "gate_window", None) is None:
        call["query_padding_mask"] = data.draw(paddings(rows, time))
    sequences = (drawn(rows, time, DIM), drawn(rows, keys, KDIM), drawn(rows, keys, VDIM))
    return equal_to_the_loops(module, *sequences, **call)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@fewer
def test_each_form_equals_the_equations(form: str, data: Any) -> None:
    tested = FORMS[form]
    module = tested.build()
    call = any_call(data, tested.system, module, 2, 3, 3)
    equal_to_the_loops(module, drawn(2, 3, DIM), rotary=tested.rotary, **call)


@pytest.mark.parametrize("name", NINE)
def test_masks_of_both_types_equal_the_equations(name: str) -> None:
    """-1e4 hides as -inf and `True` do, also from decisions; biases hide nothing, and add up."""
    module, x = FORMS[name].build(), drawn(2, 3, DIM)
    equal_to_the_loops(module, x, key_padding_mask=padding(2, 3, time=3))
    hidden = torch.zeros(2, 3, dtype=torch.float64).masked_fill(padding(2, 3, time=3), -1e4)
    equal_to_the_loops(module, x, key_padding_mask=hidden)
    biases = torch.randn(3, 3, dtype=torch.float64)
    equal_to_the_loops(module, x, key_padding_mask=hidden, attn_mask=biases)
    biases[0, 1] = biases[2, 0] = -1e4
    equal_to_the_loops(module, x, attn_mask=biases)


def test_training_without_dropout_is_by_the_same_equations() -> None:
    """A causal MAE normalises by running statistics also in training."""
    for name in NINE:
        module, x = FORMS[name].build(), drawn(2, 3, DIM)
        output, _, loss = expected(module, x, is_causal=True)
        out = module.train()(x, is_causal=True)
        torch.testing.assert_close(out.output, output, rtol=1e-9, atol=1e-9)
        if loss is not None:
            torch.testing.assert_close(out.routing.loss, loss)


@pytest.mark.parametrize("dropped", [1, 2])
def test_gates_of_sequences_normalise_by_the_batch_in_training(dropped: int) -> None:
    module, x = build("mae", dropped_heads=dropped), drawn(4, 3, DIM)
    hidden = padding(3, 2, 0, 1, time=3)  # a row of padding alone counts nowhere
    real = zip(x, hidden, strict=True)
    means = torch.stack([row[~pad].mean(0) for row, pad in real if not pad.all()]).detach()
    norm = module.gate.norm
    before = norm.running_mean.clone(), norm.running_var.clone()
    out = module.train()(x, key_padding_mask=hidden)
    torch.testing.assert_close(norm.running_mean, 0.9 * before[0] + 0.1 * means.mean(0))
    torch.testing.assert_close(norm.running_var, 0.9 * before[1] + 0.1 * means.var(0))
    with torch.no_grad():  # the loops normalise by what runs: give them the batch's
        norm.running_mean.copy_(means.mean(0))
        norm.running_var.copy_(means.var(0, unbiased=False))
    output, gates, _ = expected(module, x, key_padding_mask=hidden)
    torch.testing.assert_close(out.output, output, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out.routing.weights, gates)


def test_a_sequence_of_padding_alone_counts_in_no_balance() -> None:
    module = build("moa", balance="sequence")
    equal_to_the_loops(module, drawn(2, 3, DIM), key_padding_mask=padding(3, 0, time=3))


def test_noise_of_a_learned_size_moves_routers_in_training_alone() -> None:
    """Equation 3 of MoA: H(x) = x W_g + N(0, 1) · softplus(x W_noise)."""
    module, x = build("moa", noisy=True), drawn(2, 3, DIM)
    torch.testing.assert_close(module(x).output, expected(module, x)[0])
    torch.manual_seed(3)
    noise = torch.randn(2, 3, module.num_experts, dtype=torch.float64)
    size = torch.log1p(torch.exp(x @ module.router_noise.weight.T))
    probability = (x @ module.router.weight.T + noise * size).softmax(-1)
    torch.manual_seed(3)
    out = module.train()(x)
    largest = probability.topk(2)
    assert torch.equal(out.routing.indices, largest.indices)
    shares = largest.values / largest.values.sum(-1, keepdim=True)
    weights = torch.zeros_like(probability).scatter(-1, largest.indices, shares)
    torch.testing.assert_close(out.routing.weights, weights)
