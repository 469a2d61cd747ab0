"""A run that is killed whenever it touches a file ends as one that was not."""

import random

import pytest
import toy
from killing import done_in_spite_of_kills
from safetensors.torch import load_file

from headwise.training.checkpoints import checkpoints, read_state

HOW = toy.settings(evaluate_every=3, final_model="average", average_last=2, keep_checkpoints=2)


def train(folder):
    toy.train(folder, toy.model("mae"), HOW)


def left(folder):
    """Names of checkpoints, records but for the clock, and weights."""
    last = checkpoints(folder)[-1]
    history = [
        {key: value for key, value in record.items() if key != "seconds"}
        for record in read_state(last)["log_history"]
    ]
    weights = load_file(folder / "model" / "model.safetensors")
    names = sorted(path.name for path in folder.iterdir())
    return names, history, {name: x.tolist() for name, x in weights.items()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert done_in_spite_of_kills(train, folder, []) == []
    return left(folder)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_it_ends_the_same(tmp_path, expected, seed):
    draw = random.Random(seed)
    moments = [draw.randrange(1, 150) for _ in range(3)]
    done_in_spite_of_kills(train, tmp_path, moments)
    assert left(tmp_path) == expected
