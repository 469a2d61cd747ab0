"""The laws over models of transformers with gates over their heads."""

import copy
import pickle
from itertools import cycle, product

import pytest
import torch
from hypothesis import given, settings
from support.architectures import (
    BY_POSITION,
    CAUSAL,
    EIGHT,
    MODELS,
    OPTIONS,
    PAIRS,
    Pretrained,
    assert_near,
    build,
    gate,
    padding,
    sizes,
)

import headwise as hw
from headwise.testing import laws

# What starts without a change; MoH where each position uses all heads.
STARTS = {
    "mae": {},
    "gated elementwise": {"gate": "elementwise"},
    "gated static": {"gate": "static"},
    "moh": {"shared_heads": 1},
}


def over(names, systems=OPTIONS, *, is_slow=False):
    """One system after another over the models, by day over eight of them if that is slow.

    By night all of that, and each system over each of the eight.
    """
    in_turn = list(zip(names, cycle(systems), strict=False))
    day = [case for case in in_turn if not is_slow or case[0] in EIGHT]
    cases = dict.fromkeys([*in_turn, *product([name for name in EIGHT if name in names], systems)])
    night = [pytest.param(*case, marks=pytest.mark.nightly) for case in cases if case not in day]
    return pytest.mark.parametrize(("name", "system"), day + night)


def subject(name, system="mae", **options):
    return Pretrained(name, gate(name, system, **options))


@over(MODELS, STARTS)
@settings(max_examples=2)
@given(size=sizes())
def test_gates_change_nothing_before_they_are_trained(name, system, size):
    """But rounding of MAE's, and leave nothing behind when they are removed."""
    model = build(name, size)
    law_subject = Pretrained(name, model)
    batch, mask = law_subject.draw(3, 5, 0), None if name == "vit" else padding(3, 5)
    before, names = law_subject(batch, padding=mask).output, list(model.state_dict())
    options = {"top_k": size["heads"] - 1} if system == "moh" else {}
    assert hw.gate_heads(model, system.split()[0], **STARTS[system], **options) is model
    assert list(model.state_dict()) != names
    after = law_subject(batch, padding=mask).output
    assert_near(after, before)
    assert torch.equal(after, before) or system == "mae"
    assert hw.remove_gates(model) is model
    assert list(model.state_dict()) == names
    assert torch.equal(law_subject(batch, padding=mask).output, before)


@over([name for name in MODELS if name != "vit"], is_slow=True)
def test_padding(name, system):
    model = subject(name, system)
    left = name == "t5" or (model.takes_positions and name != "roberta" and name not in PAIRS)
    source = padding(3, 5) if model.module.main_input_name == "input_ids" else None
    for side in ("left", "right") if left else ("right",):
        laws.padding_changes_nothing(model, padding(3, 4, side), memory_padding=source)


@over(CAUSAL)
def test_future(name, system):
    laws.hidden_changes_nothing(subject(name, system), time=3)


@over(CAUSAL, BY_POSITION, is_slow=True)
def test_steps(name, system):
    model = subject(name, system, **BY_POSITION[system])
    left = padding(3, 4, "left") if model.takes_positions and name not in PAIRS else None
    laws.steps_equal_one_pass(model, padding=left)


@over(MODELS, is_slow=True)
def test_copies(name, system, tmp_path):
    """By copy, pickle, or saved gates over the untouched model."""

    def reload(module):
        hw.save_gates(module, tmp_path)
        return hw.load_gates(hw.remove_gates(copy.deepcopy(module)), tmp_path)

    for copy_module in (copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), reload):
        laws.copies_are_their_own(subject(name, system), copy_module)


@over(MODELS)
def test_learning(name, system):
    """Every weight of the gates learns over a frozen model."""
    model = subject(name, system)
    gates = {id(parameter) for parameter in hw.gate_parameters(model.module)}
    for parameter in model.module.parameters():
        parameter.requires_grad_(id(parameter) in gates)
    laws.every_weight_learns(model)


@over(MODELS, is_slow=True)
def test_evaluation(name, system):
    laws.evaluation_draws_nothing(subject(name, system))
