"""The pages of commands: the numbers that the commands answer, whole, safe, and without a network.

Descriptions, labels and texts of the data are hostile throughout: they end whatever they may stand
in, and begin elements of their own.
"""

import math

import numpy as np
import pytest
from support.pages import Page, leaves, numbers, payload
from support.tiny_tasks import answer, lines, run, write_lines, write_recipe

ATTACK = "'\"--></title></style></script><script>alert(1)</script><img src=//x.example/y onerror=z>"


def hostile(folder, **changes):
    """A recipe whose every text is hostile: its description, labels and sentences."""
    rows = [
        f"{line} {ATTACK if number % 9 == 0 else ''}\t{'long' if len(line) > 30 else ATTACK}"
        for number, line in enumerate(lines(120))
    ]
    train = write_lines(folder / "train.tsv", ["text\tlabel", *rows])
    systems = {
        "standard": {"description": ATTACK},
        "mae": {"description": ATTACK, "model": {"attention": "mae"}},
        "moa": {"model": {"attention": {"system": "moa", "size": "2K4E8D"}}},
    }
    data = {"files": {"train": train}, "max_length": 160}
    return write_recipe(
        "classification",
        folder,
        **{"description": ATTACK, "systems": systems, "data": data, **changes},
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of pages by name, and what the commands answered beside them."""
    folder = tmp_path_factory.mktemp("pages")
    recipe, out = hostile(folder), folder / "runs"
    compared = answer("compare", recipe, "--seeds", "1,2", "--output", out)
    analysed = answer("analyse", out / "mae-seed1", out / "moa-seed1", "--output", folder / "a")
    explored = folder / "explored.html"
    done = run("explore", out / "moa-seed1", "--text", f"one two {ATTACK}", "--output", explored)
    assert done.exit_code == 0, done.output
    pages = {
        "comparison": out / "report.html",
        "analysis": folder / "a" / "analysis.html",
        "explorer": explored,
    }
    return pages, compared, analysed


PAGES = ("comparison", "analysis", "explorer")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed(made, name):
    page = Page(made[0][name])
    assert page.html.lstrip().lower().startswith("<!doctype html>")
    assert "title" in {tag for tag, _ in page.elements}
    assert "nan" not in page.text.lower().split()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_nothing(made, name):
    assert Page(made[0][name]).loads() == []


@pytest.mark.parametrize("name", PAGES)
def test_no_text_of_the_data_becomes_markup(made, name):
    page = Page(made[0][name])
    assert page.handlers() == []
    assert not [found for tag, found in page.elements if tag == "img" and "x.example" in str(found)]
    assert "<script>alert(1)" not in page.html
    if name == "comparison":
        assert "alert(1)" in page.text  # the description is shown as it is


def systems_of(made):
    return {system["name"]: system for system in made[1]["systems"]}


@pytest.mark.parametrize("system", ["standard", "mae", "moa"])
def test_the_table_has_the_numbers_of_the_comparison(made, system):
    found = systems_of(made)[system]
    cells = Page(made[0]["comparison"]).row(system)
    expected = {
        "Parameters": [found["runs"][0]["parameters"]],
        "MACs": [found["runs"][0]["macs"]],
        "Validation loss": [np.mean([each["validation_loss"] for each in found["runs"]])],
    }
    for name, score in found["estimates"].items():
        heading = next(each for each in cells if each.lower().startswith(name.lower()))
        expected[heading] = [score["value"], score["low"], score["high"]]
        if found["difference"]:
            heading = next(each for each in cells if each.endswith("against baseline"))
            expected[heading] = [found["difference"][key] for key in ("value", "low", "high")]
    for heading, values in expected.items():
        shown = numbers(cells[heading])
        for value in values:
            assert any(number.is_of(value) for number in shown), (heading, value, cells[heading])


@pytest.mark.parametrize("system", ["standard", "mae", "moa"])
def test_the_table_has_no_other_numbers(made, system):
    found = systems_of(made)[system]
    known = [x for x in leaves(found) if math.isfinite(x)]
    losses = [run["validation_loss"] for run in found["runs"]]
    known += [np.mean(losses), np.std(losses, ddof=1)]
    for score in found["estimates"]:
        values = [s["value"] for run in found["runs"] for s in run["scores"] if s["name"] == score]
        known.append(np.std(values, ddof=1))
    for heading, cell in list(Page(made[0]["comparison"]).row(system).items())[1:]:
        for number in numbers(cell):
            assert any(number.is_of(x) for x in known), (heading, number, cell)


def test_the_runs_of_a_comparison_are_on_its_page(made):
    page = Page(made[0]["comparison"])
    shown = numbers(" ".join(cell for row in page.rows for cell in row))
    for system in made[1]["systems"]:
        for each in system["runs"]:
            loss = each["validation_loss"]
            assert any(number.is_of(loss) and number.off < 0.001 for number in shown), loss


def test_the_analysis_shows_what_it_found(made):
    page = Page(made[0]["analysis"])
    shown = numbers(page.text)
    assert len(made[2]["runs"]) == 2
    for analysed in made[2]["runs"]:
        for module in analysed["entropy"]["modules"]:
            assert any(number.is_of(module["spread"]["mean"]["value"]) for number in shown)


def test_the_page_of_the_explorer_holds_its_text(made):
    tokens = payload(made[0]["explorer"])["runs"][0]["stacks"]
    text = "".join(token for stack in tokens.values() for token in stack["tokens"])
    assert "alert(1)" in text.replace(" ", "")


def test_pages_are_small(made):
    for path in made[0].values():
        assert path.stat().st_size < 700_000, path


def test_a_single_system_has_a_page_without_a_comparison(tmp_path):
    found = answer("compare", hostile(tmp_path), "--systems", "mae", "--output", tmp_path / "r")
    page = Page(tmp_path / "r" / "report.html")
    assert page.row("mae") and found["systems"][0]["difference"] is None


def test_runs_that_diverged_still_have_a_page(tmp_path):
    training = {"learning_rate": 1e30, "warmup_steps": 0}
    recipe = hostile(tmp_path, training=training)
    done = run("compare", recipe, "--systems", "standard,mae", "--output", tmp_path / "r")
    page = Page(tmp_path / "r" / "report.html")
    assert done.exit_code in (0, 1), done.output
    assert page.row("standard") and page.row("mae")
    assert "nan" not in page.text.lower().split()
