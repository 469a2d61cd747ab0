"""κ and α while training: on the simplex, by their own schedule, frozen at the end, recorded."""

import signal

import pytest
import torch
import toy
from torch import nn

from headwise.heads.rule import Moment
from headwise.heads.weighted import BranchedAttention
from headwise.heads.weighted.rule import (
    BranchSettings,
    frozen_steps,
    learning_rate_factor,
    peak_learning_rate,
    warmup_of,
)
from headwise.ops.simplex import project_to_simplex
from headwise.training.rules import TrainingRules
from headwise.training.run import Interrupted
from headwise.training.trainer import Trainer

SYSTEM = "headwise.heads.weighted:BranchedAttention"
PLAN = {"encoder_self": {"system": SYSTEM}, "decoder_cross": {"system": SYSTEM, "ffn": "split"}}
PATHS = ["model.encoder.layers.0.self_attention", "model.decoder.layers.0.cross_attention"]
STEPS = 12


def model(**options):
    return toy.model(PLAN, **options)


def test_the_depth_is_that_of_the_model_also_within_another_module():
    plain = TrainingRules(model(), {}).rules["weighted"].depth
    assert TrainingRules(nn.ModuleList([model()]), {}).rules["weighted"].depth == plain


def settings(**options):
    """κ and α learn fast enough to reach the edge of the simplex; the last 3 steps are frozen."""
    weighted = {"learning_rate": 0.3, "warmup_steps": 2, "freeze_last": 3}
    weighted |= options.pop("weighted", {})
    return toy.settings(weighted=weighted, **{"final_model": "last", **options})


def courses(run):
    """Records of κ and α: step to weights by path."""
    return {
        record["step"]: record["recorded"]["weighted"] for record in run if "recorded" in record
    }


def rule(network):
    """The rule of a model with branches."""
    return TrainingRules(network, {}).rules["weighted"]


def test_projecting_moves_each_to_the_nearest_point():
    layers = nn.ModuleList(BranchedAttention(8, 4, 16) for _ in range(2))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.normal_()
    before = {name: tensor.clone() for name, tensor in layers.state_dict().items()}
    layers[1].kappa.requires_grad_(False)
    rule(layers).after_update(Moment(0, STEPS))
    for name, tensor in layers.state_dict().items():
        moves = name.endswith(("kappa", "alpha")) and name != "1.kappa"
        expected = project_to_simplex(before[name]) if moves else before[name]
        assert torch.equal(tensor, expected), name
        assert moves != torch.equal(tensor, before[name])


@pytest.mark.parametrize("share", [None, 0.1])
def test_the_papers_learning_rate(share):
    """(d/N)^-0.5 · min(s^-0.5, s · 400^-1.5), steps from 1; nothing in the last sixth.

    In proportion to the paper's schedule of the other parameters, d^-0.5 · min(s^-0.5,
    s · 4000^-1.5), it is the same.
    """
    how, d, layers, total = BranchSettings(warmup_share=share), 512, 6, 60_000
    moment = Moment(0, total, None, 512**-0.5 * 4000**-0.5, 4000)
    assert warmup_of(how, moment) == 400
    peak, frozen = peak_learning_rate(how, moment, d, layers), frozen_steps(how, total)
    assert frozen == 10_000
    for step in (1, 2, 399, 400, 401, 5_000, 50_000):
        expected = (d / layers) ** -0.5 * min(step**-0.5, step * 400**-1.5)
        factor = learning_rate_factor(step - 1, 400, total, frozen)
        assert peak * factor == pytest.approx(expected, rel=1e-12)
    for step in (50_001, 60_000):
        assert learning_rate_factor(step - 1, 400, total, frozen) == 0.0


