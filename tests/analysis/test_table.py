"""The table in the terminal."""

import io
import math

import pytest
from rich.console import Console
from synthetic import ALL, comparison

from headwise.analysis.results import Comparison
from headwise.analysis.table import (
    HEADERS,
    comparison_table,
    perplexity,
    table_notes,
    table_rows,
)


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
        for header, cell in zip(HEADERS, row.cells, strict=True):
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
        for title, cell in (("BLEU", row.bleu), ("Difference", row.difference)):
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
    assert [row.step_time.figure for row in table_rows(made)] == ["1.00×", "–"]


def test_perplexity_of_any_loss() -> None:
    made = comparison(("standard",))
    assert perplexity(1000.0) == math.inf
    made.systems[0].runs[0].validation_loss = 1000.0
    assert table_rows(made)[0].perplexity.figure == "–"
    made.systems[0].runs[0].validation_loss = 30.0
    assert table_rows(made)[0].perplexity.figure == "1.1e+13"
