"""headwise explore, as it is typed."""

import re
import shutil

import pytest
from typer.testing import CliRunner

from headwise.cli import app
from headwise.report.explorer.payload import Payload


def typed(*arguments):
    return CliRunner().invoke(app, ["explore", *map(str, arguments)])


def payload_in(path):
    page = path.read_text(encoding="utf-8")
    (inside,) = re.findall(r'<script type="application/json" id="payload">(.*?)</script>', page)
    return Payload.model_validate_json(inside)


def test_two_runs_and_a_text(runs, tmp_path):
    pair = runs("translation", "mae"), runs("translation", "tim")
    page = tmp_path / "page.html"
    found = typed(*pair, "--text", "one two", "--output", page)
    assert found.exit_code == 0 and str(page) in found.output.replace("\n", "")
    made = payload_in(page)
    assert [run.name for run in made.runs] == [run.name for run in pair]
    assert made.text == "one two" and not made.served


def test_by_default_it_is_an_item_and_stands_with_the_run(runs):
    run = runs("classification", "mae")
    assert typed(run, "--item", 3).exit_code == 0
    made = payload_in(run / "explore.html")
    assert made.item.number == 3 and made.runs[0].output.label in ("long", "short")


def test_an_item_of_other_data_than_those_of_the_training_is_no_secret(runs, tmp_path):
    run = shutil.copytree(runs("classification", "mae"), tmp_path / "run")
    (run / "corpus.sha256").write_text("0" * 64)
    assert "run was trained on other data than these\n" in typed(run, "--item", 3).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "two", "--item", "1"], "--text and --item are given"),
        (["runs/missing"], "runs/missing is not a folder"),
        (["--serve", "--output", "a.html"], "--serve writes no file"),
        (["--part", "tset"], "part is 'tset'"),
        (["--text", ""], "text is empty"),
        (["--text", "word " * 3000], "tokens, expected at most"),  # longer than the name of a file can be
        (["--text", "one", "--output", "."], ". is a folder, expected the name of a file"),
    ],
)
def test_what_cannot_be_is_said(runs, arguments, message):
    found = typed(runs("translation", "mae"), *arguments)
    assert found.exit_code == 2 and message in found.output.replace("\n", "")
