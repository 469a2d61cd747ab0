"""The table of systems by data sets, in the terminal and as a page."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console
from synthetic import ALL, benchmark, comparison, of_task

from headwise.analysis.benchmark import (
    benchmark_columns,
    benchmark_notes,
    benchmark_rows,
    benchmark_verdict,
)
from headwise.analysis.report import render_benchmark, write_report
from headwise.analysis.results import Benchmark
from headwise.analysis.table import results_table
from headwise.analysis.table_cells import Cell


def _printed(made: Benchmark, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(results_table(made))
    return capture.get()


def _cells(made: Benchmark, system: str) -> dict[str, Cell]:
    headers = [f"{column.header} {column.detail}".strip() for column in benchmark_columns(made)]
    row = next(row for row in benchmark_rows(made) if row.name == system)
    return dict(zip(headers, row.cells, strict=True))


def test_figures_of_data_sets_and_their_mean() -> None:
    made = benchmark()
    assert _cells(made, "standard") == {
        "SeLen": Cell("76.3", ("± 0.3",)),
        "WC": Cell("77.3", ("± 0.3",)),
        "BShift": Cell("78.3", ("± 0.3",)),
        "Mean": Cell("77.3", ("± 0.3",)),
    }
    assert _cells(made, "mae-7")["SeLen"] == Cell("77.2 *", ("± 0.3",), significant=True)
    assert "Tests are those of the first seed." in " ".join(benchmark_notes(made))
    assert "over the test examples" in " ".join(benchmark_notes(made))


def test_the_mean_is_over_seeds_that_have_all_data_sets() -> None:
    made = benchmark()
    broken = made.comparisons["WC"].systems[1]
    broken.runs[2].validation_loss = math.nan
    # 77.9 and 78.2: the third seed has no second data set.
    assert _cells(made, "mae-7")["Mean"] == Cell("78.1", ("± 0.2",))
    row = next(row for row in benchmark_rows(made) if row.name == "mae-7")
    assert row.note == "WC: 1 of 3 seeds diverged"
    assert "Runs that diverged are left out of these numbers." in benchmark_notes(made)
    for run in broken.runs:
        run.validation_loss = math.nan
    assert _cells(made, "mae-7")["WC"] == Cell("diverged")
    assert _cells(made, "mae-7")["Mean"] == Cell("–")


def test_no_mean_of_different_scores_and_several_of_one_data_set() -> None:
    made = benchmark(data_sets=2)
    made.comparisons["speech"] = of_task("speech", ("standard", "moa"))
    cells = _cells(made, "moa")
    assert list(cells) == [
        "SeLen Accuracy",
        "WC Accuracy",
        "speech PESQ",
        "speech PESQ noisy",
        "speech SI-SDR",
        "speech SI-SDR noisy",
    ]
    assert _cells(made, "mae-7")["speech PESQ"] == Cell("–")  # it was not run there
    assert "mean" not in benchmark_verdict(made)
    assert "PESQ noisy" in " ".join(_printed(made, 120).split())


def test_one_data_set_has_no_mean() -> None:
    assert list(_cells(benchmark(data_sets=1), "moa")) == ["SeLen"]


@pytest.mark.parametrize("width", [100, 60, 40])
def test_a_narrow_terminal_gets_the_table_in_pieces(width: int) -> None:
    made = benchmark(ALL, data_sets=10)
    text = _printed(made, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    headers = " ".join(line for line in text.splitlines() if line.startswith("System")).split()
    assert [h for h in headers if h != "System"] == [c.header for c in benchmark_columns(made)]
    for row in benchmark_rows(made):
        assert all(line in text for cell in row.cells for line in cell.lines)
    assert text.count("System") > 1


def test_the_verdict_counts_what_the_tests_say() -> None:
    assert benchmark_verdict(benchmark()) == (
        "mae-7 has the best mean accuracy over 3 data sets, 78.2; the baseline standard has 77.3. "
        "Against the baseline standard, mae-7 is significantly better on 2 and significantly "
        "worse on 1 of 3 data sets; moa shows no significant difference on any of 3 data sets."
    )


def test_the_baseline_wins_ties_and_a_single_system_is_told() -> None:
    made = benchmark(("standard", "other"))
    for each in made.comparisons.values():
        each.systems[1].paired_test = None
    assert benchmark_verdict(made) == (
        "No system beats the mean accuracy over 3 data sets of the baseline standard, 77.3: the "
        "closest, other, has 77.3."
    )
    alone = benchmark(("standard",))
    assert benchmark_verdict(alone) == "standard has a mean accuracy over 3 data sets of 77.3."


def test_lower_is_better_on_average_too() -> None:
    names = ("standard", "mae-7", "weighted")
    sets = {name: of_task("language-modelling", names) for name in ("a", "b")}
    made = Benchmark(title="texts", comparisons=sets)
    assert benchmark_verdict(made) == (
        "mae-7 has the best mean word perplexity over 2 data sets, 86.2; the baseline standard "
        "has 88.0. Against the baseline standard, mae-7 is significantly better on 2 of 2 data "
        "sets; weighted is significantly worse on 2 of 2 data sets."
    )
    assert "Mean: over data sets, each counting alike." in benchmark_notes(made)


def test_the_page_leads_to_the_reports(tmp_path: Path) -> None:
    made = benchmark(("standard", "moa"), seeds=1, data_sets=2)
    write_report(made, tmp_path / "report.html")
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.*")) == [
        "SeLen/report.html",
        "WC/report.html",
        "report.html",
    ]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert '<a href="SeLen/report.html">SeLen</a>' in page
    assert "headwise compare interface-strings" in page


def test_hostile_names_are_escaped() -> None:
    made = Benchmark(title="<b>t</b>", comparisons={"<i>/x": comparison(("standard",))})
    made.comparisons["<i>/x"].systems[0].runs[0].scores[0].name = "<u>"
    page = render_benchmark(made)
    assert not any(tag in page for tag in ("<b>", "<i>", "<u>"))
    assert 'href="%3Ci%3E%2Fx/report.html"' in page


def test_it_survives_its_file() -> None:
    made = benchmark()
    assert Benchmark.model_validate_json(made.model_dump_json()) == made
