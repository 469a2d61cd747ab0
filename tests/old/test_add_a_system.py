"""docs/add-a-system.md, done as it says: every block of code, and what it says comes out."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numerals
import pytest
from typer.testing import CliRunner

import headwise
from headwise.cli import app
from headwise.testing import check_system

pytestmark = pytest.mark.slow

DOCS = Path(headwise.__file__).parents[2] / "docs"
PAGE = (DOCS / "add-a-system.md").read_text(encoding="utf-8")
# A block under the name of a file, such as **scaled_heads.py**, is that file.
FILES = dict(re.findall(r"\*\*(\S+)\*\*\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))
BLOCKS = [text for _, text in re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)]


def block(start):
    """The one block that begins so."""
    (found,) = [text for text in BLOCKS if text.startswith(start)]
    return found


COMPARE, EVALUATE, TRANSLATE = block("headwise compare").splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's files; a corpus beside them, and what might stand in the way."""
    folder = tmp_path_factory.mktemp("newcomer")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    numerals.write_recipe(folder)
    (folder / "datasets.py").write_text("raise RuntimeError('not the library')", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def compared(folder):
    """The folder of the trained system: its comparison on a small corpus, for a few steps."""
    files = f"{{corpus: files, train: {{source: {folder}/train.en, target: {folder}/train.fr}}}}"
    sizes = ["embed_dim=16", "num_heads=4", "ffn_dim=32", "encoder_layers=1", "decoder_layers=1"]
    changes = [f"data={files}", "tokenizer.vocab_size=280", *(f"model.{size}" for size in sizes)]
    changes += ["training.max_steps=4", "training.warmup_steps=1", "evaluation.beam_size=2"]
    run(folder, *COMPARE.split()[1:], *(part for change in changes for part in ("--set", change)))
    return folder / "runs/my-recipe"


def run(folder, *arguments, stdin=""):
    """What the command prints, as its script runs it: the folder is not on Python's path (-I)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    environment["PYTHONIOENCODING"] = "utf-8"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "headwise", *arguments],
        cwd=folder,
        input=stdin,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_is_short_and_names_its_files():
    assert list(FILES) == ["scaled_heads.py", "test_scaled_heads.py", "my-recipe.yaml"]
    assert len(PAGE.splitlines()) <= 200


def test_its_tests_pass(folder):
    assert "`python -m pytest`" in PAGE
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_scaled_heads.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_a_missing_rule_is_found_as_the_page_says():
    source, missing = FILES["scaled_heads.py"], "    rule = KeepShares\n"
    assert source.count(missing) == 1
    module = {"__name__": "mistaken"}
    exec(source.replace(missing, ""), module)
    with pytest.raises(AssertionError) as error:
        check_system(module["ScaledHeads"])
    assert block("AssertionError: ") == f"AssertionError: {error.value}\n"


def test_its_rule_is_followed_and_reported(compared):
    result = json.loads((compared / "scaled-seed1/result.json").read_text())
    (words,) = result["words"].values()
    assert words["recorded"] == {"share": "s"}
    for course in result["courses"]:
        assert course["system"] == "scaled_heads:ScaledHeads"
        for row in course["values"]["share"]:
            assert sum(row) == pytest.approx(1.0, abs=1e-4)
        assert course["values"]["share"][0] != course["values"]["share"][-1]
    report = (compared / "report.html").read_text(encoding="utf-8")
    assert "share of each head" in report and "Over training: the share s of each head." in report


def test_the_finished_run_is_evaluated_and_translates(compared, folder):
    assert "BLEU" in run(folder, *EVALUATE.split()[1:])
    sentence, command = TRANSLATE.split(" | headwise ")
    assert len(run(folder, *command.split(), stdin=f"{sentence}\n").splitlines()) == 1


@pytest.mark.parametrize(
    ("trust", "message"),
    [
        (["--trust"], "No module named 'scaled_heads'"),
        ([], "'scaled_heads:ScaledHeads' is of a module that is not imported"),
    ],
)
def test_elsewhere_and_untrusted_the_module_is_not_imported(
    compared, tmp_path, monkeypatch, trust, message
):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        app, ["predict", str(compared / "scaled-seed1"), *trust], input="one\n"
    )
    assert done.exit_code == 2
    assert message in done.stderr


def test_what_cannot_be_found_is_an_error_before_any_data_are_read(tmp_path, monkeypatch):
    recipe = FILES["my-recipe.yaml"].replace("scaled_heads:", "scaled_haeds:")
    (tmp_path / "my-recipe.yaml").write_text(recipe, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, COMPARE.split()[1:])
    assert (done.exit_code, done.stdout) == (2, "")
    assert (
        "the system 'scaled_haeds:ScaledHeads' cannot be loaded: it fails with "
        "ModuleNotFoundError: No module named 'scaled_haeds'" in done.stderr
    )


def test_links_lead_somewhere():
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", PAGE)]
    assert links
    for link in links:
        assert (DOCS / link).exists(), link
