"""Loggers of a run that goes on, and without the package."""

import pytest
import toy

from headwise.recipes import load_recipe
from headwise.runs.preparing import claim_folder, prepare_task
from headwise.runs.reading import read_recipe


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
