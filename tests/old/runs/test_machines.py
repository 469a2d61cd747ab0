"""A run of two machines that share no folder, one of which dies and is started again."""

import json
import shutil
import signal
import time

import machine
import numerals
import pytest
from safetensors.torch import load_file
from torchrun import Copy, end_well, free_port

from headwise.runs import folder, locking


class Cluster:
    """Two machines on this one, each with a folder of its own."""

    def __init__(self, world, name, *changes):
        self.recipe = world / "numerals.yaml"
        self.changes = [word for change in changes for word in ("--set", change)]
        self.folders = [world / f"{name}-{rank}" for rank in range(2)]

    def start(self):
        train = ("train", self.recipe, "--system", "mae", *self.changes, "--output")
        port = free_port()
        return [
            Copy(
                port, rank, 2, machine.__file__, *train, place, LOCAL_RANK="0", GROUP_RANK=str(rank)
            )
            for rank, place in enumerate(self.folders)
        ]

    def train(self):
        end_well(self.start(), timeout=200)

    def left(self):
        """What each machine has at the end: names, curves but for the clock, scores, weights."""
        found = []
        for place in self.folders:
            result = json.loads((place / "result.json").read_text())
            curves = [
                {key: value for key, value in record.items() if key != "seconds"}
                for record in result["history"]
            ]
            weights = load_file(place / "model" / "model.safetensors")
            names = sorted(path.name for path in place.iterdir())
            outcome = json.loads((place / "outcome.json").read_text())
            weights = {name: x.tolist() for name, x in weights.items()}
            found.append((names, curves, repr(outcome), weights))
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    numerals.write_recipe(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(world):
    cluster = Cluster(world, "undisturbed")
    cluster.train()
    return cluster.left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "fsdp"), [("checkpoint-6", False), ("result.json", False), ("checkpoint-6", True)]
)
def test_a_machine_that_dies_and_is_started_again_ends_the_same(
    world, undisturbed, monkeypatch, moment, fsdp
):
    assert undisturbed[0] == undisturbed[1]
    changes = ["training.fsdp=true"] if fsdp else []
    cluster = Cluster(world, f"dies-at-{moment}-{fsdp}", *changes)
    with monkeypatch.context() as patched:
        patched.setenv("DIES_AT", moment)
        copies = cluster.start()
    first, second = (copy.process for copy in copies)
    second.join(200)
    assert second.exitcode == -signal.SIGKILL
    until = time.monotonic() + 100
    last = cluster.folders[0] / "model" / "README.md"
    while first.is_alive() and not last.is_file():
        assert time.monotonic() < until
        time.sleep(0.05)
    first.kill()
    first.join()
    # The first machine is ahead of the one that has died.
    assert [(place / moment).exists() for place in cluster.folders] == [True, False]
    written = [(place / "checkpoint-3").stat().st_mtime_ns for place in cluster.folders]
    cluster.train()
    assert cluster.left() == undisturbed
    # From there the run has gone on.
    assert [(place / "checkpoint-3").stat().st_mtime_ns for place in cluster.folders] == written


@pytest.mark.slow
def test_machines_go_on_in_a_stream(tmp_path):
    recipe = numerals.write_recipe(tmp_path)
    streamed = "streaming: true\n  held_out_rows: 20\n  shuffle_rows: 16"
    recipe.write_text(recipe.read_text().replace("validation_fraction: 0.2", streamed))
    cluster = Cluster(tmp_path, "stream", "tokenizer.sample_rows=30")
    cluster.train()
    expected = cluster.left()
    for place in cluster.folders:
        positions = json.loads((place / "checkpoint-3" / "stream.json").read_text())
        assert [position["batches"] for position in positions] == [3, 3]
        for name in ("model", "checkpoint-6"):
            shutil.rmtree(place / name)
        (place / "result.json").unlink()
    cluster.train()
    assert cluster.left() == expected


@pytest.mark.parametrize(
    ("seen", "apart"), [([True, True, True], False), ([True, False, False], True)]
)
def test_machines_find_out_whether_they_share_a_folder(tmp_path, monkeypatch, seen, apart):
    said = gather(monkeypatch, seen)
    locking.meet(tmp_path / "run")
    assert said == [apart]
    assert not list((tmp_path / "run").iterdir())
    locking.meet(tmp_path / "another")  # which is known by now
    assert said == [apart]


def test_a_folder_that_some_machines_share_is_refused(tmp_path, monkeypatch):
    gather(monkeypatch, [True, True, False])
    with pytest.raises(ValueError, match="which some of the machines of this command share"):
        locking.meet(tmp_path)


def gather(monkeypatch, seen):
    """Has this process be the first of three machines; returns where it notes what they share."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setattr(locking, "_met", False)
    monkeypatch.setattr(locking, "join", lambda: None)
    monkeypatch.setattr(locking, "replicas", lambda: 3)

    def gathered(value):
        of_machines = [(str(rank), sees) for rank, sees in enumerate(seen)]
        return of_machines if isinstance(value, tuple) else [value] * 3

    monkeypatch.setattr(locking, "gathered", gathered)
    said = []
    monkeypatch.setattr(locking, "set_machines_apart", said.append)
    return said


def test_one_process_of_each_machine_writes_where_they_share_nothing(monkeypatch):
    def writers():
        found = []
        for rank, local in ((0, 0), (1, 1), (2, 0), (3, 1)):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("LOCAL_RANK", str(local))
            found.append(folder.is_writer())
        return found

    assert folder.is_writer()
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert writers() == [True, False, False, False]
    monkeypatch.setattr(folder, "_apart", True)
    assert writers() == [True, False, True, False]
