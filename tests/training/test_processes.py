"""Two processes on half of each batch take the same steps as one on all of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import scenarios
import torch
import toy
from filelock import FileLock

from headwise.training.batching import TokenBudgetSampler


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """What two processes saw; all scenarios in one launch, since launching takes longest."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    found = shared / "two" / "courses.json"
    with FileLock(shared / "two.lock"):
        if not found.is_file():
            _launch(found)
    return json.loads(found.read_text(encoding="utf-8"))


def _launch(found):
    found.parent.mkdir(exist_ok=True)
    launched = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc_per_node", "2", str(Path(scenarios.__file__)), str(found)),
        ],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )
    assert launched.returncode == 0, launched.stderr


def test_the_shares_are_unequal():
    sampler = TokenBudgetSampler(toy.Reversals(40).lengths, 60)
    assert any(len(batch) % 2 for batch in sampler)


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_two_processes_take_the_steps_of_one(of_two, name, tmp_path):
    compare(of_two[name], scenarios.course(name, tmp_path))


def test_they_stop_together_and_go_on_together(of_two, tmp_path):
    """The signal reached the second process alone."""
    compare(of_two["stopped"], scenarios.course("mae", tmp_path))


def compare(found, expected):
    assert len(found["loss"]) == 4
    # Losses are recorded in float32, the weights they move are not.
    for what, tolerance in (("loss", 1e-6), ("validation", 1e-6), ("weights", 1e-8)):
        torch.testing.assert_close(
            torch.tensor(found[what], dtype=torch.float64),
            torch.tensor(expected[what], dtype=torch.float64),
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, what=what: f"{what}: {text}",
        )
