"""What is noted of a model at validations, without a trace in its training."""

from types import SimpleNamespace

import pytest
import toy
from test_resume import STEPS, Stops, assert_same, model, settings

from headwise.analysis.decisions.snapshots import Snapshots
from headwise.training.run import Interrupted


def snapshots():
    data = {"validation": toy.Reversals(8, seed=1), "collate": toy.join}
    task = SimpleNamespace(**data, positions=lambda batch: {})
    return Snapshots(task, batch_tokens=60)


def taken(run):
    """Step to snapshot."""
    return {r["step"]: r["snapshot"] for r in run.history if "snapshot" in r}


@pytest.mark.parametrize("plan", ["mae", "moa"])
def test_training_is_the_same_to_the_bit(tmp_path, plan):
    reference = toy.train(tmp_path / "without", model(plan), settings())
    run = toy.train(tmp_path / "with", model(plan), settings(), snapshot=snapshots())
    assert_same(run, reference)
    assert list(taken(run)) == [0, 4, 8, 12] and not taken(reference)
    assert len(taken(run)[0]) == 3  # places
    assert taken(run)[0] != taken(run)[12]


def test_a_run_that_goes_on_has_the_snapshots_of_one_that_never_stopped(tmp_path):
    reference = toy.train(tmp_path / "whole", model("mae"), settings(), snapshot=snapshots())
    stopped = tmp_path / "stopped"
    for calls in (3, 4):
        with pytest.raises(Interrupted):
            toy.train(stopped, model("mae"), settings(), Stops(calls), snapshot=snapshots())
    run = toy.train(stopped, model("mae"), settings(), snapshot=snapshots())
    assert_same(run, reference)
    assert taken(run) == taken(reference)
    assert list(taken(run)) == [0, 4, 8, STEPS]
