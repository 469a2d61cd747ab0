"""The table of the same systems on several data sets, with its notes and its verdict."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rich.console import ConsoleRenderable, Group
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
    Difference,
    Estimate,
    Source,
    corrected,
    mean_difference,
    mean_estimate,
)
from headwise.report.cells import (
    NO_CELL,
    Cell,
    Column,
    Fitted,
    Row,
    ScoreTable,
    all_scores,
    cells_of,
    estimate_cell,
    interval_sources,
    score_cell,
    seeds_lost,
    several_seeds,
    terminal_tables,
)
from headwise.report.formatting import heading, listed
from headwise.report.rendering import notes, said
from headwise.tasks.scores import Score

MEAN = "Mean"
Differences = dict[tuple[str, str], Difference | None]  # by data set, or MEAN, and system


def benchmark_scores(benchmark: Benchmark) -> ScoreTable[str]:
    """Returns the table of the systems of a benchmark, with what stands below it."""
    differences = benchmark_differences(benchmark)
    columns = _columns(benchmark, differences)
    comparisons = benchmark.comparisons.values()
    runs = [run for c in comparisons for system in c.systems for run in system.runs]
    facts: dict[str, Any] = {
        "scores": _shown_scores(benchmark),
        "sources": set[Source]().union(*map(interval_sources, comparisons)),
        "item_name": listed(list(dict.fromkeys(c.item_name for c in comparisons))),
        "differences": [each for each in differences.values() if each],
        "several_seeds": any(map(several_seeds, comparisons)),
    }
    has_mean, has_diverged = shared_score(benchmark) is not None, any(map(diverged, runs))
    return ScoreTable(
        columns,
        [_row(benchmark, columns, name) for name in _system_names(benchmark)],
        notes("of_benchmark", **facts, has_mean=has_mean, has_diverged=has_diverged),
        said("below_benchmark", **facts, baseline=_baseline(benchmark)),
    )


def _columns(benchmark: Benchmark, differences: Differences) -> list[Column[str]]:
    """Returns a column for each score of each data set, whose cells are by names of systems.

    The mean over data sets comes last, if all data sets rank systems by the same score.
    """
    various = len(_shown_scores(benchmark)) > 1

    def column(header: str, score: Score, cell: Callable[[str], Cell]) -> Column[str]:
        return Column(header, cell, short=header, detail=heading(score.name) * various)

    columns = [
        column(data_set, score, partial(_cell, comparison, score, data_set, differences))
        for data_set, comparison in benchmark.comparisons.items()
        for score in all_scores(comparison)
    ]
    if (score := shared_score(benchmark)) is not None:
        columns.append(column(MEAN, score, partial(_mean_cell, benchmark, score, differences)))
    return columns


def shared_score(benchmark: Benchmark) -> Score | None:
    """Returns the first score of all data sets; None for one data set, or if they differ."""
    firsts = [first_score(comparison) for comparison in benchmark.comparisons.values()]
    kinds = {(score.name, score.lower_is_better) for score in firsts}
    return firsts[0] if len(kinds) == 1 < len(firsts) else None


def _row(benchmark: Benchmark, columns: list[Column[str]], name: str) -> Row:
    found = {
        data_set: system
        for data_set, comparison in benchmark.comparisons.items()
        if (system := _system(comparison, name)) is not None
    }
    matched = {data_set: system.matched for data_set, system in found.items()}
    lost = {data_set: seeds_lost(system) for data_set, system in found.items()}
    of_data_sets = [
        "; ".join(f"{data_set}: {said}" for data_set, said in of.items() if said)
        for of in (matched, lost)
    ]
    description = next(iter(found.values())).description
    return Row(name, cells_of(columns, name), description, *of_data_sets)


def benchmark_verdict(benchmark: Benchmark) -> str:
    """Says which system is best on average, and on how many data sets each beats the baseline."""
    score, baseline = shared_score(benchmark), _baseline(benchmark)
    differences = benchmark_differences(benchmark)
    means = {
        name: mean.value
        for name in _system_names(benchmark)
        if score is not None and (mean := _mean(benchmark, name)) is not None
    }
    sign = 1 if score is not None and score.lower_is_better else -1
    # In a tie the baseline comes first.
    ranked = sorted(means, key=lambda name: (sign * means[name], name != baseline))
    judged = next((name for name in ranked if name != baseline), "")
    return said(
        "of_benchmark",
        number=len(benchmark.comparisons),
        names=_system_names(benchmark),
        baseline=baseline,
        score=score,
        ranked=ranked,
        means={name: f"{mean:.{score.digits}f}" for name, mean in means.items() if score},
        found=differences.get((MEAN, judged)),
        wins=_wins(benchmark, differences),
    )


def _wins(benchmark: Benchmark, differences: Differences) -> dict[str, tuple[int, int, int]]:
    """System to how many tests find it better, how many worse, and how many there are."""
    wins: dict[str, tuple[int, int, int]] = {}
    for (data_set, name), found in differences.items():
        if data_set != MEAN and found is not None and found.source != "items":
            lower = first_score(benchmark.comparisons[data_set]).lower_is_better
            is_better = (found.value < 0) == lower
            better, worse, tests = wins.get(name, (0, 0, 0))
            better += found.significant and is_better
            worse += found.significant and not is_better
            wins[name] = better, worse, tests + 1
    return wins


def benchmark_differences(benchmark: Benchmark) -> Differences:
    """Returns the differences to the baseline, with p-values corrected over all of the table."""
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
    return Fitted(partial(_in_pieces, benchmark))


def _in_pieces(benchmark: Benchmark, width: int) -> Iterator[ConsoleRenderable]:
    found = benchmark_scores(benchmark)
    first, *others = terminal_tables(benchmark.title, found, width)
    shown: list[ConsoleRenderable] = [first]
    for table in others:
        table.title = None
        shown += [Text(), table]
    yield Group(*shown, Text(found.below, style="table.caption"))


def _cell(
    comparison: Comparison, score: Score, data_set: str, differences: Differences, name: str
) -> Cell:
    system = _system(comparison, name)
    if system is None:
        return NO_CELL
    if not sound_runs(system):
        return Cell("diverged")
    cell = score_cell(system, score)
    if score.name != first_score(comparison).name:
        return cell
    return _marked(cell, differences.get((data_set, name)))


def _mean_cell(benchmark: Benchmark, score: Score, differences: Differences, name: str) -> Cell:
    estimate = _mean(benchmark, name)
    cell = NO_CELL if estimate is None else estimate_cell(estimate, score.digits)
    return _marked(cell, differences.get((MEAN, name)))


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


def _shown_scores(benchmark: Benchmark) -> list[Score]:
    """The scores of all data sets, each once."""
    scores = [score for each in benchmark.comparisons.values() for score in all_scores(each)]
    return list({score.name: score for score in scores}.values())


def _system_names(benchmark: Benchmark) -> list[str]:
    return list(dict.fromkeys(s.name for c in benchmark.comparisons.values() for s in c.systems))


def _system(comparison: Comparison, name: str) -> SystemSummary | None:
    return next((system for system in comparison.systems if system.name == name), None)


def _baseline(benchmark: Benchmark) -> str:
    return next(iter(benchmark.comparisons.values())).baseline
