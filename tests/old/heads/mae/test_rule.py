"""MAE's gates and experts learn in turn: what moves in a G step, in an F step, in neither."""

import copy
import warnings

import pytest
import torch
import toy
from torch.utils.checkpoint import checkpoint

from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.heads.mae.rule import (
    GateSettings,
    computing,
    gate_step,
    gate_step_is_due,
    update_gates,
)
from headwise.heads.rule import Moment
from headwise.heads.watching import UntrainedRuleWarning
from headwise.models.parameters import gate_parameters, non_gate_parameters
from headwise.training.rules import TrainingRules
from headwise.training.trainer import Trainer

GATE = ".gate."
# Behind a map that starts at zero nothing would move in the first step.
ONE_LAYER = {"encoder_self": {"system": "mae", "gate_init": "default"}}
UNIFORM = {"encoder_self": {"system": "mae", "gate": "uniform"}}


def settings(**gates):
    return toy.settings(mae=GateSettings(**gates))


def changed(before, after):
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize(
    ("how", "due"),
    [({}, [0, 5, 10]), ({"period": 4, "unit": "steps"}, [3, 7, 11]), ({"method": "joint"}, [])],
)
def test_when_g_steps_are_due(how, due):
    """By default in every fifth epoch, counted from the first."""
    moments = [Moment(1001 + epoch, 2000, epoch) for epoch in range(12)]
    found = [moment.epoch for moment in moments if gate_step_is_due(GateSettings(**how), moment)]
    assert found == due


def test_epochs_are_counted_in_training(tmp_path):
    # 5 batches an epoch, 2 of them an optimizer step: 3 steps an epoch.
    how = settings(period=2).model_copy(update={"gradient_accumulation": 2, "max_steps": 9})
    steps = toy.watch(tmp_path, toy.model(ONE_LAYER), how).steps
    kinds = ["".join(kind for kind, *_ in step) for step in steps]
    assert kinds == ["GF"] * 3 + ["F"] * 3 + ["GF"] * 3


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_g_step_moves_gates_and_an_f_step_everything_else(tmp_path, accumulation):
    how = settings(period=2, unit="steps").model_copy(
        update={"gradient_accumulation": accumulation, "max_steps": 4}
    )
    plan = {"system": "mae", "gate_init": "default"}
    trainer = toy.watch(tmp_path, toy.model(plan, dropout=0.1), how)
    names = {name for name, _ in trainer.model.named_parameters()}
    gates = {name for name in names if GATE in name}
    statistics = {name for name, _ in trainer.model.named_buffers() if GATE in name}
    assert statistics and all(".gate.norm." in name for name in statistics)
    kinds = []
    for step in trainer.steps:
        for kind, before, after in step:
            kinds.append(kind)
            moved = changed(before, after)
            if kind == "G":
                # The shift of a normalised summary and a key's bias change no softmax.
                assert moved & names <= gates
                assert {name for name in gates if "weight" in name} <= moved
                assert moved - names == statistics
            else:
                assert not moved & (gates | statistics)
                exact = {name for name in names - gates if "k_proj.bias" not in name}
                tied = {"model.decoder.embedding.weight", "lm_head.weight"}
                assert exact <= moved <= (names - gates) | tied
    assert "".join(kinds) == "GFFGFF"


def test_a_g_step_is_gradient_descent_at_the_given_rate_on_the_mixture(tmp_path):
    network = toy.model("mae", dropout=0.0)
    for layer in network.modules():
        if isinstance(layer, MixtureOfAttentiveExperts):
            layer.gate.dropout = 0.0
    twin = copy.deepcopy(network)
    how = settings(learning_rate=0.7).model_copy(update={"gradient_accumulation": 2})
    trainer = Trainer(network, toy.Reversals(40), toy.Reversals(8), toy.join, how, tmp_path)
    batches = list(trainer.get_train_dataloader())[:2]
    items = sum((batch["labels"] != -100).sum() for batch in batches)

    trainer.rules.before(Moment(0, 12, 0), lambda: trainer._losses(batches, items))

    twin.train()  # outside a turn, MAE mixes all experts
    loss = sum(twin(**batch, num_items_in_batch=items).token_loss for batch in batches)
    gates = gate_parameters(twin)
    gradients = torch.autograd.grad(loss, gates)
    for moved, start, gradient in zip(gate_parameters(network), gates, gradients, strict=True):
        torch.testing.assert_close(moved, start - 0.7 * gradient)
    assert max(float(gradient.abs().max()) for gradient in gradients) > 1e-4


