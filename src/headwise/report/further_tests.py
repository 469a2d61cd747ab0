"""The table of further test sets, for the report and for the terminal.

Its rows are systems and its columns are test sets, with the difference to the baseline on each. The
p-values are corrected over all of its comparisons.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rich.table import Table
from rich.text import Text

from headwise.analysis.results import Comparison, SystemSummary, sound_runs
from headwise.analysis.statistics.estimates import SIGNIFICANT, Difference
from headwise.report.cells import (
    NARROWEST_NAME,
    Cell,
    Row,
    add_column,
    add_row,
    chance_notes,
    column_width,
    difference_cell,
    directions,
    estimate_cell,
    new_table,
    seeds_lost,
)
from headwise.report.formatting import NONE, heading
from headwise.report.verdict import mean_and_deviation
from headwise.tasks.outcome import Score


@dataclass(frozen=True)
class Column:
    """One column: a score, or a difference, on a further test set.

    Attributes:
        header: name of the test set.
        detail: what is in the column.
        cell: returns the cell of a system.
        only_report: whether the terminal leaves the column out.
    """

    header: str
    detail: str
    cell: Callable[[SystemSummary], Cell]
    only_report: bool = False


def further_columns(comparison: Comparison) -> list[Column]:
    """Returns the columns: for each further test set the first score, its difference, others."""
    columns = []
    for name, scores in _scores(comparison).items():
        first, *others = scores
        columns += [
            Column(name, heading(first.name), partial(_score_cell, test=name, score=first)),
            Column(
                name,
                "Difference",
                partial(
                    _difference_cell, baseline=comparison.baseline, test=name, digits=first.digits
                ),
            ),
        ]
        columns += [
            Column(name, heading(score.name), partial(_score_cell, test=name, score=score), True)
            for score in others
        ]
    return columns


def further_rows(comparison: Comparison) -> list[Row]:
    """Returns the row of every system, with cells in the order of `further_columns`."""
    columns = further_columns(comparison)
    return [
        Row(system.name, "", "", seeds_lost(system), tuple(c.cell(system) for c in columns))
        for system in comparison.systems
    ]


def further_notes(comparison: Comparison) -> list[str]:
    """Returns the notes below the table."""
    different = {score.name: score for scores in _scores(comparison).values() for score in scores}
    better = directions(different.values())
    return [better, *chance_notes(_differences(comparison), comparison.item_name)]


def further_tables(comparison: Comparison, width: int) -> Iterator[Table]:
    """Yields tables for a terminal, each with as many test sets as it has room for.

    Args:
        comparison: the comparison; without further test sets there are no tables.
        width: number of characters of the terminal.
    """
    columns = [column for column in further_columns(comparison) if not column.only_report]
    cells = [[column.cell(system) for system in comparison.systems] for column in columns]
    widths = [
        column_width(column.header, of_column, column.detail)
        for column, of_column in zip(columns, cells, strict=True)
    ]
    shown: list[list[int]] = []
    room = 0
    for number in range(0, len(columns), 2):  # the score and its difference
        needed = widths[number] + widths[number + 1]
        if not shown or needed > room:
            shown.append([])
            room = width - NARROWEST_NAME
        shown[-1] += [number, number + 1]
        room -= needed
    for numbers in shown:
        table = new_table("Other test sets")
        for number in numbers:
            add_column(table, columns[number].header, columns[number].detail)
        for row, system in enumerate(comparison.systems):
            add_row(table, system.name, seeds_lost(system), [cells[n][row] for n in numbers])
        if any(difference.source != "items" for difference in _differences(comparison)):
            table.caption = Text(
                f"* p < {SIGNIFICANT}, corrected for the comparisons on all of these test sets."
            )
        yield table


def _scores(comparison: Comparison) -> dict[str, Sequence[Score]]:
    """Returns the scores on each further test set, with names, digits and directions for all."""
    found: dict[str, Sequence[Score]] = {}
    for system in comparison.systems:
        for run in system.runs:
            for name, scores in run.tests.items():
                found.setdefault(name, scores)
    return found


def _differences(comparison: Comparison) -> list[Difference]:
    return [
        test.difference
        for system in comparison.systems
        for test in system.tests.values()
        if test.difference is not None
    ]


def _score_cell(system: SystemSummary, test: str, score: Score) -> Cell:
    estimate = system.tests[test].estimates.get(score.name) if test in system.tests else None
    if estimate is None:
        return Cell(NONE)
    values = [
        of_run.value
        for run in sound_runs(system)
        for of_run in run.tests.get(test, [])
        if of_run.name == score.name
    ]
    deviation = mean_and_deviation(values)[1] if len(values) > 1 else math.nan
    return estimate_cell(estimate, score.digits, deviation)


def _difference_cell(system: SystemSummary, baseline: str, test: str, digits: int) -> Cell:
    if system.name == baseline:
        return Cell("baseline")
    found = system.tests[test].difference if test in system.tests else None
    return difference_cell(found, digits)
