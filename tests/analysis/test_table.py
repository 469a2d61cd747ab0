"""The table in the terminal."""

import io
import math

import pytest
from rich.console import Console
from synthetic import ALL, comparison, of_task

from headwise.analysis.formatting import heading
from headwise.analysis.results import Comparison
from headwise.analysis.table import (
    comparison_table,
    perplexity,
    table_columns,
    table_notes,
    table_rows,
)
from headwise.analysis.table_cells import Cell, Row


def _headers(made: Comparison) -> list[str]:
    return [column.header for column in table_columns(made)]


def _cell(made: Comparison, row: Row, header: str) -> Cell:
    return row.cells[_headers(made).index(header)]


def _printed(made: Comparison, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(comparison_table(made))
    return capture.get()


@pytest.mark.parametrize(
    ("names", "seeds", "width"),
    [
        (("standard", "mae-7", "moa"), 1, 80),
        (ALL, 1, 80),
        (ALL, 3, 80),
        (("standard", "mae-7", "moa", "a-system-with-a-very-long-name-of-43-letters"), 3, 100),
    ],
)
def test_everything_but_perplexity_fits_into_a_terminal(
    names: tuple[str, ...], seeds: int, width: int
) -> None:
    made = comparison(names, seeds=seeds)
    if seeds > 1:
        made.systems[2].runs[1].validation_loss = math.nan
    text = _printed(made, width)
    assert "…" not in text
    assert all(name in text for name in names if len(name) < 20)
    for row in table_rows(made):
        for header, cell in zip(_headers(made), row.cells, strict=True):
            if header != "Perplexity":
                assert cell.figure in text
                assert all(detail in text for detail in cell.details)
    assert ("1 of 3 seeds" in text) == (seeds > 1)


@pytest.mark.parametrize("width", [72, 60, 50, 40])
def test_a_narrow_terminal_shows_less_but_nothing_cut_off(width: int) -> None:
    made = comparison(ALL, seeds=3)
    text = _printed(made, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    header, *lines = text.split("System")[1].splitlines()
    for row in table_rows(made):
        assert row.name in text
        for title, cell in (
            ("BLEU", _cell(made, row, "BLEU")),
            ("Difference", _cell(made, row, "BLEU against baseline")),
        ):
            assert title in header
            assert all(part in text for part in (cell.figure, *cell.details))
    shown = [name in header for name in ("Loss", "Time", "Params", "MACs", "chrF")]
    assert shown == sorted(shown, reverse=True)  # given up from the last on
    assert not all(shown)
    assert "Too narrow for" in " ".join(lines)


def test_matched_sizes_are_said() -> None:
    made = comparison(ALL)
    assert "matched" not in _printed(made)
    assert not any("--match" in note for note in table_notes(made))
    made.systems[1].matched = "ffn_dim 480 in place of 512"
    assert "Sizes matched in parameters." in " ".join(_printed(made).split())
    assert any("--match parameters" in note for note in table_notes(made))
    assert table_rows(made)[1].matched == "ffn_dim 480 in place of 512"


def test_names_are_no_markup() -> None:
    made = comparison(("standard", "[red]moa[/red]"))
    made.title = "[bold]title"
    assert "[red]moa[/red]" in _printed(made)
    assert "[bold]title" in _printed(made)


def test_significance_is_a_sign() -> None:
    text = _printed(comparison())
    assert "+0.9 *" in text
    assert "* p < 0.05" in text
    assert "+0.5 *" not in text
    assert "* p < 0.05" not in _printed(comparison(("standard",)))


def test_a_time_that_was_not_measured() -> None:
    made = comparison(("standard", "moa"))
    made.systems[1].relative_step_time = None
    assert [_cell(made, r, "Time per step").figure for r in table_rows(made)] == ["1.00×", "–"]


@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        (
            "language-modelling",
            [
                "Validation perplexity",
                "Word perplexity",
                "Word perplexity against baseline",
                "Bits per byte",
            ],
        ),
        ("images", ["Bits per dimension", "Bits per dimension against baseline"]),
        ("classification", ["Accuracy", "Accuracy against baseline"]),
        ("speech", ["PESQ", "PESQ against baseline", "PESQ noisy", "SI-SDR", "SI-SDR noisy"]),
    ],
)
def test_columns_of_other_tasks(kind: str, headers: list[str]) -> None:
    made = of_task(kind)
    cost = ["Parameters", "MACs", "Time per step", "Validation loss"]
    assert _headers(made) == cost + headers
    assert f"Loss: {made.loss_name}, on the validation part" in table_notes(made)[0]
    assert f"over the test {made.item_name}" in " ".join(table_notes(made))
    assert "over a sequence of 784." in table_notes(made)[0]
    first = heading(made.systems[0].runs[0].scores[0].name)
    for width in (120, 80, 60, 44):
        text = _printed(made, width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        for row in table_rows(made):
            for header in (first, f"{first} against baseline"):
                assert all(line in text for line in _cell(made, row, header).lines)


def test_scores_that_are_better_when_they_are_low() -> None:
    made = of_task("language-modelling")
    assert (
        "Word perplexity and bits per byte: on the test part, lower is better."
        in (table_notes(made)[0])
    )
    text = " ".join(_printed(made).split())
    assert "Word perplexity with its 95% interval, lower is better. Lower is better: bits" in text
    row = next(row for row in table_rows(made) if row.name == "mae-7")
    assert _cell(made, row, "Word perplexity") == Cell("86.2", ("[84.2, 88.2]",))
    better = _cell(made, row, "Word perplexity against baseline")
    assert better == Cell("−1.8 *", ("p = 0.012",), significant=True)


def test_medians_where_the_task_reports_them() -> None:
    made = of_task("classification", ("standard", "moa"), seeds=3)
    for run, value in zip(made.systems[1].runs, (70.0, 71.0, 90.0), strict=True):
        run.scores[0].value = value
    assert _cell(made, table_rows(made)[1], "Accuracy").lines[:2] == ("77.0", "± 11.3")
    made.centre = "median"
    assert _cell(made, table_rows(made)[1], "Accuracy").lines[:2] == ("71.0", "± 11.3")
    assert any(note.startswith("Figures with ± are the median and") for note in table_notes(made))
    assert "Median ± over seeds" in _printed(made)


def test_a_score_without_interval_and_one_that_a_run_lacks() -> None:
    made = of_task("speech", ("standard", "moa"))
    for system in made.systems:
        system.runs[0].scores[0].low = None
        system.paired_test = None
    del made.systems[1].runs[0].scores[2:]
    made.systems[0].runs[0].scores[1].value = math.nan
    row, other = table_rows(made)
    assert _cell(made, row, "PESQ") == Cell("2.41")
    assert _cell(made, row, "PESQ noisy") == _cell(made, other, "SI-SDR") == Cell("–")
    assert "interval" not in " ".join(table_notes(made)) + _printed(made)
    assert "bootstrap" not in " ".join(table_notes(made)) + _printed(made)


def test_further_scores_are_given_up_from_the_last_on() -> None:
    made = of_task("speech")
    for width, shown in ((100, 3), (92, 2), (80, 1), (70, 0)):
        header = _printed(made, width).split("System")[1].splitlines()[0]
        further = [name for name in ("PESQ noisy", "SI-SDR", "SI-SDR noisy") if name in header]
        assert further == ["PESQ noisy", "SI-SDR", "SI-SDR noisy"][: len(further)]
        assert len(further) <= shown
    assert "Too narrow for" in _printed(made, 80)


def test_an_interval_that_is_no_number_is_not_shown() -> None:
    made = of_task("speech", ("standard", "moa"))
    made.systems[0].runs[0].scores[0].low = math.nan
    assert _cell(made, table_rows(made)[0], "PESQ") == Cell("2.41")


def test_a_test_without_a_number_is_none() -> None:
    made = comparison(("standard", "moa"))
    made.systems[1].paired_test.p_value = math.nan
    assert _cell(made, table_rows(made)[1], "BLEU against baseline") == Cell("–")


@pytest.mark.parametrize(("loss", "text"), [(0.0123, "0.0123"), (12.3, "12.300"), (0.0, "0.000")])
def test_small_losses_keep_three_digits(loss: float, text: str) -> None:
    made = of_task("speech", ("standard",))
    made.systems[0].runs[0].validation_loss = loss
    assert _cell(made, table_rows(made)[0], "Validation loss").figure == text


def test_perplexity_of_any_loss() -> None:
    made = comparison(("standard",))
    assert perplexity(1000.0) == math.inf
    made.systems[0].runs[0].validation_loss = 1000.0
    assert _cell(made, table_rows(made)[0], "Perplexity").figure == "–"
    made.systems[0].runs[0].validation_loss = 30.0
    assert _cell(made, table_rows(made)[0], "Perplexity").figure == "1.1e+13"


def test_what_decides_on_perplexity_is_no_name() -> None:
    made = of_task("language-modelling", ("standard",))
    made.loss_name = "nats per subword"
    made.systems[0].runs[0].scores[0].name = "PPL"
    assert "Validation perplexity" in _headers(made)
    made.systems[0].runs[0].scores[0].is_perplexity = False
    assert "Perplexity" in _headers(made)
    made.loss_name, made.loss_has_perplexity = "nats per token", False
    assert not [header for header in _headers(made) if "erplexity" in header]
    assert "exponential" not in " ".join(table_notes(made))
