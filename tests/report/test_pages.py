"""The report of a comparison: the numbers of its runs, whole, safe, and without a network.

Runs are made up, so that what is to be found is known. Titles, descriptions, names and texts are
hostile where it matters: they end whatever they may stand in, and begin elements of their own.
"""

import base64
import io
import json
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from support import judged
from support.compared import png, write_compared
from support.pages import Page, numbers

from headwise.report.comparison import read_comparison, results_table, verdict, write_report
from headwise.report.page import Section, forest, heatmap, write_page

ATTACK = "'\"--></title></style></script><script>alert(1)</script><img src=//x.example/y onerror=z>"
THREE, TWO = ("standard", "mae-7", "tim"), ("standard", "mae-7")
FIRST = "family == 'first score'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A comparison whose every text is hostile, and of which some runs stopped early."""
    path, how = tmp_path_factory.mktemp("hostile"), {"tests": ["flickr", "coco"], "text": ATTACK}
    write_compared(path, THREE, (1, 2), stopped=["standard-seed2", "mae-7-seed2"], **how)
    write_report(path)
    return path


@pytest.fixture(scope="module")
def page(folder):
    return Page(folder / "report.html")


@pytest.fixture(scope="module")
def scores(folder):
    return read_scores(folder)


def read_scores(folder):
    return read_comparison(folder).scores


def read_verdict(folder):
    return verdict(read_comparison(folder))


def read_result(folder, system, seed):
    return json.loads((folder / f"{system}-seed{seed}/result.json").read_text())


def run_scores(folder, system, seed):
    """The scores of a run by their names, with their rows."""
    path = folder / f"{system}-seed{seed}/outcome.json"
    return {score["name"]: score for score in json.loads(path.read_text())["scores"]}


# --- safe and whole ---------------------------------------------------------------------------


def test_a_page_is_small_loads_nothing_and_texts_of_the_data_are_no_markup(folder, page):
    assert page.html.startswith("<!DOCTYPE html>") and len(page.html) < 500_000
    assert page.loads() == [] and page.handlers() == []
    assert "script" not in {tag for tag, _ in page.elements}
    assert "nan" not in page.text.lower().split()
    images = [found["src"] for tag, found in page.elements if tag == "img"]
    assert all(source.startswith("data:") for source in images)
    assert {"Learning: validation loss, nats per token", "Learning: training loss"} <= {
        found["alt"] for tag, found in page.elements if tag == "img"
    }
    # In the title, a description, samples, a caption, the facts, the recipe, a note of tuning.
    assert page.text.count("alert(1)") > 12


def test_every_table_is_its_csv(folder, page):
    saved = page.saved()
    assert len(saved) == len(page.tables) > 5
    assert len(list((folder / "tables").glob("*.csv"))) == len(saved)
    for table, csv_rows in zip(page.tables, saved, strict=True):
        assert len(table) == len(csv_rows)
        for row, cells in zip(table[1:], csv_rows[1:], strict=True):
            # The name of a group stands once, on the left.
            for shown, saved_cell in zip(row[::-1], cells[::-1], strict=False):
                _assert_same(shown.strip(), saved_cell)


def test_tables_of_like_titles_are_files_of_their_own(tmp_path):
    titles = ["t", "T!", 300 * "a", 300 * "a" + "b", 90 * "字", 90 * "字" + "b"]
    tables = [pd.DataFrame({"x": [number]}) for number in range(len(titles))]
    sections = [Section(title, table=table) for title, table in zip(titles, tables, strict=True)]
    write_page(tmp_path / "p.html", "x", "y", sections)
    saved = [pd.read_csv(file)["x"][0] for file in (tmp_path / "tables").iterdir()]
    assert sorted(saved) == [*range(len(titles))]


def _assert_same(shown, saved):
    """A cell of the page is what the CSV has: the same text, or the same number, rounded."""
    plain = saved.removeprefix("'") if saved[:2] in ("'=", "'@", "'+", "'-") else saved
    if shown.split() == plain.split():
        return
    if (shown, saved) not in (("–", ""), ("yes", "True"), ("no", "False")):
        (number,) = numbers(shown)
        assert number.is_of(float(saved)) or shown == "< 0.001", (shown, saved)


