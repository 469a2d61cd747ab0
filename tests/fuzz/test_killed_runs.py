"""A run that is killed at any moment, and started again, ends as one that was not."""

import json
import shutil

import numerals
import pytest
import torch
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from trained import train

# Of `result.json`: what the clock says, and what is told of this computer.
OF_THE_CLOCK = ("seconds", "tokens_per_second", "learning_seconds")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The recipe, the folder of a run that nobody killed, and how long it took."""
    folder = tmp_path_factory.mktemp("killed")
    recipe = numerals.write_recipe(folder)
    text = recipe.read_text(encoding="utf-8").replace("max_steps: 6", "max_steps: 12")
    recipe.write_text(text, encoding="utf-8")
    train(recipe, folder / "first")  # with which the server starts that the others are forked from
    return recipe, folder / "whole", train(recipe, folder / "whole")


def without_clock(value):
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in OF_THE_CLOCK}
        return {k: without_clock(v) for k, v in kept.items()}
    return [without_clock(v) for v in value] if isinstance(value, list) else value


@given(moments=st.lists(st.floats(0, 1), min_size=1, max_size=3))
@examples(suite=2, long=4, shrinks=False)
def test_it_ends_as_one_that_was_not(whole, moments):
    recipe, expected, seconds = whole
    run = recipe.parent / "run"
    shutil.rmtree(run, ignore_errors=True)
    for moment in moments:
        train(recipe, run, kill_after=moment * seconds)
    train(recipe, run)
    weights, wanted = (load_file(each / "model" / "model.safetensors") for each in (run, expected))
    assert weights.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(weights[name], wanted[name])] == []
    results = [
        without_clock(json.loads((each / "result.json").read_text(encoding="utf-8")))
        for each in (run, expected)
    ]
    assert results[0] == results[1]
    assert (run / "outputs.txt").read_bytes() == (expected / "outputs.txt").read_bytes()
    left = {path.name for path in run.rglob("*")} - {path.name for path in expected.rglob("*")}
    assert left == set()
