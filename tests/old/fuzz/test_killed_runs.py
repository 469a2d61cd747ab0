"""A run that is killed at any moment, and started again, ends as one that was not."""

import json
import shutil

import numerals
import pytest
import torch
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from killing import done_in_spite_of_kills
from safetensors.torch import load_file
from typer.testing import CliRunner

from headwise.cli import app

# Of `result.json`: what the clock says, and what is told of this computer.
OF_THE_CLOCK = ("seconds", "tokens_per_second", "learning_seconds")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nobody killed, and how another is trained."""
    folder = tmp_path_factory.mktemp("killed")
    recipe = numerals.write_recipe(folder)

    def train(run):
        line = ["train", str(recipe), "--system", "mae", "--output", str(run)]
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 0, done.output

    assert done_in_spite_of_kills(train, folder / "whole", []) == []
    return folder / "whole", train


def without_clock(value):
    if isinstance(value, dict):
        return {k: without_clock(v) for k, v in value.items() if k not in OF_THE_CLOCK}
    return [without_clock(v) for v in value] if isinstance(value, list) else value


@given(moments=st.lists(st.integers(1, 250), min_size=1, max_size=3))
@examples(suite=2, long=4, shrinks=False)
def test_it_ends_as_one_that_was_not(whole, moments):
    expected, train = whole
    run = expected.with_name("run")
    shutil.rmtree(run, ignore_errors=True)
    done_in_spite_of_kills(train, run, moments)
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
