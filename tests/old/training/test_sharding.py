"""Processes that divide a model train it as one process that has all of it."""

import json
import shutil

import pytest
import scenarios
import toy
from safetensors.torch import load_file
from torchrun import on_copies


def test_a_single_process_divides_nothing_and_says_so(tmp_path):
    how = {"max_steps": 2}
    whole = toy.train(tmp_path / "whole", toy.model(), toy.settings(**how))
    run, told = toy.said(tmp_path / "alone", toy.model(), toy.settings(fsdp=True, **how))
    assert "training.fsdp divides a model among processes, and this is one" in told
    toy.assert_same(run, whole)


@pytest.fixture(scope="module")
def of_one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    return folder, {name: scenarios.course(name, folder / name) for name in scenarios.SHARDED}


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    on_copies(2, scenarios.__file__, folder / "courses.json", "--fsdp")
    return folder, json.loads((folder / "courses.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_divided_model_takes_the_steps_of_a_whole_one(of_one, of_two):
    expected = {**of_one[1], "stopped": of_one[1]["weighted"], "held": {"weights": [0.5, 0.5]}}
    assert scenarios.differing(of_two[1], expected) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", scenarios.SHARDED)
def test_what_is_saved_is_a_whole_model(of_one, of_two, name):
    one, two = (folder / name / "model" for folder, _ in (of_one, of_two))
    names = sorted(path.name for path in one.iterdir())
    assert sorted(path.name for path in two.iterdir()) == names
    assert (two / "config.json").read_text() == (one / "config.json").read_text()
    shapes = [
        {name: weight.shape for name, weight in load_file(folder / "model.safetensors").items()}
        for folder in (one, two)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", scenarios.SHARDED)
def test_one_process_goes_on_from_a_checkpoint_of_two(of_one, of_two, tmp_path, name):
    run = tmp_path / "run"
    shutil.copytree(of_two[0] / name, run)
    for left in ("checkpoint-4", "model"):
        shutil.rmtree(run / left)
    found = {name: scenarios.course(name, run)}
    assert scenarios.differing(found, {name: of_one[1][name]}) == []
