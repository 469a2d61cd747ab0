"""A run that others have begun goes on without running what its checkpoints hold."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch
import toy


class Pickled:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped behind its first checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")

    def stop(items):
        if (folder / "checkpoint-4").is_dir():
            raise KeyboardInterrupt
        return toy.join(items)

    with pytest.raises(KeyboardInterrupt):
        toy.train(folder, toy.model(), toy.settings(), stop)
    return folder


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"]
)
def test_states_are_not_unpickled(stopped, tmp_path, name):
    path, mark = stopped / "checkpoint-4" / name, tmp_path / "was here"
    whole = path.read_bytes()
    torch.save({"state": Pickled(mark)}, path)
    try:
        # Whether it is refused, or the run begins anew, is said elsewhere.
        with suppress(Exception):
            toy.train(stopped, toy.model(), toy.settings())
        assert not mark.exists()
        torch.load(path, weights_only=False)
        assert mark.exists()  # it would have been
    finally:
        path.write_bytes(whole)
