"""MAE's gates: their first weights; which passes move their batch norm, and which compute by it."""

import copy
import math
import warnings

import pytest
import torch
from systems import SYSTEMS, padding
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.checkpoint import checkpoint

import headwise as hw
from headwise.heads.mae import gate
from headwise.heads.mae.means import View, running_mean
from headwise.heads.mae.rule import computing

DIM, TIME = 12, 5
CAUSAL = {"is_causal": True}


@pytest.mark.parametrize(
    ("init", "entropy", "within"),
    [("zero", math.log(8), 1e-6), ("default", 2.048, 0.01), ("xavier", 1.845, 0.03)],
)
def test_how_undecided_a_gate_over_8_experts_starts(init, entropy, within):
    """Of the three draws each is farther from the next than its bound; see docs/readings.md."""
    layer = hw.MixtureOfAttentiveExperts(128, 8, gate_init=init, gate_dropout=0.0)
    out = layer(torch.randn(400, 1, 128))
    found = torch.special.entr(out.routing.weights).sum(-1).mean()
    assert abs(found.item() - entropy) < within
    out.output.square().sum().backward()
    assert layer.gate.output.weight.grad.any()  # a first map at zero too would never learn


def test_a_norm_in_evaluation_is_that_of_running_statistics():
    """Forward and backward, in float64, against the equation."""
    gate = hw.MixtureOfAttentiveExperts(DIM, 4).double().gate.eval()
    norm = gate.norm
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    nn.init.normal_(gate.output.weight)
    x = torch.randn(2, TIME, DIM, dtype=torch.float64, requires_grad=True)
    found, _ = gate(View(x, torch.ones(2, TIME, 1), None, True), {}, fixed=False)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    hidden = gate.hidden((x - norm.running_mean) * scale + norm.bias)
    expected = gate.output(hidden.tanh()).softmax(-1)
    leaves = [x, *gate.parameters()]
    grads = [torch.autograd.grad(y.square().sum(), leaves) for y in (found, expected)]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*grads)


class Stack(nn.Module):
    """Two attentions, each of which a user may checkpoint with PyTorch's own function."""

    def __init__(self, name="mae-7", masks=CAUSAL, **checkpointing):
        super().__init__()
        self.layers = nn.ModuleList(SYSTEMS[name].build(train=True) for _ in range(2))
        for layer in self.layers:
            if layer.gate is not None:
                layer.gate.norm.momentum = 0.5  # what is moved at all is seen
        self.masks = masks
        self.checkpointing = checkpointing

    def forward(self, x):
        for layer in self.layers:
            if self.checkpointing:
                x = checkpoint(self.one, layer, x, **self.checkpointing)
            else:
                x = self.one(layer, x)
        return x

    def one(self, layer, x):
        return x + layer(x, **self.masks).output

    def checkpointed(self, reentrant):
        other = copy.deepcopy(self)
        other.checkpointing = {"use_reentrant": reentrant}
        return other


def sequences(count=1, rows=3):
    return list(torch.randn(count, rows, TIME, DIM, dtype=torch.float64))


def learn(stack, batches, together):
    """The gradients of inputs and parameters; all passes before the backward passes, or not."""
    batches = [x.clone().requires_grad_() for x in batches]
    losses = []
    for factor, x in enumerate(batches, start=1):
        losses.append(factor * stack(x).square().sum())
        if not together:
            losses.pop().backward()
    for loss in losses:  # in their order: the last pass is not the first to be repeated
        loss.backward()
    return [each.grad for each in (*batches, *stack.parameters())]


@pytest.mark.parametrize("masks", [CAUSAL, {}, {"key_padding_mask": padding(5, 2, 4, time=TIME)}])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["mae-7", "mae window"])
def test_checkpointing_repeats_what_was_computed_and_moves_statistics_once(name, reentrant, masks):
    plain = Stack(name, masks)
    found = plain.checkpointed(reentrant)
    start = copy.deepcopy(plain.state_dict())
    # Reentrant checkpointing moves statistics in the backward pass.
    expected_gradients = learn(plain, batches := sequences(4), together=not reentrant)
    gradients = learn(found, batches, together=not reentrant)
    for expected, gradient in zip(expected_gradients, gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9)
    for key, expected in plain.state_dict().items():
        torch.testing.assert_close(found.state_dict()[key], expected, rtol=1e-9, atol=1e-9)
        if "running" in key:
            assert (expected - start[key]).abs().max() > 0.1
        if "tracked" in key:
            assert expected == start[key] + 4


