"""The report of a comparison: the numbers of its runs, whole, safe, and without a network.

Runs are made up, so that what is to be found is known. Titles, descriptions, names and texts are
hostile where it matters: they end whatever they may stand in, and begin elements of their own.
"""

import base64
import io
import json

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats
from support.compared import png, write_benchmark, write_compared
from support.pages import Page, numbers

from headwise.report.comparison import results, results_table, verdict, write_report
from headwise.report.page import Section, write_page

ATTACK = "'\"--></title></style></script><script>alert(1)</script><img src=//x.example/y onerror=z>"
THREE, TWO = ("standard", "mae-7", "tim"), ("standard", "mae-7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A comparison whose every text is hostile."""
    path = tmp_path_factory.mktemp("hostile")
    write_compared(path, THREE, (1, 2), tests=["flickr", "coco"], text=ATTACK)
    write_report(path)
    return path


@pytest.fixture(scope="module")
def page(folder):
    return Page(folder / "report.html")


@pytest.fixture(scope="module")
def found(folder):
    return results(folder)


def rows_of(run):
    found = json.loads((run / "outcome.json").read_text())["scores"]
    return {score["name"]: np.array(score["rows"]) for score in found}


def corrected(p_values):
    """Holm's correction, by its definition."""
    order, found, least = np.argsort(p_values), np.empty(len(p_values)), 0.0
    for rank, at in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[at]))
        found[at] = least
    return found


# --- safe and whole ---------------------------------------------------------------------------


def test_a_page_is_well_formed_and_loads_nothing(page):
    assert page.html.startswith("<!DOCTYPE html>")
    assert page.loads() == [] and page.handlers() == []
    assert "script" not in {tag for tag, _ in page.elements}
    assert "nan" not in page.text.lower().split()


def test_texts_of_the_data_are_shown_and_are_no_markup(page):
    assert all(
        (found.get("src") or "").startswith("data:") for tag, found in page.elements if tag == "img"
    )
    # In the title, a description, samples, a caption, the facts, the recipe, a note of tuning.
    assert page.text.count("alert(1)") > 12


def test_a_page_is_small(folder):
    assert (folder / "report.html").stat().st_size < 500_000


def test_every_table_is_its_csv(folder, page):
    saved = page.saved()
    assert len(saved) == len(page.tables) > 5
    files = [path.read_text(encoding="utf-8") for path in (folder / "tables").glob("*.csv")]
    assert len(files) == len(saved)
    for table, csv_rows in zip(page.tables, saved, strict=True):
        assert len(table) == len(csv_rows)
        for row, cells in zip(table[1:], csv_rows[1:], strict=True):
            for shown, kept in zip(row, cells, strict=True):
                _is_same(shown.strip(), kept)


def _is_same(shown, kept):
    """A cell of the page is what the CSV has: the same text, or the same number, rounded."""
    plain = kept.removeprefix("'") if kept[:2] in ("'=", "'@", "'+", "'-") else kept
    if shown.split() == plain.split() or shown == "":  # the name of a group stands once
        return
    if shown == "–":
        assert kept == ""
        return
    try:
        value = float(kept)
    except ValueError:
        assert (shown, kept) in (("yes", "True"), ("no", "False"))
        return
    assert float(shown.replace("−", "-").replace(",", "")) == pytest.approx(value, rel=0.006)


def test_no_cell_of_a_csv_is_a_formula(tmp_path):
    texts = ["=cmd|' /C calc'!A0", "+SUM(A1)", "@x", "-x()", "\tx", "+0.5 *\n[+0.1, +0.9]", "−1"]
    frame = pd.DataFrame({"=a()": texts}, index=[f"={text}" for text in "abcdefg"])
    write_page(tmp_path / "p.html", "x", "y", [Section("t", table=frame)])
    cells = Page(tmp_path / "p.html").saved()[0]
    assert [row[1][:1] for row in cells] == ["'", *"'''''", "+", "−"]
    assert all(row[0][:1] in ("", "'") for row in cells)


