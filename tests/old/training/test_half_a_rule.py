"""Loops that follow half of a rule of training, and what they are told."""

import re
import warnings

import pytest
import torch
from torch import nn

import headwise as hw
from headwise.heads.watching import UntrainedRuleWarning

SYSTEMS = {
    "mae": lambda: hw.MixtureOfAttentiveExperts(16, 4),
    "weighted": lambda: hw.BranchedAttention(16, 4, ffn_dim=32),
}
CALLS = ("before_step", "step", "after_step")


def loop(system, calls=CALLS, *, steps=3, total_steps=3, compiled=False, settings=None):
    """The loop of docs/own-loop.md with some of its calls; returns the layer, and the warnings."""
    torch.manual_seed(0)
    layer = SYSTEMS[system]().train()
    called = torch.compile(layer, backend="aot_eager") if compiled else layer
    rules = hw.training_rules(layer, total_steps, settings=settings)
    optimizer = torch.optim.AdamW(rules.parameter_groups(lr=0.05))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            x = torch.randn(2, 5, 16)
            if "before_step" in calls:
                rules.before_step(lambda x=x: called(x).output.square().mean())
            if "step" in calls:
                with rules.step(optimizer):
                    called(x).output.square().mean().backward()
            else:
                called(x).output.square().mean().backward()
            optimizer.step()
            if "after_step" in calls:
                rules.after_step()
            optimizer.zero_grad()
    found = [each for each in caught if issubclass(each.category, UntrainedRuleWarning)]
    assert all(each.filename == __file__ for each in found)
    return layer, [str(each.message) for each in found]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("compiled", [False, True])
def test_who_follows_all_of_a_rule_is_told_nothing(system, compiled):
    _, told = loop(system, compiled=compiled)
    assert told == []


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("compiled", [False, True])
def test_groups_alone_are_no_rule(system, compiled):
    """MAE's gates are in no group: they would never learn."""
    _, (told,) = loop(system, (), compiled=compiled)
    assert "is trained without its rule" in told


@pytest.mark.parametrize(
    ("system", "calls", "message"),
    [
        ("mae", ("step", "after_step"), r"rules.before_step\(loss\) was not called"),
        ("mae", ("before_step", "after_step"), r"rules.step\(optimizer\) was never opened"),
        ("weighted", ("before_step", "after_step"), r"rules.step\(optimizer\) was never opened"),
        ("weighted", ("after_step",), r"rules.step\(optimizer\) was never opened"),
        ("mae", ("before_step", "step"), r"rules.after_step\(\) was not called"),
        ("weighted", ("step",), r"rules.after_step\(\) was not called"),
        ("weighted", ("before_step",), r"rules.after_step\(\) was not called"),
    ],
)
def test_half_of_a_rule_is_told_of_once(system, calls, message):
    told = loop(system, calls)[1]
    assert sum(re.search(message, each) is not None for each in told) == 1


def test_weights_that_are_not_needed_are_not_asked_for():
    """Where MAE takes no turns, and for the Weighted Transformer, `before_step` does nothing."""
    assert loop("weighted", ("step", "after_step"))[1] == []
    assert loop("mae", ("step", "after_step"), settings={"mae": {"method": "joint"}})[1] == []


@pytest.mark.parametrize("calls", [CALLS, ("step", "after_step")])
def test_a_training_longer_than_it_said(calls):
    assert loop("weighted", calls, steps=3)[1] == []
    _, (told,) = loop("weighted", calls, steps=6)
    assert "goes on after total_steps=3" in told


def test_a_step_that_overflows_needs_no_end():
    layer = SYSTEMS["weighted"]().train()
    rules = hw.training_rules(layer, total_steps=4)
    optimizer = torch.optim.AdamW(rules.parameter_groups(lr=0.05))
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(4):
            rules.before_step(lambda: None)
            other.step()  # as of the other half of a pair of adversaries
            with rules.step(optimizer):
                layer(torch.randn(2, 5, 16)).output.square().mean().backward()
            if step > 1:
                optimizer.step()
                rules.after_step()