def test_gates_have_no_momentum_and_adam_does_not_know_them(tmp_path):
    network = toy.model("mae")
    trainer = Trainer(network, toy.Reversals(8), toy.Reversals(8), toy.join, settings(), tmp_path)
    optimizer = trainer.create_optimizer()
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert known == {id(p) for p in non_gate_parameters(network)}
    # The same gradient twice moves a gate by the same amount twice.
    parameter = torch.nn.Parameter(torch.zeros(2))
    for expected in (-0.5, -1.0):
        parameter.grad = torch.ones(2)
        update_gates([parameter], learning_rate=0.5)
        assert parameter.tolist() == [expected] * 2
        assert parameter.grad is None


def test_g_and_f_step_see_the_same_batches(tmp_path, monkeypatch):
    seen = []
    forward = toy.Seq2SeqLM.forward

    def spy(self, *args, **kwargs):
        if self.training:
            layer = next(m for m in self.modules() if isinstance(m, MixtureOfAttentiveExperts))
            seen.append((layer.step, kwargs["labels"].tolist()))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(toy.Seq2SeqLM, "forward", spy)
    how = settings().model_copy(update={"gradient_accumulation": 2, "max_steps": 2})
    toy.watch(tmp_path, toy.model(ONE_LAYER), how)
    assert [step for step, _ in seen] == ["gate", "gate", "expert", "expert"] * 2
    batches = [labels for _, labels in seen]
    assert batches[0:2] == batches[2:4] != batches[4:6] == batches[6:8]


def test_uniform_gates_train_by_f_steps_alone(tmp_path, monkeypatch):
    drawn = []
    draw = MixtureOfAttentiveExperts.combine.__globals__["draw_expert"]

    def spy(gates, noise):
        drawn.append(draw(gates, noise))
        return drawn[-1]

    monkeypatch.setitem(MixtureOfAttentiveExperts.combine.__globals__, "draw_expert", spy)
    trainer = toy.watch(tmp_path, toy.model(UNIFORM), settings(period=1))
    assert [[kind for kind, *_ in step] for step in trainer.steps] == [["F"]] * 12
    assert len(drawn) == 12  # one layer, once a step
    experts = torch.cat(drawn).flatten(0, 1)
    assert torch.equal(experts.sum(-1), torch.ones(len(experts)))
    assert (experts.sum(0) > 0).all()


def test_joint_training_moves_gates_and_the_rest_together(tmp_path):
    how = settings(method="joint", learning_rate=0.5).model_copy(update={"max_steps": 2})
    trainer = toy.watch(tmp_path, toy.model(ONE_LAYER), how)
    names = {name for name, _ in trainer.model.named_parameters() if "k_proj.bias" not in name}
    for step in trainer.steps:
        ((kind, before, after),) = step
        assert kind == "F"  # no G step before it
        moved = changed(before, after)
        assert {name for name in names if not name.endswith("norm.bias")} <= moved
        assert any(GATE in name and "running_mean" in name for name in moved)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("turn", ["gate", "expert"])