def test_an_error_while_a_page_is_made_leaves_the_old_one(tmp_path):
    class Wrong:
        def __str__(self):
            raise RuntimeError("no text")

        __html__ = __str__

    path = tmp_path / "p.html"
    write_page(path, "old", "", [Section("a", table=pd.DataFrame({"x": [1]}))])
    before = path.read_bytes()
    with pytest.raises(RuntimeError):
        write_page(path, "new", "", [Section("a", says=Wrong())])
    assert path.read_bytes() == before
    assert sorted(found.name for found in tmp_path.iterdir()) == ["p.html", "tables"]


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["accuracy", "surprise"])
def test_results_are_those_of_the_rows(folder, found, name):
    found = found.query("test == 'test' and score == @name").set_index("system")
    means = {}
    for system in THREE:
        seeds = [rows_of(folder / f"{system}-seed{seed}")[name] for seed in (1, 2)]
        of_seeds = [
            100 * rows[:, 0].sum() / rows[:, 1].sum() if name == "accuracy" else rows.mean()
            for rows in seeds
        ]
        means[system] = np.mean(of_seeds)
        assert found["value"][system] == pytest.approx(means[system])
        assert found["deviation"][system] == pytest.approx(np.std(of_seeds, ddof=1))
        assert found["low"][system] < means[system] < found["high"][system]
    for system in THREE[1:]:
        assert found["difference"][system] == pytest.approx(means[system] - means["standard"])
    assert np.isnan(found["difference"]["standard"])


def test_without_items_the_test_is_welchs(tmp_path):
    seeds = (1, 2, 3, 4)
    write_compared(tmp_path, THREE, seeds, items=0)
    found = results(tmp_path).query("score == 'accuracy'").set_index("system")
    values = {
        system: [
            json.loads((tmp_path / f"{system}-seed{n}/outcome.json").read_text())["scores"][0][
                "value"
            ]
            for n in seeds
        ]
        for system in THREE
    }
    p_values = []
    for system in THREE[1:]:
        welch = stats.ttest_ind(values[system], values["standard"], equal_var=False)
        low, high = welch.confidence_interval()
        assert found["p"][system] == pytest.approx(welch.pvalue)
        ends = [found["diff_low"][system], found["diff_high"][system]]
        assert ends == pytest.approx([low, high])
        p_values.append(welch.pvalue)
    assert list(found["corrected_p"][1:]) == pytest.approx(list(corrected(p_values)))


@pytest.mark.parametrize(
    "of",
    [
        "test == 'test' and score == 'accuracy'",  # the score that ranks the systems
        "test != 'test' and score == 'accuracy'",  # the first score of all further test sets
        "score != 'accuracy'",
    ],
)
def test_p_is_corrected_over_what_is_tested_together(found, of):
    tested = found.query(of).query("system != 'standard'")
    assert list(tested["corrected_p"]) == pytest.approx(list(corrected(tested["p"].to_numpy())))


@pytest.mark.parametrize("system", THREE)
def test_the_table_has_the_numbers_of_the_runs_and_no_others(folder, page, found, system):
    cells = page.row(system)
    run = json.loads((folder / f"{system}-seed1/result.json").read_text())
    losses = [
        json.loads((folder / f"{system}-seed{n}/result.json").read_text())["validation_loss"]
        for n in (1, 2)
    ]
    compared = json.loads((folder / "comparison.json").read_text())
    time = compared["step_times"][system]
    row = found.query("test == 'test' and score == 'accuracy'").set_index("system").loc[system]
    expected = {
        "Seeds": [2],
        "Parameters": [run["parameters"]],
        "MACs": [run["macs"]],
        "Time per step": [time[end] for end in ("value", "low", "high")],
        "Validation loss": [np.mean(losses), np.std(losses, ddof=1)],
        "Accuracy ↑": [row[name] for name in ("value", "deviation", "low", "high")],
        "Difference": [row[n] for n in ("difference", "diff_low", "diff_high", "corrected_p")],
        "Detectable": [row["detectable"]],
    }
    assert list(cells) == ["System", *expected, "About"]
    for heading, values in expected.items():
        shown = numbers(cells[heading].replace("–", " "))
        finite = [value for value in values if np.isfinite(value)]
        assert len(shown) == len(finite)
        for number, value in zip(shown, finite, strict=True):
            # A small p is written as < 0.001.
            assert number.is_of(value) or (number.value, value < 0.001) == (0.001, True), heading
    assert ("*" in cells["Difference"]) == bool(row["significant"])