def test_settings_override_the_paper():
    how = BranchSettings(learning_rate=0.5, freeze_last=0)
    moment = Moment(0, 100, None, 1e-3, 20)
    assert peak_learning_rate(how, moment, 512, 6) == 0.5
    in_proportion = BranchSettings(warmup_share=0.1)
    assert warmup_of(how, moment) == 400 and warmup_of(in_proportion, moment) == 2
    peak = peak_learning_rate(in_proportion, moment, 512, 6)
    assert peak == pytest.approx((10 * 6) ** 0.5 * 1e-3)
    by_warmup = peak_learning_rate(BranchSettings(warmup_steps=16), moment, 64, 4)
    assert by_warmup == pytest.approx((64 / 4) ** -0.5 * 16**-0.5)
    assert frozen_steps(how, 100) == 0
    assert learning_rate_factor(99, 400, 100, 0) > 0


def test_the_optimizer_has_a_group_of_them_alone(tmp_path):
    network = model()
    data = (toy.Reversals(40), toy.Reversals(8, seed=1))
    how = settings(weight_decay=0.1, schedule="constant", learning_rate=0.01, warmup_steps=0)
    trainer = Trainer(network, *data, toy.join, how, tmp_path, console=toy.quiet())
    trainer.state.max_steps = STEPS
    optimizer = trainer.create_optimizer()
    scheduler = trainer.create_scheduler(STEPS, optimizer)
    *others, own = optimizer.param_groups
    assert {id(p) for p in own["params"]} == {id(p) for p in rule(network).own_group()}
    assert own["weight_decay"] == 0.0
    assert not {id(p) for g in others for p in g["params"]} & {id(p) for p in own["params"]}
    rates = []
    for step in range(STEPS):
        trainer.state.global_step = step
        trainer.rules.before_update(trainer.moment, optimizer)
        *rest, rate = (group["lr"] for group in optimizer.param_groups)
        assert rest == [0.01] * len(others)
        rates.append(rate)
        optimizer.step()
        scheduler.step()
    expected = [0.3 * min((2 / s) ** 0.5, s / 2) if s <= 9 else 0.0 for s in range(1, 13)]
    assert rates == pytest.approx(expected)


def test_their_course_is_recorded(tmp_path):
    network = model()
    start = rule(network).record()
    run = toy.train(tmp_path, network, settings())
    found = courses(run.history)
    assert list(found) == list(range(STEPS + 1))
    assert all(set(record) == set(PATHS) for record in found.values())
    assert found[0] == start
    for record in found.values():
        points = torch.tensor([w[kind] for w in record.values() for kind in ("kappa", "alpha")])
        assert (points >= 0).all()
        torch.testing.assert_close(points.sum(-1), torch.ones(len(points)))
    assert rule(run.model).record() == found[STEPS]
    assert found[STEPS] == found[STEPS - 3] != found[STEPS - 4]


class Stops:
    """A collate function that sends Ctrl-C during its n-th call."""

    def __init__(self, call):
        self.calls_left = call

    def __call__(self, items):
        self.calls_left -= 1
        if self.calls_left == 0:
            signal.raise_signal(signal.SIGINT)
        return toy.join(items)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_that_was_stopped_takes_the_same_course(tmp_path, accumulation):
    how = settings(gradient_accumulation=accumulation)
    networks = [model(dropout=0.2, attention_dropout=0.1, ffn_dropout=0.1) for _ in range(4)]
    reference = toy.train(tmp_path / "whole", networks[0], how)
    # Within the warm-up, then while they are frozen.
    for network, calls in zip(networks[1:3], (3, 8 if accumulation == 1 else 14), strict=True):
        with pytest.raises(Interrupted):
            toy.train(tmp_path / "stopped", network, how, Stops(calls))
    run = toy.train(tmp_path / "stopped", networks[3], how)
    assert toy.curve(run) == toy.curve(reference)
    steps = [record["step"] for record in run.history if "recorded" in record]
    assert steps == list(range(STEPS + 1))
    assert courses(run.history) == courses(reference.history)
    state, expected = run.model.state_dict(), reference.model.state_dict()
    assert [name for name in state if not torch.equal(state[name], expected[name])] == []
