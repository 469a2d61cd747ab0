"""What SECURITY.md promises: folders of others run no code, and commands open no connection."""

import importlib
import json
import pickle
import shutil
import socket
import sys

import pytest
import torch
import yaml
from support.run_folders import headwise
from support.tiny_tasks import run, write_recipe
from transformers import AutoConfig, AutoModelForCausalLM

import headwise as hw

HOSTILE = """
from pathlib import Path
import headwise as hw
Path({mark!r}).touch()
class Heads(hw.MultiHeadAttention):
    pass
"""
SIZES = {"vocab_size": 9, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "layers": 1}


class Pickled:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return type(self.path).touch, (self.path,)


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """What shows that a module was imported, which Python would find, or a copy of it."""
    mark = tmp_path / "was here"
    (tmp_path / "hostile.py").write_text(HOSTILE.format(mark=str(mark)), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield mark
    assert not mark.exists()
    importlib.import_module("hostile")
    assert mark.exists()  # it would have been seen
    sys.modules.pop("hostile", None)


@pytest.fixture
def model_folder(tmp_path):
    hw.CausalLM(hw.CausalLMConfig(**SIZES)).save_pretrained(tmp_path)
    return tmp_path


def edit(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}))


@pytest.mark.parametrize(
    "load",
    [hw.CausalLM.from_pretrained, AutoConfig.from_pretrained, AutoModelForCausalLM.from_pretrained],
)
def test_a_model_imports_no_class_that_its_folder_names(hostile, model_folder, load):
    edit(model_folder, attention="hostile:Heads")
    with pytest.raises(ValueError) as error:
        load(model_folder)
    assert "hostile:Heads" in str(error.value)


def test_a_model_runs_no_code_beside_it(hostile, model_folder, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # whatever it may ask
    edit(model_folder, auto_map={"AutoModelForCausalLM": "hostile.Heads"})
    assert type(AutoModelForCausalLM.from_pretrained(model_folder)) is hw.CausalLM


def test_weights_of_a_model_are_not_unpickled(model_folder):
    (model_folder / "model.safetensors").unlink()
    mark = model_folder / "was here"
    torch.save({"weight": Pickled(mark)}, model_folder / "pytorch_model.bin")
    with pytest.raises((OSError, pickle.UnpicklingError)):
        hw.CausalLM.from_pretrained(model_folder)
    assert not mark.exists()
    torch.load(model_folder / "pytorch_model.bin", weights_only=False)
    assert mark.exists()  # it would have been


def test_a_recipe_imports_no_class_that_it_names(hostile, tmp_path):
    recipe = write_recipe("language-modelling", tmp_path)
    values = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    values["systems"] = {"own": {"model": {"attention": "hostile:Heads"}}}
    recipe.write_text(yaml.safe_dump(values), encoding="utf-8")
    for command in ("compare", "cost"):
        done = run(command, recipe)
        assert done.exit_code == 2 and "hostile:Heads" in done.stderr, done.output


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that has checkpoints of steps 2 and 4, its last."""
    folder = tmp_path_factory.mktemp("stopped")
    recipe = write_recipe("language-modelling", folder)
    headwise("train", recipe, "--system", "mae", "--output", folder / "run")
    return recipe, folder / "run"


def test_states_of_a_checkpoint_are_not_unpickled(stopped, tmp_path):
    recipe, finished = stopped
    last = finished / "checkpoint-2"
    states = [path.name for path in last.iterdir() if path.suffix in (".pt", ".pth")]
    assert states
    for name in states:
        folder = shutil.copytree(finished, tmp_path / name.replace(".", "-"))
        mark = tmp_path / f"{name} was here"
        torch.save({"state": Pickled(mark)}, folder / last.name / name)
        (folder / "result.json").unlink()
        for after in ("model", "checkpoint-4"):
            shutil.rmtree(folder / after)
        done = headwise("train", recipe, "--system", "mae", "--output", folder)
        assert f"{last.name} cannot be used" in done.output
        assert not mark.exists(), name


@pytest.mark.parametrize("key", ["systems", "datasets", "tests"])
@pytest.mark.parametrize("name", ["../outside", "a/b", "..", "-x", "a\nb", "<b>x</b>"])
def test_names_in_a_recipe_stay_within_the_output_folder_and_are_no_markup(name, key, tmp_path):
    recipe = write_recipe("language-modelling", tmp_path)
    values = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    (values["data"] if key == "tests" else values)[key] = {name: {}}
    recipe.write_text(yaml.safe_dump(values), encoding="utf-8")
    (tmp_path / "out").mkdir()
    before = {path for path in tmp_path.rglob("*") if path.parent.name != "out"}
    done = run("compare", recipe, "--output", tmp_path / "out" / "runs")
    assert done.exit_code == 2 and key in done.stderr, done.output
    assert {path for path in tmp_path.rglob("*") if path.parent.name != "out"} == before


def test_commands_open_no_connection(tmp_path, monkeypatch):
    def refuse(*arguments, **_):
        raise AssertionError(f"a connection is opened: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    recipe = write_recipe("translation", tmp_path)
    folder = tmp_path / "run"
    for command in (
        ("train", recipe, "--system", "standard", "--output", folder),
        ("evaluate", folder),
        ("explore", folder, "--text", "one two", "--output", tmp_path / "page.html"),
    ):
        headwise(*command)