def test_no_cell_of_a_csv_is_a_formula(tmp_path):
    texts = ["=cmd|' /C calc'!A0", "+SUM(A1)", "@x", "-x()", "\tx", "+0.5 *\n[+0.1, +0.9]", "−1"]
    frame = pd.DataFrame({"=a()": texts}, index=[f"={text}" for text in "abcdefg"])
    write_page(tmp_path / "p.html", "x", "y", [Section("t", table=frame)])
    cells = Page(tmp_path / "p.html").saved()[0]
    assert [row[1][:1] for row in cells] == ["'", *"'''''", "+", "−"]
    assert all(row[0][:1] in ("", "'") for row in cells)


def test_names_that_no_image_can_show_are_replaced_and_cut(tmp_path):
    names = ["\x00\x1b[0m\uffff", 900 * "x"]
    frame = pd.DataFrame(np.eye(2), columns=names, index=names)
    ends = frame.assign(value=1.0, low=0.0, high=2.0, significant=True)
    figures = [heatmap(frame, names[0]), forest(ends, "x", ["red", "red"])]
    page = Page(write_one(tmp_path, Section("t", figures=figures)))
    for source in (found["src"] for tag, found in page.elements if tag == "img"):
        text = "".join(ElementTree.fromstring(base64.b64decode(source.split(",")[1])).itertext())
        assert "\ufffd[0m" in text and 9 * "x" in text and 99 * "x" not in text


def test_cells_are_rounded_before_they_are_written(tmp_path):
    table = pd.DataFrame({"x": [999.7, -0.0, 0.99996], "p": [1e-300, 0.25, np.nan]})
    rows = Page(write_one(tmp_path, Section("t", table=table))).tables[0][1:]
    cells = [[cell.strip() for cell in row[1:]] for row in rows]
    assert cells == [["1,000", "< 0.001"], ["0.00", "0.250"], ["1.00", "–"]]


def write_one(folder, section):
    write_page(folder / "p.html", "x", "y", [section])
    return folder / "p.html"


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "test == 'test' and score == 'accuracy'",  # the score that ranks the systems
        "test != 'test' and score == 'accuracy'",  # the first score of all further test sets
        "score != 'accuracy'",
    ],
)
def test_p_is_corrected_over_what_is_tested_together(scores, query):
    tested = scores.query(query).query("system != 'standard'")
    assert list(tested["corrected_p"]) == pytest.approx(judged.holm([*tested["p"]]), nan_ok=True)


@pytest.mark.parametrize("system", THREE)
def test_the_table_has_the_numbers_of_the_runs_and_no_others(folder, page, scores, system):
    cells, run = page.row(system), read_result(folder, system, 1)
    losses = [read_result(folder, system, seed)["validation_loss"] for seed in (1, 2)]
    compared = json.loads((folder / "comparison.json").read_text())
    ends = ("value", "low", "high")
    row = scores.query(FIRST).set_index("system").loc[system]
    expected = {
        "accuracy ↑": [row["value"], np.std(row["of_seeds"], ddof=1), row["low"], row["high"]],
        "Difference": row[["difference", "diff_low", "diff_high", "corrected_p"]],
        "Detectable": [row["detectable"]],
        "Seeds": [2],
        "Parameters": [run["parameters"], *([0] if system == "tim" else [])],  # none is trained
        "MACs": [run["macs"]],
        "Step time ↓": [compared["step_times"][system][end] for end in ends],
        "Time per token ↓": [compared["decoding_times"][system][end] for end in ends],
        "Loss ↓": [np.mean(losses), np.std(losses, ddof=1)],
    }
    assert list(cells) == ["System", *expected]
    for heading, values in expected.items():
        shown = numbers(cells[heading].replace("–", " "))
        finite = [value for value in values if np.isfinite(value)]
        for number, value in zip(shown, finite, strict=True):
            # A small p is written as < 0.001.
            assert number.is_of(value) or (number.value, value < 0.001) == (0.001, True), heading
    assert ("*" in cells["Difference"]) == bool(row["significant"])


