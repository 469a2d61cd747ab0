"""Cells, rows and notes that the tables of one data set and of several share."""

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Generic, TypeVar

from markupsafe import Markup
from rich import box
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.table import Table
from rich.text import Text

from headwise.analysis.how_soon import OverSeeds
from headwise.analysis.results import Comparison, RunResult, SystemSummary, sound_runs
from headwise.analysis.speed import OverRounds
from headwise.analysis.statistics.estimates import Difference, Estimate, Source
from headwise.report.formatting import NONE, compact, heading, in_words, listed, p_value, signed
from headwise.tasks.scores import Score

Of = TypeVar("Of")  # what a row is of

# Of tables in a terminal, in characters:
NARROWEST_NAME = 9  # least width of the column of names
_WIDEST_HEADER = 14  # a longer header is broken into lines
_PADDING = (0, 1, 0, 0)
_GAP = 2  # between columns: the padding and rich's own separator


@dataclass(frozen=True)
class Cell:
    """A figure, and in smaller type its details: a deviation, an interval or a p-value."""

    figure: str
    details: tuple[str, ...] = ()
    significant: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """The figure and its details, a line each."""
        return (self.figure, *self.details)


NO_CELL = Cell(NONE)


@dataclass(frozen=True)
class Column(Generic[Of]):
    """One column of a table."""

    header: str  # its header in the report
    cell: Callable[[Of], Cell]  # returns the cell of a row's system
    short: str = ""  # its header in a terminal; empty if only the report has the column
    worth: float = 0  # a terminal that is too narrow leaves out the columns of least worth
    detail: str = ""  # a second line of the header


@dataclass(frozen=True)
class Row:
    """The row of one system, with a cell for each column."""

    name: str
    cells: tuple[Cell, ...]
    description: str = ""
    matched: str = ""  # how its size was changed to match the baseline's
    note: str = ""  # how many seeds diverged


@dataclass(frozen=True)
class ScoreTable(Generic[Of]):
    """A table of scores with what stands below it."""

    columns: list[Column[Of]]
    rows: list[Row]
    notes: Markup  # below it in the report
    below: str = ""  # below it in a terminal


def cells_of(columns: Sequence[Column[Of]], of: Of) -> tuple[Cell, ...]:
    """Returns what each column shows of one row's subject, such as a system."""
    return tuple(column.cell(of) for column in columns)


def several_seeds(comparison: Comparison) -> bool:
    """Whether any system has several runs."""
    return any(len(system.runs) > 1 for system in comparison.systems)


# Figures


def mean_and_deviation(values: Iterable[float]) -> tuple[float, float]:
    """Returns the mean of the finite values, and their standard deviation.

    Either is NaN if there are too few values to compute it.

    >>> mean_and_deviation([1.0, 2.0, 3.0, math.nan])
    (2.0, 1.0)
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return math.nan, math.nan
    return fmean(finite), stdev(finite) if len(finite) > 1 else math.nan


def interval_of(estimate: Estimate | None) -> tuple[float, float] | None:
    """Returns both ends of the interval of a mean, or None if one is missing or not finite."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    ends = (estimate.low, estimate.high)
    return ends if all(map(math.isfinite, ends)) else None


def all_scores(comparison: Comparison) -> list[Score]:
    """Returns each score once, in order; its name, digits and direction hold for all runs."""
    found: dict[str, Score] = {}
    for system in comparison.systems:
        for run in system.runs:
            for score in run.scores:
                found.setdefault(score.name, score)
    return list(found.values())


def values_of(system: SystemSummary, name: str) -> list[float]:
    """Returns a score of the runs that did not diverge and have it."""
    scores = (find_score(run, name) for run in sound_runs(system))
    return [score.value for score in scores if score is not None]


def score_cell(system: SystemSummary, score: Score) -> Cell:
    """Returns the mean of a score over the seeds, their standard deviation and its interval."""
    estimate = system.estimates.get(score.name)
    if estimate is None:
        return NO_CELL
    return estimate_cell(estimate, score.digits, values_of(system, score.name))


def estimate_cell(estimate: Estimate, digits: int, values: Iterable[float] = ()) -> Cell:
    """Returns a mean, the standard deviation of the values it is of, and its interval."""
    _, deviation = mean_and_deviation(values)
    ends = interval_of(estimate) or ()
    figure, spread, *shown = compact([estimate.value, deviation, *ends], digits)
    details = [f"± {spread}"] * (not math.isnan(deviation))
    return Cell(figure, (*details, *([f"[{', '.join(shown)}]"] if ends else [])))


def difference_cell(difference: Difference | None, digits: int) -> Cell:
    """Returns a difference to the baseline, its interval and the corrected p-value.

    A star marks a significant difference. That of single runs has neither star nor p-value: p
    would be about these runs, not about the systems.
    """
    if difference is None:
        return NO_CELL
    low, high = signed(difference.low, digits), signed(difference.high, digits)
    text = signed(difference.value, digits) + " *" * difference.significant
    details = [f"[{low}, {high}]"]
    if difference.source != "items":
        details.append(p_value(difference.corrected_p_value))
    return Cell(text, tuple(details), difference.significant)


def over_seeds(values: list[float], digits: int) -> Cell:
    """Returns the mean of values over seeds, and their standard deviation."""
    value, deviation = mean_and_deviation(values)
    if not math.isfinite(value):
        return NO_CELL
    text, spread = compact([value, deviation], digits)
    return Cell(text, () if math.isnan(deviation) else (f"± {spread}",))


