"""The table of further test sets, for the report and for the terminal.

Its rows are systems and its columns are test sets, with the difference to the baseline on each. The
p-values are corrected over all of its comparisons.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

from rich.table import Table
from rich.text import Text

from headwise.analysis.results import Comparison, SystemSummary, sound_runs
from headwise.analysis.statistics.estimates import SIGNIFICANT, Difference
from headwise.report.cells import (
    Cell,
    Column,
    Row,
    chance_notes,
    column_widths,
    difference_cell,
    directions,
    estimate_cell,
    pieces,
    seeds_lost,
    terminal_table,
)
from headwise.report.formatting import NONE, heading
from headwise.report.verdict import mean_and_deviation
from headwise.tasks.outcome import Score


def further_columns(comparison: Comparison) -> list[Column[SystemSummary]]:
    """Returns the columns: for each further test set the first score, its difference, others."""
    columns: list[Column[SystemSummary]] = []
    for test, scores in _scores(comparison).items():
        first, *others = scores
        difference = partial(
            _difference_cell, baseline=comparison.baseline, test=test, digits=first.digits
        )
        columns += [
            Column(
                test, partial(_score_cell, test=test, score=first), test, detail=heading(first.name)
            ),
            Column(test, difference, test, detail="Difference"),
        ]
        columns += [
            Column(test, partial(_score_cell, test=test, score=score), detail=heading(score.name))
            for score in others
        ]
    return columns


def further_rows(comparison: Comparison) -> list[Row]:
    """Returns the row of every system, with cells in the order of `further_columns`."""
    columns = further_columns(comparison)
    return [
        Row(system.name, tuple(c.cell(system) for c in columns), note=seeds_lost(system))
        for system in comparison.systems
    ]


def further_notes(comparison: Comparison) -> list[str]:
    """Returns the notes below the table."""
    different = {score.name: score for scores in _scores(comparison).values() for score in scores}
    better = directions(different.values())
    return [better, *chance_notes(_differences(comparison), comparison.item_name)]


def further_tables(comparison: Comparison, width: int) -> Iterator[Table]:
    """Yields tables for a terminal, each with as many test sets as it has room for."""
    columns, rows = further_columns(comparison), further_rows(comparison)
    widths = column_widths(columns, rows)
    shown = [number for number, column in enumerate(columns) if column.short]
    # A score and its difference stay together.
    for piece in pieces([widths[number] for number in shown], width, together=2):
        table = terminal_table("Other test sets", columns, rows, [shown[at] for at in piece])
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
