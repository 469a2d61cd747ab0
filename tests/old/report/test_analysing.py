"""headwise analyse, as it is typed, on runs of tiny models."""

import json

import pytest
import torch
from exploring_runs import write_run
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from headwise.cli import app
from headwise.runs.locking import locked


def typed(*arguments):
    return CliRunner().invoke(app, ["analyse", *map(str, arguments)])


@pytest.mark.parametrize("ablations", ["none", "model"])
def test_a_page_and_its_numbers(runs, tmp_path, ablations):
    run = runs("classification", "mae")
    (run / "ablations").touch()  # as in a folder in which nothing can be written
    found = typed(run, "--ablations", ablations, "--output", tmp_path / "new" / "folder")
    (run / "ablations").unlink()
    assert found.exit_code == 0, found.output
    assert "<svg" in (tmp_path / "new" / "folder" / "analysis.html").read_text(encoding="utf-8")
    record = json.loads((tmp_path / "new" / "folder" / "analysis.json").read_text(encoding="utf-8"))
    assert [each["name"] for each in record["runs"]] == [run.name]
    assert (record["runs"][0]["ablations"] is None) == (ablations == "none")


@pytest.mark.parametrize("system", ["moa", "mae"])
def test_a_model_of_today_is_analysed(runs, tmp_path, system):
    modern = {"positions": "rotary", "num_key_value_heads": 2, "qk_norm": True, "bias": False}
    run = runs("classification", system, **modern)
    found = typed(run, "--ablations", "model", "--output", tmp_path)
    assert found.exit_code == 0, found.output
    record = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    (module,) = record["runs"][0]["likeness"]["modules"]
    assert module["unit"] == "head"  # an expert of MoA has two
    assert len(module["outputs"]) == len(module["attention"]) == {"moa": 8, "mae": 4}[system]


def test_a_run_that_is_named_twice_is_analysed_once(runs, tmp_path):
    run, other = runs("classification", "mae"), runs("classification", "moa")
    again = run / ".." / run.name
    options = ("--ablations", "none", "--output", tmp_path, "--against", again)
    assert typed(run, other, other, *options).exit_code == 0
    record = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    assert [each["name"] for each in record["runs"]] == [other.name, run.name]
    assert record["against"] == run.name


def test_a_run_against_itself_is_said(runs):
    run = runs("classification", "mae")
    found = typed(run, "--against", run / ".." / run.name)
    assert found.exit_code == 2 and "expected another one" in found.output.replace("\n", " ")


def test_two_analyses_do_not_write_into_one_folder(runs, tmp_path):
    with locked(tmp_path):
        found = typed(runs("classification", "mae"), "--output", tmp_path)
    assert found.exit_code == 2 and "is in use by process" in found.output.replace("\n", " ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["analyse", "explore"])
def test_a_run_that_has_diverged_is_said(tmp_path, command):
    run = write_run(tmp_path, "images", "moa")
    path = run / "model" / "model.safetensors"
    weights = {name: torch.full_like(w, torch.nan) for name, w in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})
    found = CliRunner().invoke(app, [command, str(run)])
    assert found.exit_code == 2 and "has diverged" in found.output.replace("\n", " ")
