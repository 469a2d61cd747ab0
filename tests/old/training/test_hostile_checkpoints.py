"""A run that others have begun goes on without running what its checkpoints hold."""

import shutil
from pathlib import Path

import pytest
import torch
import toy

from headwise.training.checkpoints import CheckpointError


class Pickled:
    """Makes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped behind its first checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")
    toy.train_until(folder, 4)
    return folder


def hostile(stopped, tmp_path, name):
    """A copy of the run with a file that makes another, and where it would make it."""
    folder = shutil.copytree(stopped, tmp_path / "run")
    path, mark = folder / "checkpoint-4" / name, tmp_path / "was here"
    torch.save({"state": Pickled(mark)}, path)
    torch.load(path, weights_only=False)
    mark.unlink()  # so it would be made
    return folder, mark


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_states_are_not_unpickled(stopped, tmp_path, name):
    folder, mark = hostile(stopped, tmp_path, name)
    with pytest.raises(CheckpointError, match="checkpoint-4 holds more than tensors and plain"):
        toy.train(folder, toy.model(), toy.settings())
    assert not mark.exists()


def test_the_trainers_arguments_are_not_read(stopped, tmp_path):
    folder, mark = hostile(stopped, tmp_path, "training_args.bin")
    toy.train(folder, toy.model(), toy.settings())
    assert not mark.exists()