def test_a_pass_that_is_repeated_later_has_the_experts_of_its_own_step():
    plain = Stack("uni-mae")
    found = plain.checkpointed(False)
    gradients = []
    for stack in (plain, found):
        torch.manual_seed(0)
        with computing(stack.layers, "expert"):
            loss = stack(torch.ones(2, TIME, DIM, dtype=torch.float64, requires_grad=True)).sum()
        loss.backward()  # outside of the step
        gradients.append([parameter.grad for parameter in stack.parameters()])
    for expected, gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_a_repeated_pass_that_was_forgotten_is_warned_of():
    found = Stack().checkpointed(False)
    loss = found(sequences()[0].requires_grad_()).sum()
    found.layers[0].passes.last.clear()
    with pytest.warns(UserWarning, match="none of the last 0 passes"):
        loss.backward()


@pytest.mark.parametrize("masks", [CAUSAL, {}])
def test_a_norm_in_evaluation_is_as_in_evaluation_though_the_gate_learns(masks):
    layer = SYSTEMS["mae-7"].build(train=True)
    layer.gate.norm.eval()
    (x,) = sequences()
    before = copy.deepcopy(layer.state_dict())
    output = layer(x, **masks).output
    output.sum().backward()
    assert layer.gate.norm.weight.grad.abs().sum() > 0
    for key, expected in before.items():
        assert torch.equal(layer.state_dict()[key], expected), key
    torch.testing.assert_close(output, layer.eval()(x, **masks).output)


@pytest.mark.parametrize("masks", [CAUSAL, {}])
def test_a_pass_without_gradients_moves_nothing(masks):
    layer = SYSTEMS["mae-7"].build(train=True)
    before = copy.deepcopy(layer.state_dict())
    (x,) = sequences()
    with torch.no_grad():
        layer(x, **masks)
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)
    layer(x, **masks)
    assert not torch.equal(layer.gate.norm.running_mean, before["gate.norm.running_mean"])


def test_a_batch_that_no_statistics_are_needed_of_is_not_measured(monkeypatch):
    """Else a process that computes by itself would wait for the others."""
    layer = SYSTEMS["mae-7"].build(train=True)
    measured = []
    monkeypatch.setattr(gate, "sum_over_replicas", lambda x: measured.append(x) or x)
    (x,) = sequences()
    with torch.no_grad():
        layer(x, **CAUSAL)
    assert not measured
    layer(x, **CAUSAL)
    assert measured


def statistics(rows):
    """What `nn.BatchNorm1d` makes of one batch: mean and unbiased variance."""
    return rows.mean(0), rows.var(0)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("causal", [True, False])
def test_update_bn_takes_the_mean_of_all_batches(causal, frozen):
    stack = Stack(masks=CAUSAL if causal else {}).requires_grad_(not frozen)
    model = AveragedModel(stack)
    batches = sequences(4)
    update_bn(batches, model)
    rows = [running_mean(x).mean.flatten(0, 1) if causal else x.mean(1) for x in batches]
    means, variances = zip(*map(statistics, rows), strict=True)
    norm = model.module.layers[0].gate.norm
    torch.testing.assert_close(norm.running_mean, torch.stack(means).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack(variances).mean(0))
    assert norm.num_batches_tracked == 4 and norm.momentum == 0.5


def test_what_is_recorded_is_recorded_once():
    """Under PyTorch's own checkpointing, as under that of the models."""
    stack = Stack().checkpointed(False)
    with hw.record(stack) as decisions, warnings.catch_warnings():
        warnings.simplefilter("error")
        stack(sequences()[0].requires_grad_()).sum().backward()
    assert [len(made) for made in decisions.values()] == [1, 1]


@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("masks", [{}, CAUSAL])
def test_f_steps_move_the_statistics_if_these_are_to_be_fresh(masks, reentrant):
    kept, fresh = (
        SYSTEMS["mae-7"].build(train=True, gate_statistics=which) for which in ("kept", "fresh")
    )
    fresh.load_state_dict(kept.state_dict())
    (x,) = sequences()
    x.requires_grad_()
    for layer in (kept, fresh):
        before = layer.gate.norm.running_mean.clone()
        one = lambda x, layer=layer: layer(x, **masks).output.sum()  # noqa: E731
        with computing([layer], "expert"):
            loss = one(x) if reentrant is None else checkpoint(one, x, use_reentrant=reentrant)
            loss.backward()
        rows = running_mean(x.detach()).mean.flatten(0, 1) if masks else x.detach().mean(1)
        moved = before + layer.gate.norm.momentum * (statistics(rows)[0] - before)
        if layer is fresh:
            torch.testing.assert_close(layer.gate.norm.running_mean, moved)
        assert (layer is fresh) != torch.equal(layer.gate.norm.running_mean, before)
        assert all(p.grad is None or not p.grad.any() for p in layer.gate.parameters())
