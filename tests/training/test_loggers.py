"""Loggers: what TensorBoard's files hold, and what happens without the package."""

import pytest
import toy

from headwise.recipes import load_recipe
from headwise.runs.preparing import claim_folder, prepare_task
from headwise.runs.reading import read_recipe
from headwise.training.loggers import LOGS

tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def curves(folder):
    """Name of each figure to its values by step, of all event files of a run."""
    found = {}
    for path in sorted((folder / LOGS).glob("events.*")):
        events = tensorboard.EventAccumulator(str(path)).Reload()
        for name in events.Tags()["scalars"]:
            found.setdefault(name, {}).update({e.step: e.value for e in events.Scalars(name)})
    return found


def test_tensorboard_has_losses_rates_and_what_is_measured(tmp_path):
    run = toy.train(
        tmp_path,
        toy.model("mae"),
        toy.settings(max_steps=8, report_to=["tensorboard"]),
        measure=lambda model: {"accuracy": 50.0},
        snapshot=lambda model: {"decoder": {"entropy": 1.0}},
    )
    found = curves(tmp_path)
    for name, key in (("train/loss", "loss"), ("eval/loss", "eval_loss")):
        expected = {r["step"]: r[key] for r in run.history if key in r}
        assert found[name] == pytest.approx(expected, rel=1e-5)
    rates = {r["step"]: r["learning_rate"] for r in run.history if "learning_rate" in r}
    assert found["train/learning_rate"] == pytest.approx(rates, rel=1e-5) and len(rates) == 8
    assert found["eval/accuracy"] == {4: 50.0, 8: 50.0}


def test_a_run_may_go_on_with_another_logger(tmp_path):
    claim_folder(tmp_path, load_recipe("interface-strings").recipe)
    other = load_recipe("interface-strings", ["training.report_to=[tensorboard]"]).recipe
    claim_folder(tmp_path, other)
    assert read_recipe(tmp_path).training.report_to == ["tensorboard"]


def test_a_logger_that_is_missing_is_an_error_before_the_data_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("headwise.training.loggers.find_spec", lambda name: None)
    changes = ["training.report_to=[mlflow]", "data.corpus=files", "data.train.source=no-such-file"]
    recipe = load_recipe("interface-strings", [*changes, "data.train.target=none"]).recipe
    with pytest.raises(ValueError, match=r"names mlflow.*not installed: pip install mlflow"):
        prepare_task(recipe, tmp_path / "run", toy.quiet())
    with pytest.raises(ValueError, match=r"report_to"):
        load_recipe("interface-strings", ["training.report_to=[no_such_logger]"])
