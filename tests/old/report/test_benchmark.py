"""The table of systems by data sets, in the terminal and as a page."""

import io
import math
import re
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console
from synthetic import ALL, benchmark, judge, of_task

from headwise.analysis.results import Benchmark
from headwise.report.benchmark import (
    MEAN,
    benchmark_differences,
    benchmark_scores,
    benchmark_verdict,
)
from headwise.report.cells import Cell
from headwise.report.comparison import write_report
from headwise.report.table import results_table


def _printed(made: Benchmark, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(results_table(made))
    return capture.get()


def _cells(made: Benchmark, system: str) -> dict[str, Cell]:
    table = benchmark_scores(made)
    headers = [f"{column.header} {column.detail}".strip() for column in table.columns]
    row = next(row for row in table.rows if row.name == system)
    return dict(zip(headers, row.cells, strict=True))


def test_figures_of_data_sets_and_their_mean() -> None:
    made = benchmark()
    assert _cells(made, "standard") == {
        "SeLen": Cell("76.0", ("± 0.1", "[74.1, 77.9]")),
        "WC": Cell("77.0", ("± 0.1", "[75.1, 78.9]")),
        "BShift": Cell("78.0", ("± 0.1", "[76.1, 79.9]")),
        "Mean": Cell("77.0", ("[75.9, 78.1]",)),
    }
    better = Cell("76.9 *", ("± 0.1", "[75.0, 78.8]"), significant=True)
    assert _cells(made, "mae-7")["SeLen"] == better
    notes = unescape(benchmark_scores(made).notes)
    assert (
        "the 95% interval of the figure above it, over seeds and test examples together." in notes
    )
    # Two systems on three data sets and on average.
    assert "corrected by Holm's method for the 8 comparisons of this table" in notes
    assert "* p < 0.05 against standard, corrected" in " ".join(_printed(made).split())


def test_all_comparisons_of_the_table_are_corrected_together() -> None:
    made = benchmark()
    found = benchmark_differences(made)
    assert list(found) == [
        *((data_set, name) for data_set in made.comparisons for name in ("mae-7", "moa")),
        *((MEAN, name) for name in ("mae-7", "moa")),
    ]
    p_values = [each.p_value for each in found.values() if each is not None]
    assert len(p_values) == 8
    least = min((each for each in found.values() if each is not None), key=lambda d: d.p_value)
    assert least.corrected_p_value == pytest.approx(8 * least.p_value)
    whole, parts = found[MEAN, "mae-7"], [found[name, "mae-7"] for name in made.comparisons]
    assert whole is not None
    assert whole.value == pytest.approx(sum(part.value for part in parts if part) / 3)


def test_one_seed_has_no_star_and_says_why() -> None:
    made = benchmark(seeds=1)
    assert "*" not in _printed(made)
    assert not any(cell.significant for row in benchmark_scores(made).rows for cell in row.cells)
    text = " ".join(_printed(made).split())
    assert "95% intervals over test examples alone. One seed says nothing" in text
    notes = unescape(benchmark_scores(made).notes)
    assert "one seed says nothing of training's own chance" in notes
    assert "significant" not in notes + benchmark_verdict(made)
    assert benchmark_verdict(made) == (
        "No clear winner. mae-7 is ahead in the mean accuracy over 3 data sets, 77.1; the baseline "
        "standard has 77.0, a difference that single runs cannot tell from the chance of training "
        "(95% interval of the difference −0.1 to +0.3)."
    )


def test_runs_that_diverged_are_left_out_of_the_mean() -> None:
    made = benchmark()
    broken = made.comparisons["WC"].systems[1]
    broken.runs[2].validation_loss = math.nan
    judge(made.comparisons["WC"])
    assert _cells(made, "mae-7")["WC"].lines[:2] == ("77.1", "± 0.1")  # of 77.0 and 77.1
    row = next(row for row in benchmark_scores(made).rows if row.name == "mae-7")
    assert row.note == "WC: 1 of 3 seeds diverged"
    assert "Runs that diverged are left out of these numbers." in benchmark_scores(made).notes
    for run in broken.runs:
        run.validation_loss = math.nan
    judge(made.comparisons["WC"])
    assert benchmark_differences(made)[MEAN, "mae-7"] is None
    assert _cells(made, "mae-7")["WC"] == Cell("diverged")
    assert _cells(made, "mae-7")["Mean"] == Cell("–")


@pytest.mark.parametrize("width", [100, 60, 40])
def test_a_narrow_terminal_gets_the_table_in_pieces(width: int) -> None:
    made = benchmark(ALL, data_sets=10)
    text = _printed(made, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    headers = " ".join(line for line in text.splitlines() if line.startswith("System")).split()
    table = benchmark_scores(made)
    assert [h for h in headers if h != "System"] == [c.header for c in table.columns]
    for row in table.rows:
        assert all(line in text for cell in row.cells for line in cell.lines)
    assert text.count("System") > 1


def test_the_verdict_counts_what_the_tests_say() -> None:
    assert benchmark_verdict(benchmark()) == (
        "No clear winner. mae-7 is ahead in the mean accuracy over 3 data sets, 77.1; the baseline "
        "standard has 77.0, a difference that may be chance (95% interval of the difference −0.1 "
        "to +0.3, p = 1.000; a true difference of 0.4 would be found in 80% of such comparisons). "
        "Against the baseline standard, mae-7 is significantly better on 1 and significantly worse "
        "on 1 of 3 data sets; moa shows no significant difference on any of 3 data sets."
    )


def test_the_baseline_wins_ties_and_a_single_system_is_told() -> None:
    made = benchmark(("standard", "other"))
    for each in made.comparisons.values():
        each.systems[1].estimates = each.systems[0].estimates
        each.systems[1].difference = None
    assert benchmark_verdict(made) == (
        "No clear winner. No system is ahead of the mean accuracy over 3 data sets of the baseline "
        "standard, 77.0: the closest, other, has 77.0."
    )
    alone = benchmark(("standard",))
    assert benchmark_verdict(alone) == "standard has a mean accuracy over 3 data sets of 77.0."
    assert "p" not in unescape(benchmark_scores(alone).notes).split()


def test_lower_is_better_on_average_too() -> None:
    names = ("standard", "mae-7", "weighted")
    sets = {name: of_task("language-modelling", names, seeds=3) for name in ("a", "b")}
    made = Benchmark(title="texts", comparisons=sets)
    assert benchmark_verdict(made) == (
        "mae-7 wins in the mean word perplexity over 2 data sets, 86.2; the baseline standard "
        "has 88.0, a significant difference (95% interval of the difference −2.4 to −1.2, "
        "p < 0.001). Against the baseline standard, mae-7 is significantly better on 2 of 2 data "
        "sets; weighted is significantly worse on 2 of 2 data sets."
    )
    assert "Mean: over data sets, each counting alike." in benchmark_scores(made).notes


def test_one_file_has_the_reports_of_all_data_sets(tmp_path: Path) -> None:
    made = benchmark(("standard", "moa"), seeds=1, data_sets=2)
    write_report(made, tmp_path / "report.html")
    assert [path.name for path in tmp_path.rglob("*")] == ["report.html"]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    for name in ("SeLen", "WC"):
        assert f"The whole report of {name}" in page
    assert page.count("headwise compare interface-strings") == 2
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(set(ids)) == len(ids) > 20
    named = set(re.findall(r'(?:aria-labelledby="|href="#|url\(#)([^")]*)', page))
    assert named <= set(ids)
