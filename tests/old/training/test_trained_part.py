"""Fine-tuning of a part: what is trained moves, and everything else stays bit by bit."""

import re

import pytest
import tiny_tasks
import torch
from toy import model, settings
from toy import train as train_toy

import headwise as hw
from headwise.training.trained_part import count_trained, freeze_all_but

SYSTEMS = {name: plan for name, plan in tiny_tasks.SYSTEMS.items() if name != "standard"}
PARTS = ("gates", "gates+output")


def names_of(network, parameters):
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    return {names[id(parameter)] for parameter in parameters}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_what_is_frozen_stays_and_what_is_trained_moves(tmp_path, system, part):
    network = model(SYSTEMS[system])
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    trained = names_of(network, hw.gate_parameters(network))
    if part == "gates+output":
        trained |= names_of(network, hw.output_parameters(network))
    rule = {"mae": {"period": 2, "unit": "steps"}} if system == "mae" else {}
    how = settings(train=part, weight_decay=0.1, final_model="last", **rule)
    run = train_toy(tmp_path / "run", network, how)
    after = run.model.state_dict()
    parameters = dict(network.named_parameters())
    moved = {name for name in parameters if not torch.equal(before[name], after[name].cpu())}
    assert moved <= trained
    assert moved & names_of(network, hw.gate_parameters(network))
    if part == "gates+output":
        assert moved & names_of(network, hw.output_parameters(network))
    assert run.trained_parameters == sum(parameters[name].numel() for name in trained)


def test_nothing_is_trained(tmp_path):
    network = model("mae")
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    run = train_toy(tmp_path / "run", network, settings(train="nothing"))
    assert (run.steps, run.trained_parameters, run.stopped_early) == (0, 0, False)
    assert [record["step"] for record in run.history if "eval_loss" in record] == [0]
    kept = type(network).from_pretrained(tmp_path / "run" / "model").state_dict()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in before.items())


@pytest.mark.parametrize("part", PARTS)
def test_standard_attention_has_no_gates(tmp_path, part):
    with pytest.raises(ValueError, match=f"train is {re.escape(repr(part))}, .* nothing to train"):
        train_toy(tmp_path / "run", model("standard"), settings(train=part))


def test_a_system_that_names_no_output_projections():
    class Own(hw.GatedAttention):
        output_parameters = ()

    attention = Own(8, 2)
    with pytest.raises(ValueError, match=r"set System\.output_parameters"):
        freeze_all_but(attention, "gates+output")
    freeze_all_but(attention, "gates")
    assert count_trained(attention) == 16
