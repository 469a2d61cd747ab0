"""The examples run as scripts or as notebooks, made short."""

import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import jupytext
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from rich.text import Text

from headwise.threads import sleep_while_waiting

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = '("rich", "pydantic", "typer")'
# What is changed in each to make it short, and what it prints then, in this order.
SHORT = {
    "drop_in_attention": {"SEEDS": "(1, 2)", "EPOCHS": "1"},
    "language_model_own_loop": {"PACKAGE": '"rich"', "STEPS": "2"},
    "gate_a_pretrained_model": {
        "PACKAGES": '("rich", "pydantic")',
        "STEPS": "2",
        "PRETRAINING_STEPS": "2",
    },
    "what_the_heads_do": {"PACKAGES": SMALL, "STEPS": "2"},
    "a_system_of_your_own": {"PACKAGES": f"list({SMALL})", "STEPS": "3", "SEEDS": "[1, 2]"},
}
PRINTS = {
    "drop_in_attention": [
        r"nn\.MultiheadAttention .*\d%$",
        *(rf"{name} .*\d%   [+-]\d+\.\d \[" for name in ("BranchedAttention", "MixtureOfHeads")),
    ],
    "language_model_own_loop": [
        r"standard: validation loss \d\.\d+ after 2 steps$",
        r"mae, by its rule: validation loss .*, entropy of the gates \d",
        "'Returns a",
        "saved: config.json, .*model.safetensors",
        "loaded: the same logits: True",
    ],
    "gate_a_pretrained_model": [
        line
        for model in ("GPT2LMHeadModel", "BertForMaskedLM")
        for line in (
            f": {model}$",
            r"  gates added: logits differ by 0\.0e\+00 at most",
            r"  loaded on the untouched model: logits differ by 0\.0e\+00 at most",
            "  layer 0, mean weights: ",
            "  removed: equal to the model as it was: True",
        )
    ],
    "what_the_heads_do": [
        r"accuracy \d+\.\d% on 300 docstrings of rich, pydantic, typer",
        r"  expert 7: \w+",
        r"with random experts .*: ([+-]\d\.\d{3} ){7}",
        "22 ablations",
        r"page: .*analysis\.html",
        r"page: .*one-sentence\.html",
    ],
    "a_system_of_your_own": [
        "SharedBudget passes check_system",
        "without training it is standard attention: True",
        "^standard .*baseline",
        r"^budget .*[−+]\d",
        r"report: .*report\.html",
    ],
}


def shortened(name: str, changes: dict[str, str]) -> str:
    """The text of an example with other settings."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    for setting, value in changes.items():
        text, count = re.subn(rf"^{setting} = [^#\n]*", f"{setting} = {value}  ", text, flags=re.M)
        assert count == 1, f"{name}.py has no setting {setting}"
    return text


def check_printed(name: str, printed: str) -> None:
    """Checks that the lines that are expected come, in their order."""
    printed = Text.from_ansi(printed).plain  # a notebook has its tables in colours
    at = 0
    for line in PRINTS[name]:
        found = re.compile(line, re.MULTILINE).search(printed, at)
        assert found, f"{name}.py does not print {line!r}:\n{printed}"
        at = found.end()


# Those that show more than lines, a page, tables and bars, run as notebooks, and those alone.
NOTEBOOKS = ["what_the_heads_do", "a_system_of_your_own"]


def test_no_example_is_forgotten():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHORT) == set(PRINTS)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, changes) for name, changes in SHORT.items() if name not in NOTEBOOKS),
        ("gate_a_pretrained_model", SHORT["gate_a_pretrained_model"] | {"SYSTEM": '"gated"'}),
    ],
)
def test_as_a_script(name, changes, tmp_path, monkeypatch, capsys):
    script = tmp_path / f"{name}.py"
    script.write_text(shortened(name, changes), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    runpy.run_path(str(script), run_name="__main__")
    check_printed(name, capsys.readouterr().out)


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelManager]:
    """One for both notebooks, since a kernel takes seconds to import what they need.

    Its threads sleep while they wait, as those of the commands do: on a busy machine the notebooks
    take minutes otherwise.
    """
    manager = KernelManager()
    with patch.dict(os.environ):
        sleep_while_waiting()
        manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


def as_notebook(name: str) -> NotebookNode:
    return jupytext.reads(shortened(name, SHORT[name]), fmt="py:percent")


@pytest.mark.parametrize("name", SHORT)
def test_the_cells_of_a_notebook(name):
    kinds = [cell.cell_type for cell in as_notebook(name).cells]
    assert kinds[0] == "markdown" and kinds.count("markdown") >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_as_a_notebook(name, kernel, tmp_path):
    notebook = as_notebook(name)
    start = new_code_cell(f"%reset -f\n%cd -q {tmp_path}")
    notebook.cells.insert(0, start)
    NotebookClient(notebook, km=kernel, timeout=300).execute()
    check_printed(name, "".join(output_of(cell) for cell in notebook.cells))
    if name == "what_the_heads_do":
        (page,) = [out for out in notebook.cells[-1].outputs if out.output_type == "execute_result"]
        assert page.data["text/html"].startswith("<iframe srcdoc=")


def output_of(cell: NotebookNode) -> str:
    """What the code of a cell has printed; rich shows its tables as HTML, and as text beside it."""
    found = []
    for out in cell.get("outputs", []):
        if out.output_type == "stream" and out.name == "stdout":
            found.append(out.text)
        elif out.output_type == "display_data":
            found.append(out.data["text/plain"])
    return "".join(found)
