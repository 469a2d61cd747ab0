"""What an import and a command load: no more than they use."""

import re
import subprocess
import sys
from importlib.metadata import requires, version

import pytest

import headwise
from headwise.__main__ import _TRAIN
from headwise.recipe import load_recipe
from headwise.recipe.shipped import listed_recipes

TORCH = {"torch", "transformers"}
PAGES = {"matplotlib", "rich", "typer", "sacrebleu", "datasets", "scipy", "sklearn", "pandas"}


def loaded_by(code: str) -> set[str]:
    """The packages that are loaded when this has run in a new process."""
    code += "\nimport sys; print('\\n', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_an_import_loads_nothing_yet():
    assert not loaded_by("import headwise") & (TORCH | PAGES)


def test_a_layer_loads_no_models_and_no_pages():
    loaded = loaded_by("import headwise; headwise.MixtureOfAttentiveExperts(8, 2)")
    assert "torch" in loaded
    assert not loaded & (PAGES | {"transformers"})


def test_all_names_load_neither_figures_nor_bars():
    loaded = loaded_by("import headwise; [getattr(headwise, name) for name in headwise.__all__]")
    assert not loaded & {"matplotlib", "rich", "typer", "sacrebleu", "datasets"}


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"], ["recipes"]])
def test_a_command_that_computes_nothing_loads_no_torch(arguments):
    code = f"from headwise.cli import app\ntry: app({arguments})\nexcept SystemExit: pass"
    assert not loaded_by(code) & TORCH


WITHOUT = """
import builtins, sys
whole = builtins.__import__
def without(name, *args, **options):
    if name.partition(".")[0] == "{missing}":
        raise ModuleNotFoundError("No module named {missing!r}", name="{missing}")
    return whole(name, *args, **options)
builtins.__import__ = without
sys.argv = ["headwise", {command!r}]
from headwise.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("missing", "command"), [("typer", "--help"), ("rich", "recipes"), ("yaml", "cost")]
)
def test_a_command_without_its_extra_names_the_line_to_type(missing, command):
    code = WITHOUT.format(missing=missing, command=command)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"the commands need {missing}, which is not installed: pip" in done.stderr
    assert "'headwise[train]'" in done.stderr and "Traceback" not in done.stderr


def test_the_extra_is_what_the_commands_need():
    declared = {
        re.split("[<>=;]", line)[0].strip()
        for line in requires("headwise")
        if re.search("extra == .train.", line)
    }
    by_module = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
    assert {by_module.get(name, name) for name in _TRAIN} == declared


def test_the_version():
    done = subprocess.run(
        [sys.executable, "-m", "headwise", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"headwise {version('headwise')}\n"


def test_every_public_name_is_there():
    assert all(getattr(headwise, name) is not None for name in headwise.__all__)
    assert set(headwise.__all__) <= set(dir(headwise))
    with pytest.raises(AttributeError, match="nothing"):
        headwise.nothing  # noqa: B018


AUTO = "from transformers import AutoConfig, AutoModelForCausalLM as Model"
USE = """
config = AutoConfig.for_model("headwise-causal-lm", vocab_size=9, embed_dim=8, num_heads=2,
                              ffn_dim=8, layers=1)
assert type(Model.from_config(config)).__name__ == "CausalLM"
AutoConfig.for_model("headwise-speech-enhancer")
"""


@pytest.mark.parametrize(
    "imports",
    [
        f"import headwise\n{AUTO}",
        f"{AUTO}\nimport headwise",
        f"import transformers, headwise\n{AUTO}",
        f"import headwise.models.base\n{AUTO}",
        f"import headwise\nheadwise.SequenceClassifier\n{AUTO}",
        f"from headwise.models.config import TransformerConfig\n{AUTO}",
        # They import the Auto classes before they are whole themselves.
        f"import headwise\nfrom transformers import PreTrainedModel\n{AUTO}",
        f"import headwise\nfrom transformers import Trainer\n{AUTO}",
        f"import headwise\nfrom transformers import BertForMaskedLM\n{AUTO}",
    ],
)
def test_the_auto_classes_know_our_models(imports):
    loaded_by(imports + USE)


def test_recipes_are_listed_as_they_are_read():
    for listed in listed_recipes():
        recipe = load_recipe(listed.name).recipe
        assert (recipe.task, recipe.description) == (listed.task, listed.description)
