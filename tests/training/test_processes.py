"""Two processes on half of each batch take the same steps as one on all of it."""

import json

import pytest
import scenarios
import toy
from torchrun import on_two_processes

from headwise.training.batching import TokenBudgetSampler

# Losses are recorded in float32, the weights they move are not; snapshots have five digits.
TOLERANCES = {"loss": 1e-6, "validation": 1e-6, "weights": 1e-8, "snapshots": 2e-5}


def test_the_shares_are_unequal():
    sampler = TokenBudgetSampler(toy.Reversals(40).lengths, 60)
    assert any(len(batch) % 2 for batch in sampler)


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path):
    # All scenarios in one launch, since launching takes longest.
    of_two = _train_with_two_processes(tmp_path / "two")
    of_one = {name: scenarios.course(name, tmp_path / name) for name in scenarios.SCENARIOS}
    # A signal that reached the second process alone stopped both; then they went on.
    of_one["stopped"] = of_one["mae"]
    assert of_two.keys() == of_one.keys()
    differing = [
        f"{name}, {what}: {of_two[name][what]}, expected {expected}"
        for name, course in of_one.items()
        for what, expected in course.items()
        if of_two[name][what] != pytest.approx(expected, abs=TOLERANCES[what])
    ]
    assert differing == []
    steps = {name: len(course["loss"]) for name, course in of_one.items()}
    assert steps.pop("standard, stopped early") == 3
    assert set(steps.values()) == {4}


def _train_with_two_processes(folder):
    folder.mkdir()
    found = folder / "courses.json"
    on_two_processes(scenarios.__file__, found)
    return json.loads(found.read_text(encoding="utf-8"))
