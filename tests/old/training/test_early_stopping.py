"""A run that no longer improves is stopped, counts as finished, and keeps the right weights."""

import signal

import pytest
import torch
import toy
from safetensors.torch import load_file

from headwise.training.checkpoints import checkpoints
from headwise.training.run import Interrupted


def settings(**options):
    """Validates every second step of 20, at a rate that soon leads away from the validation set."""
    how = {"max_steps": 20, "evaluate_every": 2, "warmup_steps": 0, "patience": 3}
    how |= {"schedule": "constant", "learning_rate": 0.02}
    return toy.settings(**how | options)


def train(folder, how, collate=toy.join, *, network=None, run=toy.train):
    made = network or toy.model(dropout=0.2)
    return run(folder, made, how, collate, data=toy.another_task())


def validations(run):
    return {step: loss for step, kind, loss in toy.curve(run) if kind == "eval_loss"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was stopped early and never interrupted, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return train(folder, settings(keep_checkpoints=2)), folder


@pytest.mark.parametrize("patience", [1, 3])
def test_it_stops_after_that_many_validations_without_a_better_loss(tmp_path, patience):
    run = train(tmp_path, settings(patience=patience))
    losses = validations(run)
    best = min(losses, key=losses.get)
    assert run.best_step == best
    assert run.steps == best + 2 * patience < 20
    assert max(losses) == run.steps
    assert run.planned_steps == 20
    assert run.stopped_early


# Interrupted and started again


def test_a_stopped_run_is_not_trained_again(whole):
    run, folder = whole

    def never(items):
        raise AssertionError("trained again")

    again = train(
        folder, settings(keep_checkpoints=2), never, network=toy.model(seed=99, dropout=0.2)
    )
    toy.assert_same(again, run)
    assert (again.steps, again.planned_steps) == (run.steps, 20)
    assert again.stopped_early


@pytest.mark.parametrize("after", [0, 1, 2], ids=["best at hand", "one worse", "two worse"])
def test_an_interrupted_run_goes_on_counting(whole, tmp_path, after):
    run, _ = whole
    step = run.best_step + 2 * after

    def stop(items):
        if (tmp_path / f"checkpoint-{step}").is_dir():
            signal.raise_signal(signal.SIGINT)
        return toy.join(items)

    with pytest.raises(Interrupted, match=f"stopped at step {step + 1}"):
        train(tmp_path, settings(keep_checkpoints=2), stop)
    again = train(tmp_path, settings(keep_checkpoints=2), network=toy.model(seed=99, dropout=0.2))
    toy.assert_same(again, run)
    assert again.steps == run.steps


# Which weights are kept


def test_the_best_stays_though_it_is_older_than_those_kept(whole):
    run, folder = whole
    last = run.steps
    assert [path.name for path in checkpoints(folder)] == [
        f"checkpoint-{step}" for step in (run.best_step, last - 2, last)
    ]
    kept, best = (
        load_file(folder / "model" / "model.safetensors"),
        toy.weights(folder, run.best_step),
    )
    assert [name for name in kept if not torch.equal(kept[name], best[name])] == []


def test_the_stop_is_said(tmp_path):
    run, said = train(tmp_path, settings(patience=1), run=toy.said)
    assert f"training: stopped early at step {run.steps} of 20: no better loss since step 2" in said
    how = settings(max_steps=run.steps, patience=1)  # which runs out with the budget
    run, said = train(tmp_path / "in time", how, run=toy.said)
    assert not run.stopped_early
    assert "stopped" not in said
