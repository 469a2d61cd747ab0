"""The papers' printed parameters and MACs are those of our models: papers.yaml has them."""

import re
from pathlib import Path

import pytest
import torch

import headwise as hw
from headwise.analysis.cost import count_parameters, model_cost
from headwise.yaml import read_yaml

LENGTHS = {"Seq2SeqLM": {"encoder": 10, "decoder": 10}, "MaskedLM": {"encoder": 128}}
LENGTHS |= {"CausalLM": {"decoder": 10}}
WITHIN = {"params": 0.015, "routing": 0.015, "linear_macs": 0.005, "macs": 0.005}
UNITS = {"": 1.0, "M": 1e6, "G": 1e9}


def figures():
    """Each printed figure, and what it is of."""
    file = Path(__file__).parents[1] / "papers.yaml"
    for of in read_yaml(file.read_text(encoding="utf-8"))["papers"]:
        paper, rows = of.pop("paper"), of.pop("figures")
        for number, row in enumerate(rows):
            for what in (each for each in WITHIN if each in row):
                given = {key: x for key, x in {**of, **row}.items() if key not in WITHIN}
                name = f"{paper.split(';')[0]}: {row[what]}, {number}"
                yield pytest.param(what, str(row[what]), given, id=name)


def printed(text):
    """The number, and how much rounding may have changed it."""
    digits, unit = re.fullmatch(r"([\d.]+)([MG]?)", text).groups()
    half = 0.5 * 10 ** -len(digits.partition(".")[2])
    return float(digits) * UNITS[unit], half * UNITS[unit]


def counted(what, model, plan, options):
    kind = getattr(hw, model)
    config = kind.config_class(**options, attention=plan)
    if what == "params":
        with torch.device("meta"):
            return count_parameters(kind(config))
    cost = model_cost(config, LENGTHS[model])
    return cost.parameters.routing if what == "routing" else getattr(cost, what)


@pytest.mark.parametrize(("what", "text", "options"), [*figures()])
def test_a_printed_figure_is_that_of_our_model(what, text, options):
    """Parameters within 1.5%, MACs within 0.5%, or as far as the figure is rounded."""
    options = dict(options)
    names = ("model", "attention", "minus", "plus", "exact", "differs")
    model, plan, minus, plus, exact, differs = (options.pop(name, None) for name in names)
    ours = counted(what, model, plan or "standard", options)
    if minus is not None:
        ours -= counted(what, model, minus, options)
    expected, rounding = printed(text)
    if plus is not None:
        ours += printed(plus)[0]
    allowed = 0 if exact else max(WITHIN[what] * expected, rounding)
    assert (abs(ours - expected) <= allowed) is (differs is None), (ours, expected)
