"""The table of the same systems on several data sets, with its notes and its verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderResult
from rich.text import Text

from headwise.analysis.formatting import NONE, heading, in_words, listed
from headwise.analysis.results import Benchmark, Centre, Comparison, SystemSummary
from headwise.analysis.table_cells import (
    NARROWEST_NAME,
    Cell,
    Row,
    add_column,
    add_row,
    all_scores,
    bootstrap_notes,
    column_width,
    directions,
    new_table,
    over_seeds,
    score_over_seeds,
    seeds_lost,
)
from headwise.analysis.verdict import (
    SIGNIFICANT,
    diverged,
    first_score,
    middle,
    sound_runs,
    valid_test,
)
from headwise.tasks.outcome import Score

MEAN = "Mean"


@dataclass(frozen=True)
class BenchmarkColumn:
    """A score on one data set, or the mean of a score over all data sets.

    Attributes:
        header: name of the data set.
        detail: name of the score; empty if all columns show the same score.
        score: tells the name, digits and direction of the score.
        comparison: the comparison on the data set; None for the mean.
    """

    header: str
    detail: str
    score: Score
    comparison: Comparison | None


def benchmark_columns(benchmark: Benchmark) -> list[BenchmarkColumn]:
    """Returns a column for each score of each data set.

    The mean over data sets comes last, if all data sets rank systems by the same score.
    """
    various = len({s.name for c in benchmark.comparisons.values() for s in all_scores(c)}) > 1
    columns = [
        BenchmarkColumn(data_set, heading(score.name) * various, score, comparison)
        for data_set, comparison in benchmark.comparisons.items()
        for score in all_scores(comparison)
    ]
    if (score := shared_score(benchmark)) is not None:
        columns.append(BenchmarkColumn(MEAN, heading(score.name) * various, score, None))
    return columns


def shared_score(benchmark: Benchmark) -> Score | None:
    """Returns the first score of all data sets; None for one data set, or if they differ."""
    firsts = [first_score(comparison) for comparison in benchmark.comparisons.values()]
    kinds = {(score.name, score.higher_is_better) for score in firsts}
    return firsts[0] if len(kinds) == 1 < len(firsts) else None


def benchmark_rows(benchmark: Benchmark) -> list[Row]:
    """Returns the row of every system, with cells in the order of `benchmark_columns`."""
    columns = benchmark_columns(benchmark)
    rows = []
    for name in _system_names(benchmark):
        found = [s for c in benchmark.comparisons.values() if (s := _system(c, name)) is not None]
        notes = [
            f"{data_set}: {lost}"
            for data_set, comparison in benchmark.comparisons.items()
            if (system := _system(comparison, name)) is not None and (lost := seeds_lost(system))
        ]
        rows.append(
            Row(
                name=name,
                description=found[0].description,
                matched=found[0].matched,
                note="; ".join(notes),
                cells=tuple(_cell(benchmark, column, name) for column in columns),
            )
        )
    return rows


def benchmark_notes(benchmark: Benchmark) -> list[str]:
    """Returns the notes below the table, which explain its figures."""
    columns = benchmark_columns(benchmark)
    comparisons = list(benchmark.comparisons.values())
    tests = [t for c in comparisons for s in c.systems if (t := valid_test(c, s))]
    notes = [_directions(columns)]
    if any(len(system.runs) > 1 for c in comparisons for system in c.systems):
        note = f"Figures with ± are the {comparisons[0].centre} and standard deviation over seeds."
        note += " Tests are those of the first seed." * bool(tests)
        if columns[-1].comparison is None:
            note += " The mean over data sets is taken of each seed."
        notes.append(note)
    elif columns[-1].comparison is None:
        notes.append("Mean: over data sets, each counting alike.")
    items = listed(list(dict.fromkeys(c.item_name for c in comparisons)))
    notes += bootstrap_notes(len(tests), items)
    if any(diverged(run) for c in comparisons for system in c.systems for run in system.runs):
        notes.append("Runs that diverged are left out of these numbers.")
    return notes


def benchmark_verdict(benchmark: Benchmark) -> str:
    """Says which system is best on average, and on how many data sets each beats the baseline."""
    parts = [_best_mean(benchmark), _against_baseline(benchmark)]
    said = " ".join(filter(None, parts))
    number = len(benchmark.comparisons)
    return said or f"{listed(_system_names(benchmark))} on {_data_sets(number)}."


def benchmark_table(benchmark: Benchmark) -> ConsoleRenderable:
    """Returns the table for a terminal; for a narrow one, in pieces one below the other."""
    return _PiecedTable(benchmark)


class _PiecedTable:
    def __init__(self, benchmark: Benchmark) -> None:
        self.benchmark = benchmark

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, rows = benchmark_columns(self.benchmark), benchmark_rows(self.benchmark)
        pieces: list[list[int]] = [[]]
        left = room = options.max_width - NARROWEST_NAME
        for number, column in enumerate(columns):
            cells = [row.cells[number] for row in rows]
            width = column_width(column.header, cells, column.detail)
            if width > left and pieces[-1]:
                pieces.append([])
                left = room
            pieces[-1].append(number)
            left -= width
        shown: list[ConsoleRenderable] = []
        for piece in pieces:
            table = new_table("" if shown else self.benchmark.title)
            for number in piece:
                add_column(table, columns[number].header, columns[number].detail)
            for row in rows:
                add_row(table, row.name, row.note, [row.cells[number] for number in piece])
            shown += [Text(), table] if shown else [table]
        yield Group(*shown, Text(self._caption(columns), style="table.caption"))

    def _caption(self, columns: Sequence[BenchmarkColumn]) -> str:
        comparisons = self.benchmark.comparisons.values()
        parts = [_directions(columns)]
        if any(valid_test(c, system) for c in comparisons for system in c.systems):
            parts.append(f"* p < {SIGNIFICANT} against {_baseline(self.benchmark)}.")
        if any(len(system.runs) > 1 for c in comparisons for system in c.systems):
            parts.append("± over seeds; test: first seed.")
        return " ".join(parts)


def _cell(benchmark: Benchmark, column: BenchmarkColumn, name: str) -> Cell:
    if column.comparison is None:
        return over_seeds(_centre(benchmark), _means(benchmark, name), column.score.digits)
    system = _system(column.comparison, name)
    if system is None:
        return Cell(NONE)
    if not sound_runs(system):
        return Cell("diverged")
    cell = score_over_seeds(column.comparison, system, column.score)
    test = valid_test(column.comparison, system)
    is_tested = column.score.name == first_score(column.comparison).name
    if is_tested and test is not None and test.p_value < SIGNIFICANT:
        return Cell(f"{cell.figure} *", cell.details, significant=True)
    return cell


def _means(benchmark: Benchmark, name: str) -> list[float]:
    """The mean of the first score over data sets for each seed; NaN if one lacks the seed."""
    by_data_set = [
        {run.seed: run.scores[0].value for run in sound_runs(system)}
        if (system := _system(comparison, name)) is not None
        else {}
        for comparison in benchmark.comparisons.values()
    ]
    seeds = sorted(set().union(*by_data_set))
    return [
        sum(values.get(seed, math.nan) for values in by_data_set) / len(by_data_set)
        for seed in seeds
    ]


def _directions(columns: Sequence[BenchmarkColumn]) -> str:
    return directions({column.score.name: column.score for column in columns}.values())


def _best_mean(benchmark: Benchmark) -> str:
    score = shared_score(benchmark)
    if score is None:
        return ""
    over = f"mean {in_words(score.name)} over {_data_sets(len(benchmark.comparisons))}"
    means = {
        name: mean
        for name in _system_names(benchmark)
        if math.isfinite(mean := middle(_means(benchmark, name), _centre(benchmark))[0])
    }
    if not means:
        return ""
    sign = -1 if score.higher_is_better else 1
    baseline = _baseline(benchmark)
    # In a tie the baseline comes first.
    ranked = sorted(means, key=lambda name: (sign * means[name], name != baseline))
    best, *others = ranked
    figure = {name: f"{mean:.{score.digits}f}" for name, mean in means.items()}
    if not others:
        return f"{best} has a {over} of {figure[best]}."
    other = baseline if baseline in others else others[0]
    if best == baseline:
        return (
            f"No system beats the {over} of the baseline {best}, {figure[best]}: the closest, "
            f"{other}, has {figure[other]}."
        )
    told = f"the baseline {other}" if other == baseline else f"the next, {other},"
    return f"{best} has the best {over}, {figure[best]}; {told} has {figure[other]}."


def _against_baseline(benchmark: Benchmark) -> str:
    """Says on how many data sets the tests find each system better or worse."""
    counted = {name: _Wins() for name in _system_names(benchmark) if name != _baseline(benchmark)}
    for comparison in benchmark.comparisons.values():
        sign = 1 if first_score(comparison).higher_is_better else -1
        for system in comparison.systems:
            test = valid_test(comparison, system)
            if system.name not in counted or test is None:
                continue
            wins = counted[system.name]
            wins.tests += 1
            if test.p_value < SIGNIFICANT:
                wins.better += sign * test.difference > 0
                wins.worse += sign * test.difference < 0
    parts = [f"{name} {wins}" for name, wins in counted.items() if wins.tests]
    if not parts:
        return ""
    return f"Against the baseline {_baseline(benchmark)}, {'; '.join(parts)}."


@dataclass
class _Wins:
    """How many tests a system has, and how many of them are significant."""

    tests: int = 0
    better: int = 0
    worse: int = 0

    def __str__(self) -> str:
        parts = [
            f"significantly {group} on {number}"
            for group, number in (("better", self.better), ("worse", self.worse))
            if number
        ]
        if not parts:
            return f"shows no significant difference on any of {_data_sets(self.tests)}"
        return f"is {' and '.join(parts)} of {_data_sets(self.tests)}"


def _data_sets(number: int) -> str:
    return f"{number} data set{'s' if number > 1 else ''}"


def _system_names(benchmark: Benchmark) -> list[str]:
    return list(dict.fromkeys(s.name for c in benchmark.comparisons.values() for s in c.systems))


def _system(comparison: Comparison, name: str) -> SystemSummary | None:
    return next((system for system in comparison.systems if system.name == name), None)


def _baseline(benchmark: Benchmark) -> str:
    return next(iter(benchmark.comparisons.values())).baseline


def _centre(benchmark: Benchmark) -> Centre:
    return next(iter(benchmark.comparisons.values())).centre
