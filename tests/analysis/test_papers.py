"""The papers' printed parameters and MACs are those of our models: papers.yaml has them."""

import re
from pathlib import Path

import pytest
import torch

import headwise as hw
from headwise.analysis.cost import count_parameters, model_cost
from headwise.recipes.recipe import load_recipe, task_class
from headwise.yaml import read_yaml

LENGTHS = {"Seq2SeqLM": {"encoder": 10, "decoder": 10}, "MaskedLM": {"encoder": 128}}
LENGTHS |= {"CausalLM": {"decoder": 10}}
WITHIN = {"params": 0.015, "routing": 0.015, "linear_macs": 0.005, "macs": 0.005}
UNITS = {"": 1.0, "M": 1e6, "G": 1e9}


def figures():
    """Each printed figure, and what it is of."""
    file = Path(__file__).parents[1] / "papers.yaml"
    for shared in read_yaml(file.read_text(encoding="utf-8"))["papers"]:
        paper, rows = shared.pop("paper"), shared.pop("figures")
        for number, row in enumerate(rows):
            for figure in (each for each in WITHIN if each in row):
                options = {key: x for key, x in {**shared, **row}.items() if key not in WITHIN}
                name = f"{paper.split(';')[0]}: {row[figure]}, {number}"
                yield pytest.param(figure, str(row[figure]), options, id=name)


def read_printed(text):
    """The number, and how much rounding may have changed it."""
    digits, unit = re.fullmatch(r"([\d.]+)([MG]?)", text).groups()
    half = 0.5 * 10 ** -len(digits.partition(".")[2])
    return float(digits) * UNITS[unit], half * UNITS[unit]


def configuration(model, recipe=None, **options):
    """The configuration of a model of ours, or of a system of a shipped recipe."""
    if recipe is None:
        return getattr(hw, model).config_class(**options)
    name, system = recipe.split("/")
    changes = [f"tokenizer.{key}={size}" for key, size in options.items()]
    settings = load_recipe(name, changes).system(system)
    return task_class(settings.task).config(settings)


def count(figure, model, options):
    kind, config = getattr(hw, model), configuration(model, **options)
    if figure == "params":
        with torch.device("meta"):
            return count_parameters(kind(config))
    cost = model_cost(config, LENGTHS[model])
    return cost.parameters.routing if figure == "routing" else getattr(cost, figure)


@pytest.mark.parametrize(("figure", "text", "options"), [*figures()])
def test_a_printed_figure_is_that_of_our_model(figure, text, options):
    """Parameters within 1.5%, MACs within 0.5%, or as far as the figure is rounded."""
    options = dict(options)
    names = ("model", "minus", "plus", "exact", "differs")
    model, minus, plus, exact, differs = (options.pop(name, None) for name in names)
    counted = count(figure, model, options)
    if minus is not None:
        counted -= count(figure, model, {**options, "attention": minus})
    expected, rounding = read_printed(text)
    if plus is not None:
        counted += read_printed(plus)[0]
    tolerance = 0 if exact else max(WITHIN[figure] * expected, rounding)
    assert (abs(counted - expected) <= tolerance) is (differs is None), (counted, expected)
