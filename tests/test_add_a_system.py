"""docs/add-a-system.md, done as it says: every block of code, and what it says comes out."""

import doctest
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
    (found,) = [text for text in BLOCKS if text.lstrip().startswith(start)]
    return found


@pytest.fixture(autouse=True)
def _imports(monkeypatch):
    """What a test imports, and where from, is forgotten after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("scaled_heads", "budgeted_heads"):
        monkeypatch.delitem(sys.modules, name, raising=False)


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
    """What `headwise compare` prints, on a small corpus and for a few steps."""
    return compare_small(folder, *block("headwise compare my").split()[1:])


def compare_small(folder, *arguments):
    """Output of a comparison on a small corpus and for a few steps."""
    files = f"{{corpus: files, train: {{source: {folder}/train.en, target: {folder}/train.fr}}}}"
    sizes = ["embed_dim=16", "num_heads=4", "ffn_dim=32", "encoder_layers=1", "decoder_layers=1"]
    changes = [f"data={files}", "tokenizer.vocab_size=280", *(f"model.{size}" for size in sizes)]
    changes += ["training.max_steps=4", "training.warmup_steps=1", "evaluation.beam_size=2"]
    options = [part for change in changes for part in ("--set", change)]
    done = run(folder, *arguments, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(folder, *arguments, stdin=""):
    """The command as its script runs it: the folder is not on Python's path (-I)."""
    # Wide enough for every column of a table, however wide this machine's times make them.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    environment["PYTHONIOENCODING"] = "utf-8"
    return subprocess.run(
        [sys.executable, "-I", "-m", "headwise", *arguments],
        cwd=folder,
        input=stdin,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )


def test_trying_it_prints_what_the_page_says(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    (snippet,) = re.findall(r"```pycon\n(.*?)```", PAGE, re.DOTALL)
    (session,) = [doctest.DocTestParser().get_doctest(snippet, {}, "page", None, 0)]
    failed, attempted = doctest.DocTestRunner().run(session)
    assert (failed, attempted) == (0, 10)


def test_its_tests_pass(folder):
    tests = ["test_scaled_heads.py", "test_budgeted_heads.py"]
    arguments = [*block("python -m pytest").split()[1:], "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *arguments, *tests],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


def test_the_mistakes_are_found_as_the_page_says():
    source = FILES["scaled_heads.py"]
    (scaled,) = re.findall(r"^        scaled = .*\n", source, re.MULTILINE)
    (filled,) = re.findall(r"`(self\.head_scale\.\S+)`", PAGE)
    resetting = "not yet while the base class is built\n            "
    mistakes = {
        scaled: block("scaled = heads * torch.sigmoid"),
        f"{resetting}nn.init.ones_(self.head_scale)": resetting + filled,
    }
    messages = [text for text in BLOCKS if text.startswith("AssertionError: Scaled")]
    for (right, wrong), message in zip(mistakes.items(), messages, strict=True):
        assert source.count(right) == 1
        module = {"__name__": "mistaken"}
        exec(source.replace(right, wrong), module)
        with pytest.raises(AssertionError) as error:
            check_system(module["ScaledHeads"])
        assert message == f"AssertionError: {error.value}\n"


def test_what_the_second_example_cannot_do_without_is_found_as_the_page_says():
    source = FILES["budgeted_heads.py"]
    (weights,) = re.findall(r"    def attention_weights\(.*?\n\n", source, re.DOTALL)
    messages = [text for text in BLOCKS if text.startswith("AssertionError: Budgeted")]
    for missing, message in zip(["    rule = KeepBudget\n", weights], messages, strict=True):
        assert source.count(missing) == 1
        module = {"__name__": "mistaken"}
        exec(source.replace(missing, ""), module)
        with pytest.raises(AssertionError) as error:
            check_system(module["BudgetedHeads"])
        assert message == f"AssertionError: {error.value}\n"


def test_a_rule_of_ones_own_is_followed_reported_and_ablated(folder):
    compare_line, evaluate_line = block("headwise compare budget").strip().splitlines()
    compare_small(folder, *compare_line.split()[1:])
    result = json.loads((folder / "runs/budget/budgeted-seed1/result.json").read_text())
    (words,) = result["words"].values()
    assert words["recorded"] == {"share": "s"}
    for course in result["courses"]:
        assert course["system"] == "budgeted_heads:BudgetedHeads"
        for row in course["values"]["share"]:
            assert sum(row) == pytest.approx(1.0, abs=1e-4)
        assert course["values"]["share"][0] != course["values"]["share"][-1]
    report = (folder / "runs/budget/report.html").read_text(encoding="utf-8")
    assert "share of each head" in report and "Over training: the share s of each head." in report
    done = run(folder, *evaluate_line.split()[1:])
    assert done.returncode == 0, done.stderr
    assert "BLEU" in done.stdout


def test_the_comparison_comes_out_as_the_page_shows(compared, folder):
    shown = block("my-recipe.yaml: standard, scaled")
    title, header = (line.split() for line in shown.splitlines()[:2])
    printed = [line.split() for line in compared.splitlines()]
    assert title in printed
    # The page's terminal has no room for the further score, and says so below its table.
    assert [*header, "chrF"] in printed and "Too narrow for chrF" in shown
    for system in ("standard", "scaled"):
        assert re.search(rf"^ *{system} +[\d.]+[kM] ", compared, re.MULTILINE), compared
    assert compared.splitlines()[-3:] == shown.splitlines()[-3:]
    assert (folder / "runs" / "my-recipe" / "report.html").is_file()


def test_the_model_loads_again(compared, folder, tmp_path, monkeypatch, capsys):
    run_folder = folder / "runs" / "my-recipe" / "scaled-seed1"
    assert '"scaled_heads:ScaledHeads"' in (run_folder / "model" / "config.json").read_text()
    sentence, command = block("echo").strip().split(" | headwise ")
    done = run(folder, *command.split(), stdin=f"{sentence}\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1

    monkeypatch.chdir(tmp_path)
    elsewhere = CliRunner().invoke(app, ["translate", str(run_folder), "--trust"], input="one\n")
    assert elsewhere.exit_code == 2
    assert "No module named 'scaled_heads'" in elsewhere.stderr

    untrusted = CliRunner().invoke(app, ["translate", str(run_folder)], input="one\n")
    assert untrusted.exit_code == 2
    assert "'scaled_heads:ScaledHeads' is of a module that is not imported" in untrusted.stderr

    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    capsys.readouterr()
    exec(block("import headwise as hw\nfrom headwise.models.sites"), {})
    printed = capsys.readouterr().out.splitlines()
    shown = block("encoder_self 0").splitlines()
    assert (
        [line.split()[:2] for line in printed]
        == [  # the page's model has two layers
            line.split()[:2] for line in shown if line.split()[1] == "0"
        ]
    )


def test_what_cannot_be_found_is_the_error_that_the_page_shows(tmp_path, monkeypatch):
    recipe = FILES["my-recipe.yaml"].replace("scaled_heads:", "scaled_haeds:")
    (tmp_path / "my-recipe.yaml").write_text(recipe, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["compare", "my-recipe.yaml", "--trust"])
    expected = block("error: recipe my-recipe.yaml")
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", expected)
