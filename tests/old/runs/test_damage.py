"""Damaged files of a run: made anew, or named with what to do; never other results."""

import io
import json
import shutil
from pathlib import Path

import numerals
import pytest
from rich.console import Console
from safetensors.torch import load_file

from headwise.checksums import SUMS
from headwise.files import NoSpaceError
from headwise.recipes import load_recipe
from headwise.runs.evaluating import read_outcome
from headwise.runs.folder import FolderError
from headwise.runs.locking import locked
from headwise.runs.one_run import train_system
from headwise.runs.preparing import prepare_task
from headwise.runs.reading import open_run
from headwise.runs.tuning import TryRun


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return load_recipe(str(numerals.write_recipe(tmp_path_factory.mktemp("data")))).system("mae")


def train(recipe, folder):
    """Trains a run; returns its result and what is said of damage."""
    said = io.StringIO()
    console = Console(file=said, width=10_000)
    with locked(folder):
        task = prepare_task(recipe, folder, Console(quiet=True))
        result = train_system(recipe, "mae", folder, task, console)
    lines = said.getvalue().splitlines()
    return result, "\n".join(line for line in lines if "valid" not in line)


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(recipe, folder)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run, to be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def figures(folder):
    result = json.loads((folder / "result.json").read_text())
    for record in result["history"]:
        del record["seconds"]
    del result["seconds"]
    return result, read_outcome(folder), load_file(folder / "model" / "model.safetensors")


def assert_same(folder, other):
    (result, outcome, weights), (*expected, weights_expected) = figures(folder), figures(other)
    assert [result, outcome] == expected
    assert all((weights[name] == weights_expected[name]).all() for name in weights_expected)


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def emptied(path):
    path.write_bytes(b"")


def binary(path):
    path.write_bytes(bytes(range(256)))


def other_digit(path):
    """Damage that leaves the file readable."""
    content = bytearray(path.read_bytes())
    place = max(i for i, byte in enumerate(content[:-2]) if byte in b"12345678")
    content[place] += 1
    path.write_bytes(bytes(content))


DAMAGES = [cut, emptied, binary, other_digit]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["result.json", "outcome.json"])
def test_a_damaged_result_is_computed_again(recipe, finished, run, name, damage):
    damage(run / name)
    _, said = train(recipe, run)
    assert f"mae: {run / name} " in said and said.endswith("the run is evaluated again")
    assert_same(run, finished)
    assert train(recipe, run)[1] == ""


@pytest.mark.parametrize("damage", [cut, emptied, binary, Path.unlink])
def test_damaged_outputs_are_written_again(recipe, finished, run, damage):
    damage(run / "outputs.txt")
    _, said = train(recipe, run)
    assert (
        said == f"mae: {run / 'outputs.txt'} is not as the evaluation gave it: it is written again"
    )
    assert (run / "outputs.txt").read_bytes() == (finished / "outputs.txt").read_bytes()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_model_is_named_and_written_anew(recipe, finished, run, name, damage):
    damage(run / "model" / name)
    with pytest.raises(FolderError, match=rf"model cannot be read \({name} is not as it was"):
        open_run(run)
    with pytest.raises(FolderError, match=rf"model cannot be read \({name} is not as it was"):
        train(recipe, run)
    (run / "result.json").unlink()  # as the message says
    train(recipe, run)
    assert_same(run, finished)


def test_a_configuration_that_was_changed_on_purpose_is_read(run):
    config = run / "model" / "config.json"
    config.write_text(config.read_text().replace('"dropout": 0.1', '"dropout": 0.3'))
    with pytest.raises(FolderError, match=rf"delete its line in {run / 'model' / SUMS}"):
        open_run(run)
    sums = run / "model" / SUMS
    lines = [line for line in sums.read_text().splitlines() if "config" not in line]
    sums.write_text("\n".join(lines))
    assert open_run(run)[1].config.dropout == 0.3


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["recipe.yaml", "corpus.sha256", "tokenizer/tokenizer.json"])
def test_what_a_run_is_of_is_named(recipe, run, name, damage):
    damage(run / name)
    if name == "corpus.sha256" and damage is other_digit:
        expected = "the corpus has changed since they were started"
    else:
        expected = str(run / name.partition("/")[0])
    with pytest.raises(ValueError) as caught:
        train(recipe, run)
    assert expected in str(caught.value)


def test_the_mends_of_what_a_run_is_of(recipe, finished, run):
    (run / "recipe.yaml").write_text("")
    shutil.copy(finished / "recipe.yaml", run)
    (run / "corpus.sha256").unlink()
    shutil.rmtree(run / "tokenizer")
    assert train(recipe, run)[1] == ""
    assert_same(run, finished)
    names = ["recipe.yaml", "corpus.sha256", "tokenizer/tokenizer.json"]
    assert all((run / name).read_bytes() == (finished / name).read_bytes() for name in names)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_try_is_trained_again(recipe, tmp_path, damage):
    folder = tmp_path / "try"
    task = prepare_task(recipe, folder, Console(quiet=True))
    run = TryRun(recipe, "mae", folder, task, "mae try 1")
    before = run.train(Console(quiet=True))
    damage(folder / "try.json")
    said = io.StringIO()
    console = Console(file=said, width=10_000)
    assert run.finished(console) is None
    assert "mae try 1: " in said.getvalue() and "try is trained again" in said.getvalue()
    assert run.train(Console(quiet=True)).validation_loss == before.validation_loss


def test_of_a_full_disk_folder_and_mend_are_told_and_nothing_is_lost(
    recipe, finished, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    fsync = []

    def full(descriptor):
        fsync.append(descriptor)
        if len(fsync) == 40:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(NoSpaceError, match=r"MB are free .* give the same command again"):
            train(recipe, folder)
    assert (folder / "checkpoint-3").is_dir() and not list(folder.glob(".partial-*"))
    train(recipe, folder)
    assert_same(folder, finished)