def test_how_soon_the_loss_of_the_baseline_is_reached(folder, page):
    """By the mean over seeds, up to where the first of them stopped."""
    losses = {}
    for system in THREE:
        histories = [pd.DataFrame(read_result(folder, system, seed)["history"]) for seed in (1, 2)]
        curves = [history.set_index("step")["eval_loss"] for history in histories]
        losses[system] = (curves[0] + curves[1]).dropna() / 2
    target = losses["standard"].min()
    (table,) = (t for t in page.tables if "Lowest validation loss" in map(str.strip, t[0]))
    for system, row in zip(THREE, table[1:], strict=True):
        step = next(step for step, loss in losses[system].items() if loss <= target)
        assert numbers(row[1])[0].is_of(losses[system].min()) and numbers(row[2])[0].is_of(step)


# --- runs that are few, lost or missing -------------------------------------------------------


def test_runs_that_are_in_no_mean_are_said_first(tmp_path):
    lost = ["tim-seed1", "tim-seed2", "tim-seed3"]
    few = {"diverged": ["mae-7-seed2"], "undefined": ["standard-seed3"]}
    write_compared(tmp_path, THREE, (1, 2, 3), missing=lost, **few)
    results = read_scores(tmp_path).query("score == 'accuracy'").set_index("system")
    sound = [run_scores(tmp_path, "mae-7", seed)["accuracy"]["value"] for seed in (1, 3)]
    assert results["value"]["mae-7"] == pytest.approx(np.mean(sound))
    write_report(tmp_path)
    page = Page(tmp_path / "report.html")
    first = read_verdict(tmp_path).splitlines()[0]
    assert first.startswith("5 of 9 runs are missing from means: ") and first in page.text
    assert "tim-seed1 (not finished)" in first and "mae-7-seed2 (diverged)" in first
    assert "standard-seed3 (accuracy undefined)" in first
    assert "2 of 3 seeds" in page.row("standard")["accuracy ↑"]
    assert "1 diverged" in page.row("mae-7")["Seeds"]
    assert "not finished" in page.row("tim")["Loss ↓"]


@pytest.mark.parametrize("systems", [TWO, ["mae-7"]])
def test_without_a_baseline_nothing_is_compared(tmp_path, systems):
    write_compared(tmp_path, systems, (1, 2), diverged=["standard-seed1", "standard-seed2"])
    page = Page(write_report(tmp_path))
    assert ("Difference" in page.row("mae-7")) == (len(systems) > 1)
    assert "mae-7 has the best accuracy: " in read_verdict(tmp_path)
    assert "It is not compared" in read_verdict(tmp_path) and "winner" not in read_verdict(tmp_path)
    assert read_scores(tmp_path)["corrected_p"].isna().all()


@pytest.mark.parametrize("reason", ["missing", "diverged"])
def test_without_any_result_there_is_a_page(tmp_path, reason):
    write_compared(tmp_path, TWO, [1], **{reason: ["standard-seed1", "mae-7-seed1"]})
    page = Page(write_report(tmp_path))
    assert "2 of 2 runs are missing from means" in page.text
    assert "nan" not in page.text.lower().split()
    assert read_scores(tmp_path).get("value", pd.Series()).isna().all()
    assert results_table(read_comparison(tmp_path)).row_count == 2
    assert read_verdict(tmp_path).endswith("There is no result.")


def test_single_runs_have_no_star_and_no_p(tmp_path):
    write_compared(tmp_path, THREE, [1])
    scores = read_scores(tmp_path)
    assert not scores["significant"].any() and set(scores["variance_source"]) == {"items"}
    assert read_verdict(tmp_path).startswith("No clear winner.")
    assert "one seed cannot tell whether that is the chance of training" in read_verdict(tmp_path)
    columns = results_table(read_comparison(tmp_path)).columns
    cells = [str(cell) for column in columns for cell in column.cells]
    assert any("no p: single seeds" in cell for cell in cells)
    assert not any("p = " in cell or "p < " in cell or "*" in cell for cell in cells)


