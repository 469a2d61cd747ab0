"""Each system equals its equations; no later token and no padding changes what it computes."""

import pytest
import test_tim
import torch
from fuzzing import examples, masks, paddings, random, seeds
from hypothesis import given
from hypothesis import strategies as st
from modules import MODULES, STEPS, build
from systems import DIM, SYSTEMS, as_float
from test_causality import run
from test_equations import check
from torch import Tensor

sizes = st.integers(1, 5)
batches = st.integers(1, 3)


@pytest.mark.parametrize("name", SYSTEMS)
@given(st.data(), seeds, batches, sizes)
@examples(suite=2, long=10)
def test_each_system_equals_its_equations(name, data, seed, batch, time):
    torch.manual_seed(seed)
    module = SYSTEMS[name].build()
    per_head = "moa" not in name
    given = data.draw(masks(batch, module.num_heads, time, time, per_head=per_head), label="masks")
    check(SYSTEMS[name], module, random(batch, time, DIM).requires_grad_(), **given)


@pytest.mark.parametrize("name", SYSTEMS)
@given(st.data(), seeds, batches, sizes, sizes)
@examples(suite=1, long=4)
def test_each_cross_attention_equals_its_equations(name, data, seed, batch, time, keys):
    torch.manual_seed(seed)
    module = SYSTEMS[name].build(kdim=5, vdim=7)
    per_head = "moa" not in name
    given = data.draw(masks(batch, module.num_heads, time, keys, per_head=per_head), label="masks")
    given["is_causal"] = False
    if data.draw(st.booleans(), label="with padding of queries"):
        given["query_padding_mask"] = data.draw(paddings(batch, time))
    inputs = random(batch, time, DIM), random(batch, keys, 5), random(batch, keys, 7)
    check(SYSTEMS[name], module, *(x.requires_grad_() for x in inputs), **given)


@pytest.mark.parametrize("form", test_tim.FORMS)
@given(st.data(), seeds, batches, sizes, sizes)
@examples(suite=2, long=10)
def test_a_layer_of_mechanisms_equals_its_algorithm(form, data, seed, batch, time, keys):
    torch.manual_seed(seed)
    layer = test_tim.build(form)
    given = data.draw(masks(batch, test_tim.HEADS, time, time), label="masks")
    if layer.cross_attention is not None:
        given["memory_key_padding_mask"] = data.draw(paddings(batch, keys))
    test_tim.check(layer, *test_tim.inputs(layer, batch, time, keys), **given)


@pytest.mark.parametrize("name", MODULES)
@given(st.data(), seeds, batches, st.integers(2, 8))
@examples(suite=3, long=10)
def test_a_later_token_changes_no_earlier_output(name, data, seed, batch, time):
    torch.manual_seed(seed)
    module = build(name, data.draw(st.sampled_from(STEPS), label="step"))
    form = data.draw(st.sampled_from(["flag", "boolean", "float", "per row"]), label="causal by")
    if name == "mae window":  # which needs to be told that it is causal
        form = "flag"
    causal = torch.ones(time, time, dtype=torch.bool).triu(1)
    how = {
        "flag": {"is_causal": True},
        "boolean": {"attn_mask": causal},
        "float": {"attn_mask": as_float(causal)},
        "per row": {"attn_mask": causal | (torch.rand(batch, 1, time, time) < 0.3)},
    }[form]
    if data.draw(st.booleans(), label="padded"):
        how["key_padding_mask"] = data.draw(paddings(batch, time))
    first = data.draw(st.integers(1, time - 1), label="first token that changes")
    x = random(batch, time, DIM)
    changed = x.clone()
    scale = data.draw(st.sampled_from([1e-3, 1.0, 1e3]), label="by how much")
    changed[:, first:] += scale * torch.randn_like(changed[:, first:])
    before, after = run(module, x, **how), run(module, changed, **how)
    torch.testing.assert_close(after.output[:, :first], before.output[:, :first])
    if before.routing is not None and before.routing.weights.dim() == 3:
        weights = before.routing.weights[:, :first]
        torch.testing.assert_close(after.routing.weights[:, :first], weights)


def wider(x: Tensor, left: int, right: int, rows: int) -> Tensor:
    """More positions, and more rows, which hold what must not matter."""
    batch, time, dim = x.shape
    made = torch.full((batch + rows, left + time + right, dim), 100.0, dtype=x.dtype)
    made[:batch, left : left + time] = x
    return made


@pytest.mark.parametrize("name", MODULES)
@given(
    st.data(),
    seeds,
    batches,
    st.integers(1, 6),
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)),
)
@examples(suite=3, long=10)
def test_more_padding_changes_no_output_and_no_loss(name, data, seed, batch, time, more):
    torch.manual_seed(seed)
    step = data.draw(st.sampled_from([None, "joint", "gate"]), label="step")
    causal = data.draw(st.booleans(), label="causal")
    padding = data.draw(paddings(batch, time), label="padding")
    module = build(name, step)
    left, right, rows = more
    x = random(batch, time, DIM)
    wide = torch.ones(batch + rows, left + time + right, dtype=torch.bool)
    wide[:batch, left : left + time] = padding
    noise = wider(x, left, right, rows).masked_fill(wide.unsqueeze(-1), -100.0)
    as_given = data.draw(st.sampled_from([lambda mask: mask, as_float]))
    before = run(module, x, key_padding_mask=as_given(padding), is_causal=causal)
    after = run(module, noise, key_padding_mask=as_given(wide), is_causal=causal)
    torch.testing.assert_close(after.output[~wide], before.output[~padding])
    if before.routing is None:
        return
    weights = before.routing.weights
    if weights.dim() == 3:
        torch.testing.assert_close(after.routing.weights[~wide], weights[~padding])
    if before.routing.loss is not None:
        torch.testing.assert_close(after.routing.loss, before.routing.loss)


@pytest.mark.parametrize("name", MODULES)
@given(
    st.data(),
    seeds,
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    st.sampled_from([0.0, 1e-30, 1e-8, 1e-2, 1.0, 1e2, 1e4]),
)
@examples(suite=2, long=10)
def test_inputs_of_any_size_give_finite_outputs_and_gradients(name, data, seed, dtype, scale):
    torch.manual_seed(seed)
    module = build(name, data.draw(st.sampled_from(STEPS), label="step")).to(dtype)
    batch, time = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    x = (scale * random(batch, time, DIM)).to(dtype).requires_grad_()
    padding = data.draw(paddings(batch, time), label="padding")
    out = module(x, key_padding_mask=padding, is_causal=data.draw(st.booleans()))
    total = out.output.float().mean()
    if out.routing is not None:
        assert out.routing.weights.isfinite().all()
        if out.routing.loss is not None:
            total = total + out.routing.loss
    assert out.output.isfinite().all() and total.isfinite()
    total.backward()
    for parameter in (x, *module.parameters()):
        assert parameter.grad is None or parameter.grad.isfinite().all()
