"""What an import and a command load: no more than they use."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement

from headwise.analysis.cost import model_cost
from headwise.recipes import load_recipe
from headwise.recipes.catalogue import task_class
from headwise.recipes.shipped import listed_recipes
from headwise.report.formatting import count

NEEDED = requires("headwise")
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


OTHER = """
import importlib.metadata as metadata, sys
whole, given = metadata.version, {version!r}
def version(name):
    if name == {name!r}:
        if given is None:
            raise metadata.PackageNotFoundError(name)
        return given
    return whole(name)
metadata.version = version
sys.argv = ["headwise", "recipes"]
"""


def run_with(name: str, version: str | None, code: str) -> subprocess.CompletedProcess:
    """Runs code where another version of a package, or none, is installed."""
    code = OTHER.format(name=name, version=version) + code
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


COMMAND = "from headwise.__main__ import main\nmain()"


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("typer", None, "typer, which is not installed"),
        ("scikit-learn", None, "scikit-learn, which is not installed"),
        ("rich", "9.0", "rich>={}, and 9.0 is installed"),
        ("transformers", "4.57.6", "transformers>={}, and 4.57.6 is installed"),
    ],
)
def test_a_command_names_what_is_missing_or_too_old_and_the_line_to_type(name, version, told):
    floors = {line.name: str(line.specifier).strip(">=") for line in map(Requirement, NEEDED)}
    done = run_with(name, version, COMMAND)
    assert done.returncode == 1 and not done.stdout
    told = told.format(floors[name])
    assert done.stderr == f"error: the commands need {told}: pip install 'headwise[train]'\n"


def test_models_name_what_is_too_old_before_they_import_it():
    code = "import headwise, sys\nheadwise.{}\nprint('transformers' in sys.modules)"
    done = run_with("transformers", "4.57.6", code.format("MultiHeadAttention"))
    assert done.stdout == "False\n"  # which needs none
    done = run_with("transformers", "4.57.6", code.format("CausalLM"))
    assert re.search(
        r"^ImportError: the models need transformers>=[\d.]+, and 4.57.6 is installed: "
        r"pip install 'headwise'$",
        done.stderr,
        re.MULTILINE,
    )
    assert "site-packages/transformers" not in done.stderr


def test_the_version():
    done = subprocess.run(
        [sys.executable, "-m", "headwise", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"headwise {version('headwise')}\n"


def test_a_terminal_that_does_not_know_its_width_shows_all():
    done = subprocess.run(
        [sys.executable, "-m", "headwise", "keys"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "0"},
    )
    assert "training.max_steps" in done.stdout


AUTO = "from transformers import AutoConfig, AutoModelForCausalLM as Model"
USE = """
config = AutoConfig.for_model("headwise-causal-lm", vocab_size=9, embed_dim=8, num_heads=2,
                              ffn_dim=8, layers=1)
assert type(Model.from_config(config)).__name__ == "CausalLM"
AutoConfig.for_model("headwise-speech-enhancer")
"""


IMPORTS = [
    f"import headwise\n{AUTO}",
    f"{AUTO}\nimport headwise",
    f"import headwise.models.base\n{AUTO}",
    f"from headwise.models.config import TransformerConfig\n{AUTO}",
    # They import the Auto classes before they are whole themselves.
    f"import headwise\nfrom transformers import Trainer\n{AUTO}",
    f"import headwise\nfrom transformers import BertForMaskedLM\n{AUTO}",
    # Our models import this, and it imports the Auto classes before it is whole.
    f"import headwise.transformers_internals\n{AUTO}",
]
# Each in a process of its own; libraries of whose import nothing depends are there in all.
EACH_ALONE = """
import json, os, sys
import accelerate, datasets, scipy.optimize, torch._dynamo, torch.distributed.tensor
assert "transformers" not in sys.modules
for code in json.load(sys.stdin):
    if not os.fork():
        exec(code)
        os._exit(0)
    if os.wait()[1]:
        print("fails:", code)
"""


@pytest.mark.slow
def test_the_auto_classes_know_our_models():
    done = subprocess.run(
        [sys.executable, "-c", EACH_ALONE],
        input=json.dumps([imports + USE for imports in IMPORTS]),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_recipes_are_listed_as_they_are_read():
    for listed in listed_recipes():
        file = load_recipe(listed.name)
        recipe = file.recipe
        assert (recipe.task, recipe.description) == (listed.task, listed.description)
        training = recipe.training
        budgets = {training.max_steps: "{:,} steps", training.epochs: "{:g} epochs"}
        assert listed.budget in [each.format(n) for n, each in budgets.items() if n is not None]
        assert listed.systems == len(file.system_names)
        if listed.offline:
            data = None if file.has_data else file.dataset_names[0]
            first = file.system(file.system_names[0], data)
            task = task_class(recipe.task)
            cost = model_cost(task.nominal_config(first), task.cost_lengths(first))
            assert listed.offline.size == count(cost.parameters.total), listed.name


# What each misspelling is told with.
MISSPELT = [
    (["train", "lm-pidoc"], "did you mean 'lm-pydoc'?"),
    (["train"], "offline: interface-strings, "),
    (["train", "none.yaml", "--trust"], "there is no recipe file none.yaml"),
    (["compare", "relativs"], "did you mean 'relatives'?"),
    (["cost", "relativs"], "did you mean 'relatives'?"),
    (["recipes", "relativs"], "did you mean 'relatives'?"),
    (["tran"], "No such command 'tran'"),
]
# What tells nothing wrong, and is there at once too.
AT_ONCE = [["recipes"], ["recipes", "lm"], ["recipes", "lm-pydoc"]]
AT_ONCE += [["--help"], ["--version"], ["train", "--help"]]
TYPED = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from headwise.cli import app
said = []
for arguments in json.load(sys.stdin):
    with redirect_stderr(io.StringIO()) as wrong, redirect_stdout(io.StringIO()) as right:
        try:
            app(arguments, prog_name="headwise")
        except SystemExit as end:
            said.append((end.code, wrong.getvalue(), right.getvalue()))
    heavy = {"torch", "transformers", "datasets", "matplotlib"} & sys.modules.keys()
    assert not heavy, (arguments, heavy, said[-1])
print(json.dumps(said))
"""


def test_misspelt_names_are_told_before_anything_slow_is_imported():
    done = subprocess.run(
        [sys.executable, "-c", TYPED],
        input=json.dumps([*(line for line, _ in MISSPELT), *AT_ONCE]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for (line, expected), (code, wrong, right) in zip(MISSPELT, said, strict=False):
        assert (code, right) == (2, ""), line
        assert expected in wrong, line
    for line, (code, wrong, right) in zip(AT_ONCE, said[len(MISSPELT) :], strict=True):
        assert code == 0 and right, (line, wrong)
