"""A run that is killed, interrupted, damaged or out of space ends as one that nobody disturbed."""

import errno
import os
import shutil
import signal
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from support import run_folders, tiny_tasks
from support import toy_training as toy
from support.processes import Ended, forked, killed_at, signalled_at, unwritable
from support.run_folders import files_of

from headwise.cli import app

# Of what a run is made: its system, and its data. MAE's gates and experts take turns, and what a
# stream has given is not given again.
DATA = {"standard": {}, "mae": {"streaming": True, "held_out": 20, "window": 60}}
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
        paths = self.folder.glob("checkpoint-*")
        return sorted(paths, key=lambda path: int(path.name.partition("-")[2]))

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
        """It is said, and the run resumes from the checkpoint before the damaged one."""
        *earlier, last = self.checkpoints
        content = (last / file).read_bytes()
        (last / file).unlink()
        if damage != "deleted":
            content = content[: len(content) // 2] if damage == "cut" else b"\0" * len(content)
            (last / file).write_bytes(content)
        ended = self.train(signalled_at(1, signal.SIGTERM))
        assert last.name in ended.said and file in ended.said
        before = int(earlier[-1].name.partition("-")[2]) if earlier else 0
        assert f"step {before + 1}" in ended.said

    @precondition(lambda self: self.checkpoints)
    @rule(other=st.sampled_from(["recipe", "data"]))
    def refused(self, other: str) -> None:
        """What is not this run's recipe or data is refused, and nothing is changed."""
        text, before = self.place / "text.txt", files_of(self.folder)
        content, times = text.read_bytes(), (text.stat().st_atime_ns, text.stat().st_mtime_ns)
        if other == "data":
            text.write_bytes(content + b"one two three\n")
        change = ("--set", "training.learning_rate=0.5") if other == "recipe" else ()
        ended = self.train(change=change)
        text.write_bytes(content)
        os.utime(text, ns=times)  # of a stream nobody has read all
        assert ended.status == 2 and str(self.folder) in ended.said
        assert files_of(self.folder) == before

    @rule(after=st.integers(0, 120))
    def full(self, after: int) -> None:
        """The disk is full after so many files."""
        ended = self.train(unwritable(self.folder, errno.ENOSPC, after))
        if ended.status:
            assert ended.status in (1, 2) and "Traceback" not in ended.said
            assert str(self.folder) in " ".join(ended.said.split()), ended.said
        names = [path.name for path in self.folder.rglob(".*")]
        assert not [name for name in names if name.startswith(".partial")]

    def teardown(self) -> None:
        """In the end it is the run that nobody disturbed, and trains no further."""
        ended = self.train()
        assert ended.status == 0, ended.said
        whole = self.place / "whole"
        assert outcome(self.folder) == outcome(whole)
        weights, expected = run_folders.weights(self.folder), run_folders.weights(whole)
        assert all(torch.equal(weights[name], expected[name]) for name in expected | weights)
        before = files_of(self.folder)
        assert self.train(signalled_at(1, signal.SIGKILL)).status == 0
        assert files_of(self.folder) == before


def command(place: Path, system: str, folder: Path, *change: str) -> list[str]:
    recipe = str(place / "language-modelling.yaml")
    return ["train", recipe, "--system", system, "--output", str(folder), *change]


def outcome(folder: Path) -> dict:
    """The figures of a finished run, and the names of its files; what was damaged lies aside."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    names = sorted(name for name in names if not name.startswith("damaged-"))
    result = run_folders.result(folder)
    return {"names": names, "scores": result["scores"], "rows": run_folders.rows(folder)}


@pytest.fixture(scope="module", params=DATA)
def machine(request, tmp_path_factory):
    """The state machine of a system's run, beside one that nobody disturbed."""
    place = tmp_path_factory.mktemp(request.param)
    training = {"max_steps": STEPS, "final_model": "average"}
    recipe = tiny_tasks.RECIPES["language-modelling"](place)
    data = {**recipe["data"], **DATA[request.param]}
    tiny_tasks.write_recipe("language-modelling", place, data=data, training=training)
    result = tiny_tasks.run(*command(place, request.param, place / "whole"))
    assert result.exit_code == 0, result.output
    return type("RunOfSystem", (Run,), {"system": request.param, "place": place})


def test_killed_interrupted_full_or_damaged_a_run_ends_with_the_same_weights(machine):
    run = machine()
    run.killed(moment=60)
    run.interrupted(step=3, number=signal.SIGINT)
    run.full(after=8)
    run.refused(other="recipe")
    run.interrupted(step=1, number=signal.SIGTERM)
    run.damaged(file=toy.STATE[0], damage="cut")
    run.refused(other="data")
    run.killed(moment=60)
    assert run.effects == 8  # each had its effect
    run.teardown()


def test_any_mishaps_in_any_order(machine):
    examples, steps = (2, 4) if settings().max_examples < 100 else (60, 10)
    few = settings(stateful_step_count=steps, max_examples=examples, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=few)


def test_a_changed_byte_of_a_tensor_is_noticed(tmp_path):
    """The run resumes from the checkpoint before, and has the records of one without damage."""
    whole = toy.train(tmp_path / "whole", evaluate_every=1)
    with pytest.raises(toy.Interrupted):
        toy.train(tmp_path / "run", evaluate_every=1, collate=toy.Signalled(9))
    *_, before, last = sorted((tmp_path / "run").glob("checkpoint-*"))
    shutil.copytree(before, tmp_path / "run" / f"{before.name}-copy")  # which is the user's
    state = last / "training.pt"
    with ZipFile(state) as archive:
        tensors = [archive.read(name) for name in archive.namelist() if "/data/" in name]
    content = bytearray(state.read_bytes())
    content[content.index(max(tensors, key=len)) + 1] ^= 1
    state.write_bytes(content)
    run = toy.train(tmp_path / "run", evaluate_every=1)
    assert f"{last.name} cannot be used (training.pt cannot be read" in run.said
    assert f"resumes from {before.name}" in run.said and run.history == whole.history


# --- what a training has waited for -----------------------------------------------------------


TOO_FAST = {"optimizer": "nesterov", "learning_rate": 1.0, "momentum": 0.5, "evaluate_every": 1}
FALLS = {"schedule": "plateau", "plateau": {"patience": 2, "factor": 0.1}, "patience": 4}
MAE = {"rules": {"mae": {"period": 2, "unit": "steps"}}, "gradient_accumulation": 2}
COURSES = {
    "waits": ("standard", {**TOO_FAST, **FALLS, "max_steps": 14, "log_every": 4}),
    "takes turns": ("mae", {**MAE, "max_steps": 9, "log_every": 3, "evaluate_every": 3}),
    "averages": (
        "weighted",
        {"precision": "bf16", "final_model": "average", "log_every": 5}
        | {"max_steps": 15, "evaluate_every": 4},
    ),
}


@pytest.mark.parametrize("calls", [(4, 3), (7, 2, 10)])
@pytest.mark.parametrize("course", COURSES)
def test_a_run_that_was_stopped_has_the_records_of_one_that_was_not(tmp_path, course, calls):
    """Its means of losses, its patience and its rate; dropout and rules go on as they would."""
    system, options = COURSES[course]
    whole = toy.train(tmp_path / "whole", toy.model(system, dropout=0.2), **options)
    if course == "waits":
        assert whole.rates[-1] < 0.5 and whole.steps < 14
    for call in calls:
        with pytest.raises(toy.Interrupted):
            model, collate = toy.model(system, dropout=0.2), toy.Signalled(call)
            toy.train(tmp_path / "run", model, collate=collate, **options)
    run = toy.train(tmp_path / "run", toy.model(system, seed=9, dropout=0.2), **options)
    assert run.said.startswith("training: training resumes from step ")
    assert (run.steps, run.history) == (whole.steps, whole.history)
    state = run.model.state_dict()
    assert all(torch.equal(state[name], x) for name, x in whole.model.state_dict().items())
