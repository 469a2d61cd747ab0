"""Many runs at a time: one that fails or is stopped takes nothing with it, and goes on."""

import io
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from rich.console import Console
from support.processes import begun, wait_for
from support.run_folders import compare, result

from headwise.recipes.recipe import load_recipe
from headwise.runs import launching
from headwise.runs.folder import init_run_folder
from headwise.runs.launching import Launcher, Run, RunsFailed, train_all
from headwise.runs.process import LOG, train_command, train_on_worker
from headwise.training.trainer import Interrupted

OWN_CODE = ["trouble_maker"]


def make_runs(recipe, folder, *names, changes=()):
    """Runs that are to be trained, by `SYSTEM-seedN`."""
    runs = []
    for name in names:
        system, seed = name.split("-seed")
        file = load_recipe(str(recipe), [f"training.seed={seed}", *changes])
        runs.append(Run(folder / name, file.system(system)))
        init_run_folder(*runs[-1][:2])
    return runs


def train(runs, jobs=1):
    """Trains runs; returns the printed text."""
    console = Console(file=io.StringIO(), width=200)
    try:
        train_all(runs, console, Launcher(jobs, modules=OWN_CODE))
    except RunsFailed as error:
        console.print(f"RunsFailed: {error}", markup=False)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def expected(recipe, tmp_path_factory):
    """The result of `standard` in this process; `troubled` gives it without trouble."""
    runs = make_runs(recipe, tmp_path_factory.mktemp("expected"), "standard-seed1")
    assert "standard-seed1: accuracy" in train(runs)
    return result(runs[0].folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_runs_stop_with_the_command_however_it_ends_and_the_same_one_goes_on(
    recipe, expected, tmp_path, trouble, number
):
    at_work = trouble("waits")
    runs = make_runs(recipe, tmp_path, "troubled-seed1")
    folder = runs[0].folder

    def work():
        try:
            train_all(runs, Console(), Launcher(2, modules=OWN_CODE))
        except Interrupted:
            sys.exit(130)

    said = tmp_path / "said"
    starter = begun(work, said)
    wait_for(at_work.exists, starter)
    wait_for(lambda: "troubled-seed1: step 3/6 loss" in said.read_text(), starter)
    run_pid = int(at_work.read_text().split()[0])
    os.kill(starter.pid, number)
    time.sleep(1)
    trouble(None)  # the step at hand is finished
    starter.join(60)
    assert starter.exitcode == (130 if number == signal.SIGINT else -number)
    deadline = time.monotonic() + 240
    while is_alive(run_pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert runs[0].result() is None and (folder / "checkpoint-4").is_dir()
    assert "stopped at step 4" in (folder / LOG).read_text()
    train(runs)
    assert result(folder) == expected


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_runs_at_work_share_the_threads_and_the_gpus(recipe, tmp_path, monkeypatch):
    names = [f"standard-seed{seed}" for seed in range(1, 6)]
    runs = make_runs(recipe, tmp_path, *names)
    program = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OMP_NUM_THREADS'])"
    monkeypatch.setattr(launching, "train_command", lambda *_: ["-c", program])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7,9")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 9)
    text = train(runs, jobs=2)
    assert "5 of 5 runs failed" in text and "ended before the run did" in text
    printed = {tuple((run.folder / LOG).read_text().split()) for run in runs}
    assert printed == {("3", "4"), ("5", "4")}


def test_processes_that_share_a_run_give_one_result(recipe, tmp_path):
    changes = ["model.dropout=0.0"]
    (alone,) = make_runs(recipe, tmp_path / "one", "standard-seed1", changes=changes)
    (shared,) = make_runs(recipe, tmp_path / "two", "standard-seed1", changes=changes)
    train([alone])
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([sys.executable, *torchrun, *train_command(shared.folder, OWN_CODE)], check=True)
    loss = alone.result().validation_loss
    assert shared.result().validation_loss == pytest.approx(loss, rel=1e-6)
    names = [{path.name for path in run.folder.iterdir()} for run in (alone, shared)]
    assert names[0] == names[1]


def test_where_there_is_no_cluster_it_is_told_before_anything_is_read(recipe, tmp_path):
    pytest.importorskip("ray")
    text = compare(recipe, tmp_path / "runs", "standard", "--ray-address", "auto", status=2)
    assert "--ray-address is auto" in text and "reading" not in text
    assert not (tmp_path / "runs").exists()


def test_a_machine_that_does_not_see_the_folder_says_so(tmp_path):
    folder = tmp_path / "run"
    reason = train_on_worker(train_command(folder), folder, tmp_path, {})
    assert str(folder) in reason and "--output" in reason
