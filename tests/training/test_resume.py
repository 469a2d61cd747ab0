"""A run that is killed, interrupted, damaged or out of space ends as one that nobody disturbed."""

import errno
import os
import resource
import shutil
import signal
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import soundfile
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)
from safetensors.torch import save_file
from support import run_folders, tiny_tasks
from support import toy_training as toy
from support.failing_disk import failing
from support.processes import Ended, forked, killed_at, signalled_at
from tokenizers import Tokenizer, models

from headwise.cli import app

# Of what a run is made: its system, and its data. MAE's gates and experts take turns, and what a
# stream has given is not given again.
RECIPES = {
    "standard": {},
    "mae": {"data": {"streaming": True, "held_out_rows": 20, "shuffle_rows": 60}},
}
STEPS = 6


class Run(RuleBasedStateMachine):
    """Commands and mishaps in the folder of one run.

    Attributes:
        system: what is trained.
        place: holds the data, the recipe, and the run `whole`, which nobody disturbed.
        effects: how many commands did not come to their end.
    """

    system: str
    place: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = self.place / "run"
        self.effects = 0
        shutil.rmtree(self.folder, ignore_errors=True)

    def train(self, *before, change: tuple[str, ...] = ()) -> Ended:
        arguments = command(self.place, self.system, self.folder, *change)
        ended = forked(lambda: app(arguments), *before)
        self.effects += ended.status != 0
        return ended

    @property
    def is_finished(self) -> bool:
        return (self.folder / "result.json").is_file()

    @property
    def checkpoints(self) -> list[Path]:
        """From the first to the last."""
        found = self.folder.glob("checkpoint-*")
        return sorted(found, key=lambda path: int(path.name.partition("-")[2]))

    @rule(moment=st.integers(1, 250))
    def killed(self, moment: int) -> None:
        ended = self.train(killed_at(moment, self.folder))
        assert ended.status in (-signal.SIGKILL, 0), ended.said

    @rule(step=st.integers(1, STEPS), number=st.sampled_from([signal.SIGINT, signal.SIGTERM]))
    def interrupted(self, step: int, number: int) -> None:
        before = self.steps_done()
        ended = self.train(signalled_at(step, number))
        if ended.status:
            assert f"step {before + step}" in ended.said and "Traceback" not in ended.said
            assert self.steps_done() == before + step

    def steps_done(self) -> int:
        return int(self.checkpoints[-1].name.partition("-")[2]) if self.checkpoints else 0

    @precondition(lambda self: self.checkpoints and not self.is_finished)
    @rule(file=st.sampled_from(toy.STATE), damage=st.sampled_from(["cut", "changed", "deleted"]))
    def damaged(self, file: str, damage: str) -> None:
        """It is said, and the run goes on from the checkpoint before the damaged one."""
        *earlier, last = self.checkpoints
        content = (last / file).read_bytes()
        (last / file).unlink()
        if damage != "deleted":
            new = content[: len(content) // 2] if damage == "cut" else b"\0" * len(content)
            (last / file).write_bytes(new)
        ended = self.train(signalled_at(1, signal.SIGTERM))
        assert last.name in ended.said and file in ended.said
        before = int(earlier[-1].name.partition("-")[2]) if earlier else 0
        assert f"step {before + 1}" in ended.said

    @precondition(lambda self: self.checkpoints)
    @rule(other=st.sampled_from(["recipe", "data"]))
    def refused(self, other: str) -> None:
        """What is not this run's recipe or data is refused, and nothing is changed."""
        text, before = self.place / "text.txt", content(self.folder)
        kept = text.read_bytes()
        if other == "data":
            text.write_bytes(kept + b"one two three\n")
        change = ("--set", "training.learning_rate=0.5") if other == "recipe" else ()
        ended = self.train(change=change)
        text.write_bytes(kept)
        assert ended.status == 2 and str(self.folder) in ended.said
        assert content(self.folder) == before

    @rule(after=st.integers(0, 120))
    def full(self, after: int) -> None:
        """The disk is full after so many files."""
        ended = self.train(failing(self.folder, errno.ENOSPC, after).__enter__)
        if ended.status:
            assert ended.status in (1, 2) and "Traceback" not in ended.said
            assert str(self.folder) in " ".join(ended.said.split()), ended.said
        assert not half_written(self.folder)

    def teardown(self) -> None:
        """In the end it is the run that nobody disturbed, and trains no further."""
        ended = self.train()
        assert ended.status == 0, ended.said
        whole = self.place / "whole"
        assert left(self.folder) == left(whole)
        weights, expected = run_folders.weights(self.folder), run_folders.weights(whole)
        assert all(torch.equal(weights[name], expected[name]) for name in expected | weights)
        before = content(self.folder)
        assert self.train(signalled_at(1, signal.SIGKILL)).status == 0
        assert content(self.folder) == before


def command(place: Path, system: str, folder: Path, *change: str) -> list[str]:
    recipe = str(place / "language-modelling.yaml")
    return ["train", recipe, "--system", system, "--output", str(folder), *change]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def half_written(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.name.startswith((".partial", ".replaced"))]


def left(folder: Path) -> dict:
    """The figures of a finished run, and the names of its files; what was damaged lies aside."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    names = sorted(name for name in names if not name.startswith("damaged-"))
    result = run_folders.result(folder)
    return {"names": names, "scores": result["scores"], "rows": run_folders.rows(folder)}


@pytest.fixture(scope="module", params=RECIPES)
def machine(request, tmp_path_factory):
    """The state machine of a system's run, beside one that nobody disturbed."""
    place = tmp_path_factory.mktemp(request.param)
    how = {"max_steps": STEPS, "final_model": "average", "average_last": 2}
    recipe = tiny_tasks.RECIPES["language-modelling"](place)["data"]
    data = {**recipe, **RECIPES[request.param].get("data", {})}
    tiny_tasks.write_recipe("language-modelling", place, data=data, training=how)
    done = tiny_tasks.run(*command(place, request.param, place / "whole"))
    assert done.exit_code == 0, done.output
    return type("RunOfSystem", (Run,), {"system": request.param, "place": place})


def test_one_of_each_mishap(machine):
    run = machine()
    run.killed(moment=60)
    run.interrupted(step=3, number=signal.SIGINT)
    run.full(after=30)
    run.refused(other="recipe")
    run.interrupted(step=1, number=signal.SIGTERM)
    run.damaged(file=toy.STATE[0], damage="cut")
    run.refused(other="data")
    run.killed(moment=110)
    assert run.effects == 8  # each had its effect
    run.teardown()


def test_any_mishaps_in_any_order(machine):
    examples, steps = (2, 4) if settings().max_examples < 100 else (60, 10)
    how = settings(stateful_step_count=steps, max_examples=examples, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=how)


# --- folders that take the place of others ----------------------------------------------------


def write_folder(path: Path, name: str) -> None:
    with toy.written_whole(path) as new:
        (new / "inside").mkdir(parents=True)
        for file in ("a", "inside/b"):
            (new / file).write_text(name)


def read_folder(path: Path) -> list[str]:
    return [(path / file).read_text() for file in ("a", "inside/b")]


@pytest.mark.parametrize("end", ["kill", "error"])
@pytest.mark.parametrize("next_start", ["of a command", "of a writer"])
def test_a_folder_that_takes_the_place_of_another_is_never_lost(tmp_path, end, next_start):
    """Ended at each thing that is done with files, one of the two is whole, or is put back."""
    found = []
    for moment in count(1):
        path = tmp_path / str(moment) / "model"
        write_folder(path, "old")
        stop = killed_at(moment, path.parent)
        if end == "error":
            stop = failing(path.parent, errno.EIO, moment - 1).__enter__
        ended = forked(lambda path=path: write_folder(path, "new"), stop)
        if next_start == "of a command":
            toy.clear_leftovers(list(path.parent.iterdir()))
        else:
            with pytest.raises(ZeroDivisionError), toy.written_whole(path):
                raise ZeroDivisionError
        found.append(read_folder(path))
        assert [each.name for each in path.parent.iterdir()] == ["model"]
        if ended.status == 0:
            break
    old = found.count(["old"] * 2)
    assert found == [["old"] * 2] * old + [["new"] * 2] * (len(found) - old) and old > 5


# --- a full disk ------------------------------------------------------------------------------


@contextmanager
def no_space():
    """No file can have more than 10,000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


TENSOR = torch.zeros(100_000)
WORDS = Tokenizer(models.WordLevel({f"word {n}": n for n in range(10_000)}, "word 0"))
WRITERS = {
    "python": lambda path: path.write_text("1" * 100_000),
    "safetensors": lambda path: save_file({"weight": TENSOR}, path),
    "torch": lambda path: torch.save([TENSOR] * 3, path),
    "tokenizers": lambda path: WORDS.save(str(path)),
    "soundfile": lambda path: soundfile.write(path, TENSOR.numpy(), 8_000, format="WAV"),
}


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("library", WRITERS)
def test_a_full_disk_is_told_whichever_library_writes(tmp_path, library, is_folder):
    target = tmp_path / "model"
    with no_space(), pytest.raises(toy.NoSpaceError) as told, toy.written_whole(target) as new:
        if is_folder:
            new.mkdir()
        WRITERS[library](new / "weights" if is_folder else new)
    assert str(target) in str(told.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at inline_container.cc:672] unexpected pos"),
        RuntimeError("basic_ios::clear: iostream error"),
        soundfile.LibsndfileError(2, "Error opening 'x': "),  # "System error."
        OSError(errno.EACCES, os.strerror(errno.EACCES)),
        ValueError("os error 28"),
    ],
)
def test_an_error_on_a_disk_with_space_stays_what_it_is(tmp_path, error):
    """Of a full disk it would end all other runs too."""
    with pytest.raises(type(error)) as told, toy.written_whole(tmp_path / "model") as new:
        new.write_text("half")
        raise error
    assert told.value is error and list(tmp_path.iterdir()) == []