def test_how_soon_the_loss_of_the_baseline_is_reached(folder, page):
    """On straight lines between validations."""
    runs = {
        system: [
            pd.DataFrame(
                json.loads((folder / f"{system}-seed{n}/result.json").read_text())["history"]
            )
            .dropna(subset="eval_loss")
            .set_index("step")["eval_loss"]
            for n in (1, 2)
        ]
        for system in THREE
    }
    target = np.mean([losses.min() for losses in runs["standard"]])
    (table,) = (t for t in page.tables if "Lowest validation loss" in map(str.strip, t[0]))
    for system, row in zip(THREE, table[1:], strict=True):
        steps = []
        for losses in runs[system]:
            if losses.min() <= target:
                after = losses.index[losses <= target][0]
                before = losses.index[losses.index.get_loc(after) - 1]
                gone = (losses[before] - target) / (losses[before] - losses[after])
                steps.append(before + gone * (after - before))
        assert numbers(row[3])[0].is_of(np.mean(steps))
        assert row[4].strip() == f"{len(steps)} of 2"


# --- runs that are few, lost or missing -------------------------------------------------------


def test_a_run_that_diverged_is_in_no_mean_and_is_said(tmp_path):
    write_compared(tmp_path, TWO, (1, 2, 3), diverged=["mae-7-seed2"])
    found = results(tmp_path).query("score == 'accuracy'").set_index("system")
    kept = [rows_of(tmp_path / f"mae-7-seed{n}")["accuracy"][:, 0].mean() for n in (1, 3)]
    assert found["value"]["mae-7"] == pytest.approx(100 * np.mean(kept))
    assert found["seeds"]["mae-7"] == 2
    write_report(tmp_path)
    page = Page(tmp_path / "report.html")
    assert "1 diverged" in page.row("mae-7")["Seeds"]


def test_where_all_runs_diverged_there_is_no_result(tmp_path):
    names = [f"{system}-seed{seed}" for system in TWO for seed in (1, 2)]
    write_compared(tmp_path, TWO, (1, 2), diverged=names)
    write_report(tmp_path)
    page = Page(tmp_path / "report.html")
    said = verdict(tmp_path)
    assert said in page.text and said.startswith("There is no result.")
    assert "standard (all runs diverged), mae-7 (all runs diverged)" in said
    assert "nan" not in page.text.lower().split()
    assert {page.row(name)["Accuracy ↑"].strip() for name in TWO} == {"diverged"}


def test_a_lost_baseline_is_said_and_nothing_is_compared_with_it(tmp_path):
    write_compared(tmp_path, TWO, (1, 2), diverged=["standard-seed1", "standard-seed2"])
    said = verdict(tmp_path)
    assert said.startswith("mae-7 has accuracy: ")
    assert "without a score, with which none is compared: standard (all runs diverged)" in said
    assert results(tmp_path)["corrected_p"].isna().all()


def test_missing_runs_are_said_first(tmp_path):
    write_compared(tmp_path, THREE, (1, 2), missing=["tim-seed1", "tim-seed2", "mae-7-seed2"])
    first = verdict(tmp_path).splitlines()[0]
    assert first == (
        "3 of 6 runs are finished; these are missing: tim-seed1, mae-7-seed2, tim-seed2."
    )
    write_report(tmp_path)
    page = Page(tmp_path / "report.html")
    assert first in page.text
    assert "not finished" in page.row("tim")["Accuracy ↑"]


def test_a_single_system_is_compared_with_nothing(tmp_path):
    write_compared(tmp_path, ["mae-7"], [1])
    write_report(tmp_path)
    page = Page(tmp_path / "report.html")
    assert not {"Difference", "Detectable"} & page.row("mae-7").keys()
    assert "baseline" not in verdict(tmp_path) and "winner" not in verdict(tmp_path)


def test_single_runs_have_no_star_and_no_p(tmp_path):
    write_compared(tmp_path, THREE, [1])
    found = results(tmp_path)
    assert not found["significant"].any() and set(found["over"]) == {"items"}
    assert verdict(tmp_path).startswith("No clear winner.")
    assert "one seed cannot tell whether that is chance" in verdict(tmp_path)
    cells = [str(cell) for column in results_table(tmp_path).columns for cell in column.cells]
    assert any("no p: single seeds" in cell for cell in cells)
    assert not any("p = " in cell or "p < " in cell or "*" in cell for cell in cells)