# --- the verdict ------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("systems", [THREE, ("mae-7", "standard", "tim"), TWO])
def test_the_verdict_names_the_best_system(tmp_path, systems, first):
    """By the score that ranks them, of which more may be better or less."""
    write_compared(tmp_path, systems, (1, 2), first=first)
    text, name = read_verdict(tmp_path), ("accuracy", "surprise")[first]
    results = read_scores(tmp_path).query(FIRST).set_index("system")
    ranked = results["value"].sort_values(ascending=bool(first))
    best, digits = ranked.index[0], 3 if first else 1
    assert f"{best} has the best {name}: {ranked.iloc[0]:.{digits}f}" in text
    rival = best if best != systems[0] else ranked.index[1]
    difference = f"{results['difference'][rival]:+.{digits}f}".replace("-", "−")
    assert f"{rival} differs from the baseline {systems[0]} by {difference}" in text
    assert ("a significant difference" in text) == bool(results["significant"][rival])
    assert ("chosen for its score" in text) == (len(systems) > 2)


def test_a_significant_difference_is_never_written_as_zero(tmp_path):
    write_compared(tmp_path, TWO, (1, 2, 3), scale=0.001)
    row = read_scores(tmp_path).query(FIRST).set_index("system").loc["mae-7"]
    write_report(tmp_path)
    shown = numbers(Page(tmp_path / "report.html").row("mae-7")["Difference"])[:3]
    assert row["significant"] and all(number.value for number in shown)
    ends = row[["difference", "diff_low", "diff_high"]]
    assert all(number.is_of(value) for number, value in zip(shown, ends, strict=True))
    assert f"by +{shown[0].value}, " in read_verdict(tmp_path)


def test_equal_systems_have_no_best(tmp_path):
    write_compared(tmp_path, ("abc", "def", "ghi"), (1, 2))  # of which nothing is known
    assert read_verdict(tmp_path).startswith("No clear winner: all 3 systems have the same")


# --- what the heads did -------------------------------------------------------------------------


def test_the_heads_of_each_system_are_those_of_the_last_validation(folder, page):
    row = page.row("mae-7", "Busiest")
    last = [read_result(folder, "mae-7", seed)["history"][-1] for seed in (1, 2)]
    assert [record["step"] for record in last] == [600, 300]
    for heading, extreme in {"Busiest": max, "Least busy": min}.items():
        of_seeds = [
            extreme(record[f"share encoder_self.0/{unit}"] for unit in range(8)) for record in last
        ]
        assert numbers(row[heading])[0].is_of(8 * np.mean(of_seeds))
    entropy = np.mean([record["entropy encoder_self.0"] / np.log(8) for record in last])
    explained = np.mean([record["explained encoder_self.0/side"] for record in last])
    assert numbers(row["Entropy"])[0].is_of(entropy) and row["Decides on"].strip() == "expert"
    assert numbers(row["Explained best"])[0].is_of(explained)
    assert row["Explained best"].endswith("by side")
    (table,) = (t for t in page.tables if "Busiest" in map(str.strip, t[0]))
    assert [each[0].strip() for each in table[1:]] == ["mae-7", "tim"]  # standard decides nothing


# --- in a terminal, and outputs side by side ----------------------------------------------------


@pytest.mark.parametrize("width", [40, 200])
def test_numbers_in_a_terminal_are_whole(folder, scores, width):
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(results_table(read_comparison(folder)), crop=False)
    text = console.export_text()
    assert "…" not in text
    row = scores.query(FIRST).set_index("system").loc["mae-7"]
    for value in (row["value"], row["low"], row["high"], row["difference"]):
        assert f"{abs(value):.1f}" in text
    assert ("too few seeds" in text) == np.isnan(row["diff_low"])


def test_samples_that_differ_come_first(page):
    (table,) = (t for t in page.tables if "Text" in map(str.strip, t[0]))
    outputs = [" ".join(row[-1].split()) for row in table[1:] if row[-2].strip() in THREE]
    assert len(set(outputs[:3])) == 3 and len(set(outputs[3:6])) == 1


def test_pictures_of_systems_are_shown_under_their_names(page):
    images = [found for tag, found in page.elements if tag == "img" and found.get("loading")]
    assert [image["alt"] for image in images] == [f"Pictures: {system}" for system in THREE]
    for image, system in zip(images, THREE, strict=True):
        assert image["src"].endswith(base64.b64encode(png(shade=len(system) * 9)).decode())
