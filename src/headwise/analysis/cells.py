"""What the tables of results are made of: cells with figures over seeds, rows, notes."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from headwise.analysis.results import Centre, Comparison, RunResult, SystemSummary
from headwise.analysis.verdict import (
    SIGNIFICANT,
    diverged,
    finite_interval,
    heading,
    in_words,
    listed,
    middle,
    sound_runs,
)
from headwise.tasks.outcome import Score

NONE = "–"
NARROWEST_NAME = 9
_WIDEST_HEADER = 14  # in a terminal; a longer one is broken
_PADDING = (0, 1, 0, 0)
_GAP = 2  # the padding and the table's own line between columns


@dataclass(frozen=True)
class Cell:
    """A figure, and in smaller type what belongs to it: a deviation, an interval, a p-value."""

    figure: str
    details: tuple[str, ...] = ()
    significant: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """All of it, for a terminal."""
        return (self.figure, *self.details)


@dataclass(frozen=True)
class Row:
    """One system; a cell for each column."""

    name: str
    description: str
    matched: str  # how its size was matched, or empty
    is_baseline: bool
    note: str  # what went wrong, or empty
    cells: tuple[Cell, ...]


# Figures


def all_scores(comparison: Comparison) -> list[Score]:
    """Each score once, the first one first; name, digits and direction hold for all runs."""
    found: dict[str, Score] = {}
    for system in comparison.systems:
        for run in system.runs:
            for score in run.scores:
                found.setdefault(score.name, score)
    return list(found.values())


def score_cell(comparison: Comparison, system: SystemSummary, score: Score) -> Cell:
    """The score of this name over the seeds, and the interval of the first one."""
    values = [s.value for run in sound_runs(system) if (s := find_score(run, score.name))]
    cell = over_seeds(comparison.centre, values, score.digits)
    first = find_score(system.runs[0], score.name)
    if first is None or diverged(system.runs[0]) or (ends := finite_interval(first)) is None:
        return cell
    low, high = (_written(end, score.digits) for end in ends)
    return Cell(cell.figure, (*cell.details, f"[{low}, {high}]"))


def over_seeds(centre: Centre, values: list[float], digits: int) -> Cell:
    """Mean or median, and standard deviation."""
    value, deviation = middle(values, centre)
    if not math.isfinite(value):
        return Cell(NONE)
    text = _written(value, digits)
    return Cell(text, () if math.isnan(deviation) else (f"± {deviation:.{digits}f}",))


def _written(value: float, digits: int) -> str:
    """With so many decimals; a number too long for a column by its power of ten.

    >>> _written(5563.6, 1), _written(687_345.2, 1)
    ('5563.6', '6.9e+05')
    """
    return f"{value:.{digits}f}" if abs(value) < 1e5 else f"{value:.1e}"


def seeds_lost(system: SystemSummary) -> str:
    """How many of its seeds diverged, in words; empty if none did, or if it has but one."""
    lost = len(system.runs) - len(sound_runs(system))
    if not lost or len(system.runs) == 1:
        return ""
    return f"{lost} of {len(system.runs)} seeds diverged"


def find_score(run: RunResult, name: str) -> Score | None:
    """The score of this name, if the run has it."""
    return next((score for score in run.scores if score.name == name), None)


# Notes


def directions(scores: Iterable[Score], where: str = "") -> str:
    """Which scores are better when they are high, which when they are low.

    Args:
        scores: each once.
        where: they were counted; with a comma behind it.

    >>> directions([Score(name="BLEU", value=26.4), Score(name="chrF", value=48.4)])
    'BLEU and chrF: higher is better.'
    """
    parts = []
    scores = list(scores)
    for higher, better in ((True, "higher is better"), (False, "lower is better")):
        names = [score.name for score in scores if score.higher_is_better == higher]
        if names:
            first, *others = names
            said = listed([heading(first), *map(in_words, others)])
            parts.append(f"{said}: {where}{better}.")
    return " ".join(parts)


def bootstrap_notes(tests: int, item_name: str) -> list[str]:
    """What the marks of so many tests mean."""
    if not tests:
        return []
    notes = [
        f"* marks a significant difference, p < {SIGNIFICANT} in a paired bootstrap over the "
        f"test {item_name}. p is the probability of a difference this large if both systems were "
        "equally good."
    ]
    if tests > 1:
        notes.append(f"The p-values are not corrected for making {tests} comparisons.")
    return notes


# In a terminal


def new_table(title: str) -> Table:
    """A table for a terminal with its first column, for the systems' names."""
    table = Table(box=box.SIMPLE_HEAD, padding=_PADDING, pad_edge=False, show_edge=False)
    table.title = Text(title, style="bold")
    table.caption_justify = "left"
    table.add_column("System", min_width=NARROWEST_NAME, max_width=20, overflow="fold")
    return table


def add_column(table: Table, header: str, detail: str = "") -> None:
    """A column of figures, its header broken where it is long, with a detail below it."""
    lines = Text("\n".join([*_header_lines(header), *_header_lines(detail)]))
    table.add_column(lines, justify="right", no_wrap=True, vertical="top")


def add_row(table: Table, name: str, note: str, cells: Sequence[Cell]) -> None:
    """The figures of a system."""
    text = Text(name, style="bold")
    if note:
        text.append(f"\n{note}", style="not bold")
    table.add_row(text, *(Text("\n".join(cell.lines)) for cell in cells))


def column_width(header: str, cells: Sequence[Cell], detail: str = "") -> int:
    """How many letters a column takes, with the gap before it."""
    lines = [*_header_lines(header), *_header_lines(detail), *(x for c in cells for x in c.lines)]
    return _GAP + max(map(len, lines))


def _header_lines(header: str) -> list[str]:
    return textwrap.wrap(header, _WIDEST_HEADER)