def test_afterwards_all_is_as_before(turn, fails):
    network = toy.model("mae")
    network.encoder.embedding.weight.requires_grad_(False)  # frozen by the user: stays frozen
    layers = [m for m in network.modules() if isinstance(m, MixtureOfAttentiveExperts)]
    layers[0].step = "expert"  # set by the user: stays
    needs = {name: p.requires_grad for name, p in network.named_parameters()}
    in_turn = computing(layers, "expert")
    if turn == "gate":
        in_turn = gate_step(network, layers, gate_parameters(network))
    try:
        with in_turn:
            assert {layer.step for layer in layers} == {turn}
            if turn == "gate":
                learning = {name for name, p in network.named_parameters() if p.requires_grad}
                assert learning == {name for name in needs if GATE in name}
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert fails
    assert {name: p.requires_grad for name, p in network.named_parameters()} == needs
    assert [layer.step for layer in layers] == ["expert", "joint", "joint"]


def test_a_g_step_that_failed_leaves_nothing_for_the_next():
    moved = []
    for fails in (False, True):
        torch.manual_seed(0)
        layer, x = MixtureOfAttentiveExperts(16, 4), torch.randn(2, 5, 16)
        rules = TrainingRules(layer, {"mae": GateSettings(period=1)})

        def losses(fails=fails, layer=layer, x=x):
            yield layer(3 * x if fails else x).output.square().mean()
            if fails:
                raise torch.OutOfMemoryError

        if fails:
            with pytest.raises(torch.OutOfMemoryError):
                rules.before(Moment(0, 10, 0), losses)
        torch.manual_seed(1)
        rules.before(Moment(0, 10, 0), lambda: losses(fails=False))
        moved.append([gate.detach() for gate in gate_parameters(layer)])
    torch.testing.assert_close(*moved)


def g_step(layer, losses):
    """Takes one; returns whether the gates have moved."""
    before = [gate.clone() for gate in gate_parameters(layer)]
    TrainingRules(layer, {"mae": GateSettings(period=1)}).before(Moment(0, 10, 0), losses)
    return not all(map(torch.equal, before, gate_parameters(layer)))


def test_a_loss_that_passes_no_gate_is_left_out():
    layer, x = MixtureOfAttentiveExperts(16, 4), torch.randn(2, 5, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not g_step(layer, lambda: [layer.out_proj(x).mean()])
        assert g_step(layer, lambda: [layer.out_proj(x).mean(), layer(x).output.square().mean()])


@pytest.mark.parametrize("needs_grad", [False, True])
def test_gates_that_reentrant_checkpoints_leave_without_gradients_are_told_once(needs_grad):
    layer, x = MixtureOfAttentiveExperts(16, 4), torch.randn(2, 5, 16, requires_grad=needs_grad)

    def losses(**how):
        return [checkpoint(lambda x: layer(x).output, x, **how).square().mean()]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert g_step(layer, lambda: losses(use_reentrant=False))
    with pytest.warns(UntrainedRuleWarning, match="give it use_reentrant=False") as told:
        for _ in range(2):
            assert not g_step(layer, lambda: losses(use_reentrant=True))
    assert [each.category for each in told].count(UntrainedRuleWarning) == 1


def test_frozen_gates_stay_as_they_are(tmp_path):
    network = toy.model("mae")
    frozen, *others = gate_parameters(network)
    frozen.requires_grad_(False)
    before = [parameter.clone() for parameter in (frozen, *others)]
    toy.watch(tmp_path / "one", network, settings(period=1))
    assert torch.equal(frozen, before[0])
    assert not torch.equal(others[1], before[2])

    for parameter in others:
        parameter.requires_grad_(False)
    trainer = toy.watch(tmp_path / "all", network, settings(period=1))
    assert {kind for step in trainer.steps for kind, *_ in step} == {"F"}


@pytest.mark.parametrize("attention", [UNIFORM, ONE_LAYER])
def test_without_gates_that_learn_there_are_no_g_steps(attention):
    """UNI-MAE, and MAE with frozen gates, train as any other model."""
    model = toy.model(attention)
    for gate in gate_parameters(model):
        gate.requires_grad_(False)
    rules = TrainingRules(model, {})
    assert not rules.leaves_out_gradients and not rules.rules["mae"].steps_before
