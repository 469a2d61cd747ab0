"""A run that diverges ends at its first validation without a loss, says so, and is finished."""

import math

import pytest
import torch
import toy

from headwise.training.checkpoints import REMEDIES, checkpoints


def train(folder, how, *, collate=toy.join, seed=3):
    """The run, and what it said."""
    return toy.said(folder, toy.model(seed=seed), how, collate)


def diverging(**options):
    how = {"learning_rate": 1e30, "warmup_steps": 0, "schedule": "constant"}
    return toy.settings(**how | options)


def losses(run, kind):
    return [loss for _, found, loss in toy.curve(run) if found == kind]


@pytest.mark.parametrize("final_model", ["best", "last"])
def test_it_ends_at_the_first_validation_and_says_what_to_try(tmp_path, final_model):
    run, said = train(tmp_path, diverging(final_model=final_model))
    assert (run.steps, run.planned_steps, run.best_step) == (4, 12, None)
    assert any(map(math.isnan, losses(run, "loss")))  # recorded, not skipped
    assert list(map(math.isnan, losses(run, "eval_loss"))) == [True]
    assert run.stopped_early
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-4"]
    assert not all(p.isfinite().all() for p in run.model.parameters())
    expected = "training: the training has diverged and ends at step 4 of 12: its validation loss "
    assert f"{expected}is nan; try {REMEDIES}" in said


def test_it_is_finished_and_not_trained_again(tmp_path):
    first, _ = train(tmp_path, diverging())

    def never(items):
        raise AssertionError("trained again")

    again, said = train(tmp_path, diverging(), collate=never, seed=99)
    assert str(toy.curve(again)) == str(toy.curve(first))
    assert (again.steps, again.planned_steps) == (4, 12)
    assert "has diverged and ends at step 4 of 12" in said


def test_one_that_was_well_before_keeps_its_best_weights(tmp_path, monkeypatch):
    """The weights become infinite after the first validation."""
    network = toy.model()

    def spoil(items):
        if (tmp_path / "checkpoint-4").is_dir():
            with torch.no_grad():
                network.encoder.embedding.weight.fill_(math.inf)
        return toy.join(items)

    run = toy.train(tmp_path, network, toy.settings(), spoil)
    assert (run.steps, run.best_step) == (8, 4)
    first, second = losses(run, "eval_loss")
    assert math.isfinite(first) and not math.isfinite(second)
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())
