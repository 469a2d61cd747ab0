"""A run that is stopped, however rudely, ends as one that was not."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import toy
from rich.console import Console

from headwise.heads.mae import GateSettings
from headwise.training.checkpoints import checkpoints
from headwise.training.run import Interrupted, threads_of_run
from headwise.training.settings import PlateauSettings
from headwise.training.trainer import Trainer

# 40 reversals are 5 batches: 5 steps an epoch, 3 where two batches make a step.
STEPS = 12


class Stops:
    """A collate function during whose n-th call a signal arrives, as Ctrl-C may at any time."""

    def __init__(self, call, number=signal.SIGINT):
        self.calls_left = call
        self.number = number

    def __call__(self, items):
        self.calls_left -= 1
        if self.calls_left == 0:
            signal.raise_signal(self.number)
        return toy.join(items)


def settings(**options):
    gates = GateSettings(period=2, unit="steps", learning_rate=0.5)
    return toy.settings(max_steps=STEPS, mae=gates, final_model="last", **options)


def model(plan):
    return toy.model(toy.PLANS[plan], dropout=0.2, attention_dropout=0.1)


def assert_same(run, reference):
    toy.assert_same(run, reference)
    assert run.steps == reference.steps == STEPS


@pytest.mark.parametrize("plan", ["standard", "mae", "moa"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_interrupted_run_goes_on_with_the_same_losses(tmp_path, plan, accumulation):
    how = settings(gradient_accumulation=accumulation)
    reference = toy.train(tmp_path / "whole", model(plan), how)
    # The first stop is within an epoch, before any validation; the second at the end of one.
    stops = ((3, 3), (2, 5)) if accumulation == 1 else ((3, 2), (1, 3))
    for calls, step in stops:
        with pytest.raises(Interrupted, match=f"stopped at step {step}"):
            toy.train(tmp_path / "stopped", model(plan), how, Stops(calls))
        assert checkpoints(tmp_path / "stopped")[-1].name == f"checkpoint-{step}"
    run = toy.train(tmp_path / "stopped", model(plan), how)
    assert_same(run, reference)


def test_loader_workers_change_nothing_also_of_a_run_that_is_stopped(tmp_path, monkeypatch):
    reference = toy.train(tmp_path / "alone", model("mae"), settings())
    how = settings(loader_workers=2)
    training_step = Trainer.training_step

    def stops(self, *args, **kwargs):
        if self.state.global_step == 6:  # Ctrl-C, in the second epoch, reaches all processes
            workers = [process.pid for process in multiprocessing.active_children()]
            assert len(workers) == 2
            for process in (*workers, os.getpid()):
                os.kill(process, signal.SIGINT)
        return training_step(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "training_step", stops)
        with pytest.raises(Interrupted, match="stopped at step 7"):
            toy.train(tmp_path / "stopped", model("mae"), how)
    assert_same(toy.train(tmp_path / "stopped", model("mae"), how), reference)
    assert not multiprocessing.active_children()


def test_a_run_on_a_plateau_goes_on_with_the_rate_that_it_had(tmp_path):
    # So fast that it gets worse: after nearly each validation the rate falls.
    plateau = PlateauSettings(patience=1, factor=0.1)
    how = toy.settings(
        max_steps=STEPS,
        evaluate_every=2,
        learning_rate=0.3,
        warmup_steps=0,
        schedule="plateau",
        plateau=plateau,
        final_model="last",
    )
    reference = toy.train(tmp_path / "whole", model("standard"), how)
    rates = [record["learning_rate"] for record in reference.history if "learning_rate" in record]
    assert rates[0] == 0.3 and rates[-1] < 0.5 * rates[0]
    with pytest.raises(Interrupted, match="stopped at step 9"):
        toy.train(tmp_path / "stopped", model("standard"), how, Stops(15))
    run = toy.train(tmp_path / "stopped", model("standard"), how)
    assert_same(run, reference)


def test_sigterm_stops_as_ctrl_c_does(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="stopped at step 2"):
        toy.train(tmp_path, model("standard"), settings(), Stops(2, signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_is_ignored_stays_so(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = toy.train(tmp_path, model("standard"), settings(), Stops(2))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.steps == STEPS


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    class Impatient(Stops):
        def __call__(self, items):
            batch = super().__call__(items)
            if self.calls_left == 0:
                signal.raise_signal(signal.SIGINT)
            return batch

    with pytest.raises(KeyboardInterrupt):
        toy.train(tmp_path, model("standard"), settings(), Impatient(2))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert checkpoints(tmp_path) == []


def test_stopped_at_the_very_last_step_it_is_finished(tmp_path):
    reference = toy.train(tmp_path / "whole", model("standard"), settings())
    # Before it come 12 batches of training, and twice 2 of validation.
    with pytest.raises(Interrupted, match=f"stopped at step {STEPS}"):
        toy.train(tmp_path / "stopped", model("standard"), settings(), Stops(16))
    assert_same(toy.train(tmp_path / "stopped", model("standard"), settings()), reference)


@pytest.mark.parametrize("processors", [1, 2])
def test_a_run_goes_on_with_its_threads_if_there_are_processors(tmp_path, monkeypatch, processors):
    monkeypatch.setattr("headwise.training.run._processors", lambda: processors)
    for step, state in ((3, '{"log_history": [{"threads": 1}, {"threads": 2}]}'), (4, "{")):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    said = io.StringIO()
    with threads_of_run(tmp_path, "mae", Console(file=said, width=10_000)):
        assert torch.get_num_threads() == processors
    assert torch.get_num_threads() == 1
    if processors == 2:
        assert said.getvalue() == "mae: goes on with 2 CPU threads, as it was trained before\n"
    else:
        assert "trained with 2 CPU threads, and this process may use 1 processor" in said.getvalue()
        assert "it goes on with 1, which round otherwise" in said.getvalue()


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
import toy
from test_resume import model, settings

replace = Path.replace
def killed_before_the_second_checkpoint_has_its_name(source, target):
    if target.name == "checkpoint-8":
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(source, target)
Path.replace = killed_before_the_second_checkpoint_has_its_name
toy.train(Path({folder!r}), model("mae"), settings())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_after_kill_9_it_goes_on_from_the_last_whole_checkpoint(tmp_path):
    folder = tmp_path / "killed"
    script = KILLED.format(here=str(Path(__file__).parent), folder=str(folder))
    killed = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [path.name for path in checkpoints(folder)] == ["checkpoint-4"]
    assert [path.name for path in folder.glob(".partial-*")] == [".partial-checkpoint-8"]
    # Another one died while it wrote a checkpoint at a step that will not be saved again.
    (folder / ".partial-checkpoint-7").mkdir()
    run = toy.train(folder, model("mae"), settings())
    assert not list(folder.glob(".partial-*"))
    reference = toy.train(tmp_path / "whole", model("mae"), settings())
    assert [p.name for p in checkpoints(folder)] == [
        "checkpoint-4",
        "checkpoint-8",
        "checkpoint-12",
    ]
    # Another process may have another number of threads, and sum in another order.
    values = ([loss for *_, loss in toy.curve(each)] for each in (run, reference))
    torch.testing.assert_close(*(torch.tensor(each) for each in values))