# --- the verdict ------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("systems", [THREE, ("mae-7", "standard", "tim"), TWO])
def test_the_verdict_names_the_best_system(tmp_path, systems, first):
    """By the score that ranks them, of which more may be better or less."""
    write_compared(tmp_path, systems, (1, 2), first=first)
    said, name = verdict(tmp_path), ("accuracy", "surprise")[first]
    found = results(tmp_path).query("test == 'test' and score == @name").set_index("system")
    best = found["value"].idxmin() if first else found["value"].idxmax()
    assert f"{best} has the best {name}: {found['value'][best]:.{3 if first else 1}f}" in said
    told = (
        best
        if best != systems[0]
        else found["value"].drop(best).agg("idxmin" if first else "idxmax")
    )
    apart = f"{found['difference'][told]:+.{3 if first else 1}f}".replace("-", "−")
    assert f"{told} differs from the baseline {systems[0]} by {apart}" in said
    assert ("a significant difference" in said) == bool(found["significant"][told])
    assert ("chosen after the fact" in said) == (len(systems) > 2)


# --- several data sets ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    write_benchmark(folder, systems=TWO, seeds=(1, 2))
    write_report(folder)
    return folder


def test_data_sets_have_a_column_each_and_their_mean(several):
    found = results(several).query("score == 'accuracy'")
    wide = found.pivot(index="system", columns="dataset", values="value")
    assert list(wide["mean"]) == pytest.approx(list(wide[["first", "second"]].mean(axis=1)))
    tested = found[found["system"] != "standard"]
    assert len(tested) == 3
    assert list(tested["corrected_p"]) == pytest.approx(list(corrected(tested["p"].to_numpy())))
    row = Page(several / "report.html").row("mae-7")
    for name in ("first", "second", "mean"):
        assert numbers(row[f"{name} Accuracy ↑"])[0].is_of(wide[name]["mae-7"])


def test_each_data_set_has_its_report_on_the_page(several):
    page = Page(several / "report.html")
    for name in ("first", "second"):
        assert f"The report of {name}" in page.text
        assert verdict(several / name) in page.text
    assert len(page.saved()) == len(list((several / "tables").glob("*.csv")))


# --- in a terminal, and outputs side by side ----------------------------------------------------


@pytest.mark.parametrize("width", [40, 200])
def test_numbers_in_a_terminal_are_whole(folder, found, width):
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(results_table(folder), crop=False)
    text = console.export_text()
    assert "…" not in text
    row = found.query("test == 'test' and score == 'accuracy' and system == 'mae-7'").iloc[0]
    for value in (row["value"], row["low"], row["high"], row["difference"]):
        assert f"{abs(value):.1f}" in text
    assert ("too few seeds" in text) == np.isnan(row["diff_low"])


def test_samples_that_differ_come_first_and_say_what_is_right(page):
    (table,) = (t for t in page.tables if "Text" in map(str.strip, t[0]))
    texts = [(row[1].strip(), " ".join(row[2].split()), row[3].strip()) for row in table[1:]]
    made = [text for name, text, _ in texts if name in THREE]
    assert len(set(made[:3])) == 3 and len(set(made[3:6])) == 1
    assert ("standard", "Fermer 0", "✓ as the reference") in texts
    assert [mark for _, text, mark in texts if "Close" in text] == [""] * 3


def test_pictures_that_all_systems_share_are_shown_once(page):
    captions = [
        found["alt"] for tag, found in page.elements if tag == "img" and found.get("loading")
    ]
    assert len(captions) == len(THREE) + 1
    assert captions[-1] == "Given all systems"


def test_a_picture_keeps_its_bytes(tmp_path):
    kept = base64.b64encode(png()).decode()
    write_page(tmp_path / "p.html", "x", "", [Section("t", pictures={"a\nb": kept})])
    sources = [found["src"] for tag, found in Page(tmp_path / "p.html").elements if tag == "img"]
    assert sources == [f"data:image/png;base64,{kept}"]