def times_cell(ratio: OverRounds | OverSeeds | None, otherwise: str = NONE) -> Cell:
    """Returns a ratio of times or steps with its interval; the baseline's own has none."""
    if ratio is None:
        return Cell(otherwise)
    interval = () if ratio.low == ratio.high else (f"{ratio.low:.2f}–{ratio.high:.2f}",)
    return Cell(f"{ratio.value:.2f}×", interval)


def seeds_lost(system: SystemSummary) -> str:
    """Says how many seeds diverged; empty if none did, or if there is only one seed."""
    lost = len(system.runs) - len(sound_runs(system))
    if not lost or len(system.runs) == 1:
        return ""
    return f"{lost} of {len(system.runs)} seeds diverged"


def find_score(run: RunResult, name: str) -> Score | None:
    """Returns the score of this name, or None if the run has none."""
    return next((score for score in run.scores if score.name == name), None)


# Notes


def directions(scores: Iterable[Score], where: str = "") -> str:
    """Says which scores are better when they are higher, and which when they are lower.

    >>> directions([Score(name="BLEU", value=26.4), Score(name="chrF", value=48.4)])
    'BLEU and chrF: higher is better.'
    """
    parts = []
    scores = list(scores)
    for lower, better in ((False, "higher is better"), (True, "lower is better")):
        names = [score.name for score in scores if score.lower_is_better == lower]
        if names:
            first, *others = names
            said = listed([heading(first), *map(in_words, others)])
            parts.append(f"{said}: {where}{better}.")
    return " ".join(parts)


def interval_sources(comparison: Comparison) -> set[Source]:
    """Returns whose chance the intervals of all scores hold; empty if there are none."""
    found = (estimate for system in comparison.systems for estimate in system.estimates.values())
    return {estimate.source for estimate in found if interval_of(estimate)}


def difference_sources(comparison: Comparison) -> set[Source]:
    """Returns whose chance the differences to the baseline hold; empty if there are none."""
    return {s.difference.source for s in comparison.systems if s.difference is not None}


def chance_over(sources: Collection[Source], item_name: str) -> str:
    """Says whose chance intervals and p-values hold.

    >>> chance_over(["seeds and items"], "sentences")
    'over seeds and test sentences together'
    >>> chance_over(["items", "seeds"], "sentences")
    'over seeds alone or over test sentences alone'
    """
    said: dict[Source, str] = {
        "seeds and items": f"over seeds and test {item_name} together",
        "seeds": "over seeds alone",
        "items": f"over test {item_name} alone",
    }
    return " or ".join(text for source, text in said.items() if source in sources)


# In a terminal


class Fitted:
    """What a terminal shows of a width that is known when it is printed."""

    def __init__(self, draw: Callable[[int], Iterable[ConsoleRenderable]]) -> None:
        self.draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.draw(options.max_width)


def terminal_tables(
    title: str, found: ScoreTable[Any], width: int, together: int = 1
) -> list[Table]:
    """Returns tables for a terminal, each with as many columns as it has room for."""
    widths = column_widths(found)
    shown = [number for number, column in enumerate(found.columns) if column.short]
    return [
        terminal_table(title, found, [shown[at] for at in piece], width)
        for piece in _pieces([widths[number] for number in shown], width, together)
    ]


def terminal_table(title: str, found: ScoreTable[Any], shown: Sequence[int], width: int) -> Table:
    """Returns a table for a terminal with some of the columns; long headers are broken.

    One that needs more than `width` is wider: the part of a number would pass for the whole.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=_PADDING, pad_edge=False, show_edge=False)
    table.title = Text(title, style="bold")
    table.caption_justify = "left"
    widths = column_widths(found)
    needed = NARROWEST_NAME + sum(widths[number] for number in shown)
    table.width = needed if needed > width else None
    table.add_column("System", min_width=NARROWEST_NAME, max_width=20, overflow="fold")
    for number in shown:
        column = found.columns[number]
        lines = Text("\n".join([*_header_lines(column.short), *_header_lines(column.detail)]))
        table.add_column(lines, justify="right", no_wrap=True, vertical="top")
    for row in found.rows:
        text = Text(row.name, style="bold")
        if row.note:
            text.append(f"\n{row.note}", style="not bold")
        cells = (Text("\n".join(row.cells[number].lines)) for number in shown)
        table.add_row(text, *cells)
    return table


def column_widths(found: ScoreTable[Any]) -> list[int]:
    """Returns the widths of columns in a terminal in characters, each with the gap before it."""
    return [
        _GAP + max(map(len, [*_header_lines(column.short), *_header_lines(column.detail), *lines]))
        for number, column in enumerate(found.columns)
        for lines in [[line for row in found.rows for line in row.cells[number].lines]]
    ]


def _pieces(widths: Sequence[int], width: int, together: int) -> list[list[int]]:
    """Divides the columns of a table that is too wide among several; returns their numbers."""
    found: list[list[int]] = []
    left = 0
    for start in range(0, len(widths), together):
        numbers = range(start, start + together)
        needed = sum(widths[number] for number in numbers)
        if not found or needed > left:
            found.append([])
            left = width - NARROWEST_NAME
        found[-1] += numbers
        left -= needed
    return found


def _header_lines(header: str) -> list[str]:
    return textwrap.wrap(header, _WIDEST_HEADER)
