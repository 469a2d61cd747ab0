"""Loggers of a run that goes on, and without the package."""

import sys
from unittest.mock import MagicMock

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


@pytest.mark.parametrize("begun_by_the_user", [False, True])
@pytest.mark.parametrize("train", ["all", "nothing"])
def test_each_training_has_a_run_of_its_own_at_wandb(
    tmp_path, monkeypatch, begun_by_the_user, train
):
    wandb = MagicMock(run=MagicMock() if begun_by_the_user else None, ConfigError=ValueError)
    wandb.__name__ = "wandb"
    wandb.init.side_effect = lambda name, **_: setattr(wandb, "run", MagicMock(name=name))
    wandb.finish.side_effect = lambda: setattr(wandb, "run", None)
    for name in ("wandb", "wandb.sdk", "wandb.sdk.lib", "wandb.sdk.lib.config_util"):
        monkeypatch.setitem(sys.modules, name, wandb)
    there = "transformers.integrations.integration_utils.is_wandb_available"
    monkeypatch.setattr(there, lambda: True)
    how = toy.settings(max_steps=2, report_to=["wandb"], train=train)
    for name in ("standard-seed1", "mae-seed1"):
        toy.train(tmp_path / name, toy.model(), how)
    begun = [call.kwargs["name"] for call in wandb.init.call_args_list]
    assert begun == ([] if begun_by_the_user else ["standard-seed1", "mae-seed1"])
    assert (wandb.run is None) != begun_by_the_user
