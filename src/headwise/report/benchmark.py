"""The table of the same systems on several data sets, with its notes and its verdict."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderResult
from rich.text import Text

from headwise.analysis.results import (
    Benchmark,
    Comparison,
    SystemSummary,
    diverged,
    first_score,
    sound_runs,
)
from headwise.analysis.statistics.estimates import (
    SIGNIFICANT,
    Difference,
    Estimate,
    Source,
    corrected,
    mean_difference,
    mean_estimate,
)
from headwise.report.cells import (
    NARROWEST_NAME,
    Cell,
    Row,
    add_column,
    add_row,
    all_scores,
    chance_notes,
    chance_over,
    column_width,
    directions,
    estimate_cell,
    interval_sources,
    new_table,
    score_cell,
    seeds_lost,
)
from headwise.report.formatting import NONE, heading, in_words, listed, p_value, signed
from headwise.report.verdict import would_be_found
from headwise.tasks.outcome import Score

MEAN = "Mean"
Differences = dict[tuple[str, str], Difference | None]  # by data set, or MEAN, and system


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
    columns, differences = benchmark_columns(benchmark), benchmark_differences(benchmark)
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
                cells=tuple(_cell(benchmark, column, name, differences) for column in columns),
            )
        )
    return rows


def benchmark_notes(benchmark: Benchmark) -> list[str]:
    """Returns the notes below the table, which explain its figures."""
    columns = benchmark_columns(benchmark)
    comparisons = list(benchmark.comparisons.values())
    notes = [_directions(columns)]
    items = _items(benchmark)
    if sources := _sources(benchmark):
        over = chance_over(sources, items)
        notes.append(f"In brackets: the 95% interval of the figure above it, {over}.")
    if any(len(system.runs) > 1 for c in comparisons for system in c.systems):
        notes.append("Scores are means over seeds; ± is the seeds' standard deviation.")
    if columns[-1].comparison is None:
        notes.append("Mean: over data sets, each counting alike.")
    found = [each for each in benchmark_differences(benchmark).values() if each is not None]
    notes += chance_notes(found, items)
    if any(diverged(run) for c in comparisons for system in c.systems for run in system.runs):
        notes.append("Runs that diverged are left out of these numbers.")
    return notes


def benchmark_verdict(benchmark: Benchmark) -> str:
    """Says which system is best on average, and on how many data sets each beats the baseline."""
    parts = [_best_mean(benchmark), _against_baseline(benchmark)]
    said = " ".join(filter(None, parts))
    number = len(benchmark.comparisons)
    return said or f"{listed(_system_names(benchmark))} on {_data_sets(number)}."


def benchmark_differences(benchmark: Benchmark) -> Differences:
    """Returns the differences to the baseline, with p-values corrected over all of the table.

    Returns:
        By data set and system, and by `MEAN` and system those of the means over data sets.
    """
    found: Differences = {
        (data_set, system.name): system.difference
        for data_set, comparison in benchmark.comparisons.items()
        for system in comparison.systems
        if system.name != comparison.baseline
    }
    if shared_score(benchmark) is not None:
        number = len(benchmark.comparisons)
        names = list(dict.fromkeys(system for _, system in found))
        comparisons = len(found) + len(names)
        for name in names:
            parts = [made for (_, system), made in found.items() if system == name and made]
            complete = len(parts) == number
            found[MEAN, name] = mean_difference(parts, comparisons) if complete else None
    return corrected(found)


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
        if sources := _sources(self.benchmark):
            parts.append(f"95% intervals {chance_over(sources, _items(self.benchmark))}.")
        found = [each for each in benchmark_differences(self.benchmark).values() if each]
        if any(each.source == "items" for each in found):
            parts.append("One seed says nothing of training's own chance.")
        if any(each.source != "items" for each in found):
            baseline = _baseline(self.benchmark)
            parts.append(f"* p < {SIGNIFICANT} against {baseline}, corrected for all comparisons.")
        if any(len(system.runs) > 1 for c in comparisons for system in c.systems):
            parts.append("± over seeds.")
        return " ".join(parts)


def _cell(
    benchmark: Benchmark, column: BenchmarkColumn, name: str, differences: Differences
) -> Cell:
    if column.comparison is None:
        estimate = _mean(benchmark, name)
        cell = Cell(NONE) if estimate is None else estimate_cell(estimate, column.score.digits)
        return _marked(cell, differences.get((MEAN, name)))
    system = _system(column.comparison, name)
    if system is None:
        return Cell(NONE)
    if not sound_runs(system):
        return Cell("diverged")
    cell = score_cell(system, column.score)
    if column.score.name != first_score(column.comparison).name:
        return cell
    return _marked(cell, differences.get((column.header, name)))


def _marked(cell: Cell, difference: Difference | None) -> Cell:
    """A cell with a star if its difference to the baseline is significant."""
    if difference is None or not difference.significant:
        return cell
    return Cell(f"{cell.figure} *", cell.details, significant=True)


def _mean(benchmark: Benchmark, name: str) -> Estimate | None:
    """The mean of the first score over data sets; None if a data set has none."""
    estimates = [
        system.estimates.get(first_score(comparison).name)
        for comparison in benchmark.comparisons.values()
        if (system := _system(comparison, name)) is not None
    ]
    known = [estimate for estimate in estimates if estimate is not None]
    return mean_estimate(known) if len(known) == len(benchmark.comparisons) else None


def _directions(columns: Sequence[BenchmarkColumn]) -> str:
    return directions({column.score.name: column.score for column in columns}.values())


def _best_mean(benchmark: Benchmark) -> str:
    score = shared_score(benchmark)
    if score is None:
        return ""
    over = f"mean {in_words(score.name)} over {_data_sets(len(benchmark.comparisons))}"
    means = {
        name: mean.value
        for name in _system_names(benchmark)
        if (mean := _mean(benchmark, name)) is not None
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
    if best == baseline:
        closest = others[0]
        judged = _judged(benchmark, closest, score.digits)
        return (
            f"No system is ahead of the {over} of the baseline {best}, {figure[best]}: the "
            f"closest, {closest}, has {figure[closest]}{judged}."
        )
    if baseline in others:
        judged = _judged(benchmark, best, score.digits)
        return (
            f"{best} is ahead in the {over}, {figure[best]}; the baseline {baseline} has "
            f"{figure[baseline]}{judged}."
        )
    return f"{best} is ahead in the {over}, {figure[best]}; the next, {others[0]}, has " + (
        f"{figure[others[0]]}."
    )


def _judged(benchmark: Benchmark, name: str, digits: int) -> str:
    """What the test says of the mean over data sets of a system and of the baseline."""
    found = benchmark_differences(benchmark).get((MEAN, name))
    if found is None:
        return ""
    interval = f"95% interval of the difference {signed(found.low, digits)} to "
    interval += signed(found.high, digits)
    if found.source == "items":
        judged = "a difference that single runs cannot tell from the chance of training"
        return f", {judged} ({interval})"
    figures = f"{interval}, {p_value(found.corrected_p_value)}"
    if found.significant:
        return f", a significant difference ({figures})"
    if found.detectable is not None:
        figures += f"; {would_be_found([found.detectable], digits)}"
    return f", a difference that may be chance ({figures})"


def _against_baseline(benchmark: Benchmark) -> str:
    """Says on how many data sets the tests find each system better or worse."""
    counted = {name: _Wins() for name in _system_names(benchmark) if name != _baseline(benchmark)}
    for (data_set, name), found in benchmark_differences(benchmark).items():
        if data_set == MEAN or found is None or found.source == "items":
            continue
        higher = first_score(benchmark.comparisons[data_set]).higher_is_better
        wins = counted[name]
        wins.tests += 1
        if found.significant:
            is_better = (found.value > 0) == higher
            wins.better += is_better
            wins.worse += not is_better
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


def _items(benchmark: Benchmark) -> str:
    """What the bootstrap draws, of all data sets."""
    return listed(list(dict.fromkeys(c.item_name for c in benchmark.comparisons.values())))


def _sources(benchmark: Benchmark) -> set[Source]:
    """Whose chance the intervals of all data sets hold."""
    return set[Source]().union(*map(interval_sources, benchmark.comparisons.values()))


def _data_sets(number: int) -> str:
    return f"{number} data set{'s' if number > 1 else ''}"


def _system_names(benchmark: Benchmark) -> list[str]:
    return list(dict.fromkeys(s.name for c in benchmark.comparisons.values() for s in c.systems))


def _system(comparison: Comparison, name: str) -> SystemSummary | None:
    return next((system for system in comparison.systems if system.name == name), None)


def _baseline(benchmark: Benchmark) -> str:
    return next(iter(benchmark.comparisons.values())).baseline
