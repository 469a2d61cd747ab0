"""Runs one after the other and side by side, those that fail and those that are stopped."""

import copy
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import numerals
import pytest
import toy
from rich.console import Console

from headwise.analysis.results import Comparison
from headwise.files import NoSpaceError
from headwise.models.trust import trusting
from headwise.recipes import load_recipe
from headwise.report.comparison import write_report
from headwise.runs import one_run
from headwise.runs.comparing import compare_systems
from headwise.runs.locking import LOCK, locked
from headwise.runs.running import (
    Failure,
    PlannedRun,
    RunsFailed,
    _for_process,
    _train,
    _Workers,
    train_runs,
)
from headwise.training.progress import Printed

pytestmark = pytest.mark.usefixtures("few_rounds")

QUIET = Console(quiet=True)

# Systems that do what they should once the file `trouble` is gone.
TROUBLE = """
import os, signal, time
from pathlib import Path

import headwise as hw

TROUBLE = Path(__file__).with_name("trouble")
calls = 0


class Raises(hw.MultiHeadAttention):
    def combine(self, heads, inputs, choice):
        if TROUBLE.exists():
            raise RuntimeError("no heads")
        return super().combine(heads, inputs, choice)


class Killed(hw.MultiHeadAttention):
    def combine(self, heads, inputs, choice):
        global calls
        calls += self.training
        # In each step there are three; validation after the third step leaves a checkpoint.
        if TROUBLE.exists() and calls > 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().combine(heads, inputs, choice)


class Slow(hw.MultiHeadAttention):
    def combine(self, heads, inputs, choice):
        if TROUBLE.exists():
            Path(__file__).with_name(f"at-work-{os.getpid()}").touch()
            while TROUBLE.exists() and not TROUBLE.with_name("stopping").exists():
                time.sleep(0.02)
            time.sleep(0.5)  # the signal comes by way of the main process
        return super().combine(heads, inputs, choice)
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a corpus, its recipe and a module with systems that make trouble."""
    folder = tmp_path_factory.mktemp("world")
    recipe = numerals.write_recipe(folder)
    (folder / "trouble_makers.py").write_text(TROUBLE, encoding="utf-8")
    with recipe.open("a", encoding="utf-8") as systems:
        for name in ("raises", "killed", "slow"):
            plan = f"trouble_makers:{name.capitalize()}"
            systems.write(f"  {name}: {{model: {{attention: {plan}}}}}\n")
        systems.write("  slower: {model: {attention: trouble_makers:Slow}}\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        with trusting():
            yield folder


@pytest.fixture
def trouble(world):
    file = world / "trouble"
    file.touch()
    yield file
    file.unlink(missing_ok=True)


def compare(world, folder, systems, seeds=(1,), **options):
    file = load_recipe(str(world / "numerals.yaml"))
    return compare_systems(file, systems, seeds, folder, "headwise compare", QUIET, **options)


def figures(found):
    """All of a comparison's runs but what the clock measured."""
    runs = [copy.deepcopy(run.model_dump()) for system in found.systems for run in system.runs]
    for run in runs:
        del run["seconds"]
        for record in run["history"]:
            del record["seconds"]
    return runs


def half_written(folder):
    return [path for path in folder.rglob("*") if path.name.startswith(".partial")]


@pytest.fixture(scope="module")
def one_by_one(world):
    """The baseline and another system, trained in this process with one thread."""
    return compare(world, world / "one", ["standard", "mae"])


@pytest.mark.slow
def test_runs_side_by_side_are_those_one_after_the_other(world, one_by_one):
    found = compare(world, world / "two", ["standard", "mae"], jobs=2)
    assert figures(found) == figures(one_by_one)
    assert [run.threads for system in found.systems for run in system.runs] == [[1], [1]]
    assert all(system.relative_step_time.value > 0 for system in found.systems)


@pytest.mark.slow
def test_a_run_that_fails_leaves_the_others_alone(world, tmp_path, trouble, one_by_one):
    written = []
    systems = ["raises", "killed", "standard"]
    with pytest.raises(RunsFailed, match=r"2 of 3 runs failed; the others are finished:") as caught:
        compare(world, tmp_path / "runs", systems, jobs=2, write=written.append)
    failures = caught.value.failures
    assert failures["raises"].reason == "RuntimeError: no heads"
    assert "in combine" in failures["raises"].traceback
    assert "SIGKILL, as when memory runs out" in failures["killed"].reason
    assert [system.name for system in written[-1].systems] == ["standard"]
    assert written[-1].missing == ["raises", "killed"]
    assert figures(written[-1])[0] == figures(one_by_one)[0]
    assert not half_written(tmp_path)
    assert (tmp_path / "runs" / "killed-seed1" / "checkpoint-3").is_dir()

    trouble.unlink()
    found = compare(world, tmp_path / "runs", systems)
    assert [system.name for system in found.systems] == systems
    assert found.missing == []
    losses = {system.runs[0].validation_loss for system in found.systems}
    assert len(losses) == 1  # all three are the standard system


@pytest.mark.parametrize("end", [Failure("another process has it"), NoSpaceError("it is full"), ""])
@pytest.mark.parametrize("held", [False, True])
def test_what_a_killed_worker_leaves_is_removed_unless_another_process_is_at_work(
    tmp_path, end, held
):
    looked = []

    class Looked(PlannedRun):
        train = None

        def finished(self, console):
            looked.append(console)

    run = Looked(None, "mae", tmp_path, None, "mae")
    workers = _Workers(1, None, QUIET, None)
    (tmp_path / LOCK).write_text(f"{dead_process()}\n{socket.gethostname()}\n")
    with locked(tmp_path) if held else nullcontext():
        (tmp_path / ".partial-checkpoint-3").mkdir()
        before = sorted(tmp_path.iterdir())
        if isinstance(end, NoSpaceError):  # the other runs would find no space either
            with pytest.raises(NoSpaceError, match="it is full"):
                workers.result(run, end, "SIGKILL")
        else:
            assert isinstance(workers.result(run, end, "SIGKILL"), Failure)
        removes = end == "" and not held
        assert len(looked) == removes
        assert sorted(tmp_path.iterdir()) == ([] if removes else before)


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_elsewhere_is_followed_like_one_of_this_machine(tmp_path, fails):
    class Marked(PlannedRun):
        def train(self, console):
            return "trained"

        def finished(self, console):
            return "trained" if (self.folder / "result").exists() else None

    class Elsewhere:
        def __init__(self, run, place):
            self.run = run

        def messages(self):
            yield Printed((f"{self.run.label} is at work",), {})
            if fails and self.run.label == "mae":
                yield Failure("no machine")
            else:
                self.run.folder.mkdir()
                (self.run.folder / "result").touch()

        def death(self):
            return ""

    runs = [Marked(None, name, tmp_path / name, None, name) for name in ("standard", "mae")]
    told = []
    console = Console(file=SimpleNamespace(write=told.append, flush=lambda: None))
    expected = pytest.raises(RunsFailed, match="mae: no machine") if fails else nullcontext()
    with expected:
        assert train_runs(runs, console, start=Elsewhere) == ["trained", "trained"]
    assert "mae is at work" in "".join(told)
    assert (tmp_path / "standard" / "result").is_file()


def dead_process():
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    return process.pid


def start_worker(run, pid):
    """Is the main process: starts a run in a process of its own, and waits."""
    context = multiprocessing.get_context("fork")
    _ours, theirs = context.Pipe()
    messages = SimpleNamespace(recv=lambda: run, send=theirs.send)
    process = context.Process(target=_train, args=(messages, 1, False))
    process.start()
    theirs.close()
    pid.value = process.pid
    signal.pause()


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_run_whose_main_process_is_killed_stops_with_a_checkpoint(
    tmp_path, monkeypatch, swallowed
):
    if swallowed:
        monkeypatch.setattr("headwise.runs.running._SECONDS_TO_STOP", 0.5)
    folder = tmp_path / "run"
    context = multiprocessing.get_context("fork")
    at_work, pid = context.Event(), context.Value("i", 0)
    calls = 0

    def join(items):
        nonlocal calls
        calls += 1
        if calls == 3 and not swallowed:
            parent = os.getppid()
            at_work.set()
            while os.getppid() == parent:
                time.sleep(0.02)
            time.sleep(0.2)  # the signal comes within the third step
        return toy.join(items)

    def train(run, console):
        if swallowed:  # as Python does with what a signal raises while an object is deleted
            with suppress(KeyboardInterrupt):
                at_work.set()
                time.sleep(60)
        toy.train(folder, toy.model(), toy.settings(max_steps=10**6, evaluate_every=10**6), join)

    made = type("Made", (PlannedRun,), {"train": train, "finished": None})
    run = made(None, "mae", folder, None, "mae")
    main = context.Process(target=start_worker, args=(run, pid))
    main.start()
    assert at_work.wait(120) and (folder / LOCK).is_file()
    main.kill()
    main.join()
    until = time.monotonic() + 60
    while (folder / LOCK).exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    if not swallowed:
        assert [path.name for path in folder.iterdir()] == ["checkpoint-3"]
    while True:
        try:
            os.kill(pid.value, 0)
        except ProcessLookupError:
            break
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_ctrl_c_stops_all_runs_and_the_next_start_goes_on(world, tmp_path, trouble, one_by_one):
    folder = tmp_path / "runs"
    systems = ["standard", "slow", "slower"]
    names = ("--systems", ",".join(systems))
    command = ["compare", "numerals.yaml", *names, "--jobs", "2", "--output", str(folder)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"}
    running = subprocess.Popen(
        [sys.executable, "-m", "headwise", *command],
        cwd=world,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 240
    while len(list(world.glob("at-work-*"))) < 2 or not (folder / "report.html").is_file():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    (world / "stopping").touch()
    output, errors = running.communicate(timeout=120)
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    errors = " ".join(errors.split())
    assert "The same command goes on from here." in errors
    assert errors.count("stopped at step") == 2
    assert f"report as far as it goes: {folder / 'report.html'}" in output
    for name in ("slow", "slower"):
        assert list((folder / f"{name}-seed1").glob("checkpoint-*"))
        assert not (folder / f"{name}-seed1" / "result.json").exists()
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "1 of 3 runs are finished; these are missing: slow, slower." in report
    assert not half_written(tmp_path)

    trouble.unlink()
    found = compare(world, folder, systems)
    expected = figures(one_by_one)[0]
    for run in figures(found):
        assert run["history"] == expected["history"]
        assert run["scores"] == expected["scores"]


def break_runs(monkeypatch, labels):
    """Has the training of some runs fail in this process."""
    run_training = one_run.run_training

    def breaks(*args, label, **options):
        if label in labels:
            raise RuntimeError("no batch")
        return run_training(*args, label=label, **options)

    monkeypatch.setattr(one_run, "run_training", breaks)


def test_in_one_process_too_the_others_are_trained(world, tmp_path, monkeypatch):
    written = []
    with monkeypatch.context() as patched:
        break_runs(patched, {"standard seed 1", "standard seed 2", "mae seed 2"})
        with pytest.raises(RunsFailed, match=r"3 of 4 runs failed") as caught:
            compare(world, tmp_path, ["standard", "mae"], [1, 2], write=written.append)
    assert "mae seed 2: RuntimeError: no batch" in str(caught.value)
    found = written[-1]
    assert found.baseline == "standard"
    assert [(system.name, len(system.runs)) for system in found.systems] == [("mae", 1)]
    write_report(found, tmp_path / "report.html")  # without a baseline
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    missing = "standard seed 1, standard seed 2, mae seed 2"
    assert f"1 of 4 runs are finished; these are missing: {missing}." in report


def test_the_comparison_is_written_as_it_goes(world, tmp_path):
    written = []
    found = compare(world, tmp_path, ["standard", "mae"], [1, 2], write=written.append)
    assert [each.missing for each in written] == [
        ["mae seed 1", "standard seed 2", "mae seed 2"],
        ["standard seed 2", "mae seed 2"],
        ["mae seed 2"],
        [],
    ]
    assert written[-1] is found
    # To measure the time of a step takes long, and runs at work would disturb it.
    times = [[system.relative_step_time is None for system in each.systems] for each in written]
    assert times == [[True], [True, True], [True, True], [False, False]]
    assert Comparison.model_validate_json(written[0].model_dump_json()) == written[0]


def test_a_folder_of_another_run_is_found_before_any_is_trained(world, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        break_runs(patched, {"mae"})
        with pytest.raises(RunsFailed):
            compare(world, tmp_path, ["mae"])
    (tmp_path / "mae-seed1" / "checkpoint-3").mkdir()
    file = load_recipe(str(world / "numerals.yaml"), ["systems.mae.training.learning_rate=0.5"])
    monkeypatch.setattr(one_run, "run_training", None)
    with pytest.raises(ValueError, match=r"learning_rate: 0\.003 before, 0\.5 now"):
        compare_systems(file, ["standard", "mae"], [1], tmp_path, "", QUIET)
    assert not (tmp_path / "standard-seed1").exists()


def test_processes_take_turns_with_the_gpus(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = [_for_process(slot, 1)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert gpus == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7")
    assert _for_process(1, 1)["CUDA_VISIBLE_DEVICES"] == "7"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert "CUDA_VISIBLE_DEVICES" not in _for_process(1, 1)
    assert _for_process(1, 3)["OMP_NUM_THREADS"] == "3"
