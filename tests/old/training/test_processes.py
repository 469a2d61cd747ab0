"""Processes on a share of each batch take the same steps as one on all of it."""

import json

import pytest
import scenarios
import toy
from torchrun import on_copies

from headwise.training.batching import TokenBudgetSampler


def test_the_shares_are_unequal():
    sampler = TokenBudgetSampler(toy.Reversals(40).lengths, 60)
    assert any(len(batch) % 2 for batch in sampler)


@pytest.fixture(scope="module")
def of_one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    courses = {name: scenarios.course(name, folder / name) for name in scenarios.SCENARIOS}
    # A signal that reached the second process alone stopped all; then they went on.
    return {**courses, "stopped": courses["weighted"]}


@pytest.mark.slow
def test_several_processes_take_the_steps_of_one(of_one, tmp_path):
    # Four, for which a batch of the validation part has too few rows.
    on_copies(4, scenarios.__file__, tmp_path / "courses.json")
    found = json.loads((tmp_path / "courses.json").read_text(encoding="utf-8"))
    assert scenarios.differing(found, of_one) == []
    steps = {name: len(course["loss"]) for name, course in of_one.items()}
    assert steps.pop("standard, stopped early") == 3
    assert set(steps.values()) == {4}
