"""Gradients: against finite differences, and who gets one in which step of training."""

import pytest
import torch
from reference import expert, head_outputs
from systems import DIM, GATED, HEADS, SYSTEMS, padding

BATCH, TIME = 2, 3


# By query norms selected heads count 1, of which finite differences see no gradient.
DIFFERENTIABLE = [name for name in SYSTEMS if "query norms" not in name]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_equal_finite_differences(name, train, causal):
    """In float64, with respect to inputs and every parameter, of the output and the loss."""
    small = {"gate_hidden_dim": 3} if name in GATED else {}
    module = SYSTEMS[name].build(8, train=train, kdim=2, vdim=3, **small)
    if getattr(
        module, "detach_normalizer", False
    ):  # the paper's wᵢ stops a gradient that finite differences see
        module.normalize_weights = False
    parameters = dict(module.named_parameters())

    def compute(query, key, value, *values):
        given = dict(zip(parameters, values, strict=True))
        masks = {"key_padding_mask": padding(3, 2, time=TIME), "is_causal": causal}
        out = torch.func.functional_call(module, given, (query, key, value), masks)
        loss = None if out.routing is None else out.routing.loss
        return out.output if loss is None else (out.output, loss)

    inputs = [torch.randn(BATCH, TIME, d, dtype=torch.float64) for d in (8, 2, 3)]
    leaves = [x.requires_grad_() for x in inputs] + list(parameters.values())
    # The running statistics move with every pass in training, but only a causal gate reads them.
    if train and (causal or name == "mae causal queries") and name in GATED:
        module.gate.norm.momentum = 0.0
    assert torch.autograd.gradcheck(compute, leaves, fast_mode=True)


@pytest.mark.parametrize("name", ["mae-7", "mae-6"])
def test_the_heads_left_out_of_an_f_step_get_no_gradient(name):
    """One sequence draws one expert: the slices of its heads, and no others, are exactly zero."""
    module = SYSTEMS[name].build(train=True)
    module.step = "expert"
    with torch.no_grad():
        module.gate.output.weight.zero_()  # so that each expert is drawn now and then
        module.gate.output.bias.zero_()
    seen = set()
    for seed in range(30):
        torch.manual_seed(seed)
        module.zero_grad()
        x = torch.randn(1, TIME, DIM, dtype=torch.float64)
        out = module(x)
        out.output.square().sum().backward()
        size = module.head_dim
        idle = []
        for j in range(HEADS):
            rows = slice(j * size, (j + 1) * size)
            grads = [getattr(module, f"{p}_proj").weight.grad[rows] for p in "qkv"]
            grads.append(module.out_proj.weight.grad[:, rows])
            zero = [not grad.any() for grad in grads]
            assert all(zero) or not any(zero)
            if all(zero):
                idle.append(j)
        assert len(idle) == module.dropped_heads
        parts = dict(module.named_parameters())
        for t in range(TIME):  # it is that expert which was computed
            heads = head_outputs(parts, x, x, x, HEADS, 0, t)
            expected = expert(heads, tuple(idle)) + parts["out_proj.bias"]
            torch.testing.assert_close(out.output[0, t], expected)
        seen.add(tuple(idle))
    assert len(seen) > 2


def assert_keeps_its_statistics(module, causal, shape=(4, 5)):
    """In training it computes as in evaluation; returns the output in training."""
    before = {name: value.clone() for name, value in module.named_buffers()}
    x = torch.randn(*shape, DIM, dtype=torch.float64)
    output = module(x, is_causal=causal).output
    for name, value in module.named_buffers():
        assert torch.equal(value, before[name])
    torch.testing.assert_close(output, module.eval()(x, is_causal=causal).output)
    return output


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("step", ["joint", "gate"])
def test_a_single_row_trains_by_the_running_statistics(step, causal):
    """A batch norm of one row has no variance to divide by."""
    module = SYSTEMS["mae-7"].build(train=True)
    module.step = step
    assert_keeps_its_statistics(module, causal, shape=(1, 1)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("step", ["joint", "gate"])
def test_a_frozen_gate_computes_as_in_evaluation_and_keeps_its_statistics(step, causal):
    module = SYSTEMS["mae-7"].build(train=True)
    module.step = step
    module.gate.dropout = 0.5
    module.gate.requires_grad_(False)
    assert_keeps_its_statistics(module, causal)


@pytest.mark.parametrize("causal", [False, True])
def test_a_frozen_norm_keeps_its_statistics_while_the_maps_behind_it_learn(causal):
    module = SYSTEMS["mae-7"].build(train=True)
    module.gate.dropout = 0.0
    module.gate.norm.requires_grad_(False)
    assert_keeps_its_statistics(module, causal).sum().backward()
    assert module.gate.hidden.weight.grad.any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [*GATED, "uni-mae"])
def test_f_steps_average_to_the_mixture(name, causal):
    """The expectation over experts drawn from the gate is the mixture by the gate."""
    module = SYSTEMS[name].build()
    draws = 4000
    with torch.no_grad():
        x = torch.randn(1, TIME, DIM, dtype=torch.float64)
        mixed = module(x, is_causal=causal).output
        module.train().step = "expert"
        drawn = module(x.expand(draws, -1, -1), is_causal=causal).output
    error = (drawn.mean(0) - mixed[0]).abs()
    assert (error < 5 * drawn.std(0) / draws**0.5).all()
    assert drawn.std(0).max() > 0.1  # there was something to average
