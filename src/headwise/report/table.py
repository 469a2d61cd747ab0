"""The table of a comparison on one data set, with its notes and its verdict.

The report and the terminal have it. Further test sets have a table of their own.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import ConsoleRenderable
from rich.table import Table
from rich.text import Text

from headwise.analysis.how_soon import ended_without_a_loss
from headwise.analysis.results import (
    Benchmark,
    Comparison,
    RunResult,
    SystemSummary,
    diverged,
    find_baseline,
    first_score,
    sound_runs,
)
from headwise.analysis.statistics.estimates import SIGNIFICANT
from headwise.report.benchmark import benchmark_table
from headwise.report.cells import (
    NARROWEST_NAME,
    NO_CELL,
    Cell,
    Column,
    Fitted,
    Row,
    ScoreTable,
    all_scores,
    cells_of,
    column_widths,
    difference_cell,
    difference_sources,
    estimate_cell,
    interval_sources,
    over_seeds,
    score_cell,
    seeds_lost,
    several_seeds,
    terminal_table,
    terminal_tables,
    times_cell,
)
from headwise.report.formatting import bare_p_value, count, heading, listed
from headwise.report.rendering import notes, said
from headwise.tasks.scores import Score


def comparison_scores(comparison: Comparison) -> ScoreTable[SystemSummary]:
    """Returns the table of the systems of a comparison, with what stands below it."""
    columns = _columns(comparison)
    rows = [
        Row(s.name, cells_of(columns, s), s.description, s.matched, seeds_lost(s))
        for s in comparison.systems
    ]
    facts: dict[str, Any] = {
        "comparison": comparison,
        "scores": all_scores(comparison),
        "sources": interval_sources(comparison),
        "differences": [s.difference for s in comparison.systems if s.difference is not None],
        "several_seeds": several_seeds(comparison),
        "early_stops": early_stops(comparison),
    }
    has_diverged = any(diverged(run) for system in comparison.systems for run in system.runs)
    lengths = _macs_lengths(comparison)
    in_report = notes("of_comparison", **facts, lengths=lengths, has_diverged=has_diverged)
    return ScoreTable(columns, rows, in_report, said("below_comparison", **facts))


def _columns(comparison: Comparison) -> list[Column[SystemSummary]]:
    """Returns the columns: size, cost, loss, the first score with its difference, further scores.

    The difference is that to the baseline. A loss of tokens has a column for its perplexity too.
    """
    first, *further = all_scores(comparison)
    digits, name = _loss_digits(comparison), heading(first.name)
    columns = [
        Column("Parameters", lambda s: Cell(count(s.runs[0].parameters)), "Params", 3),
        *_trained_column(comparison),
        Column("MACs", lambda s: Cell(count(s.runs[0].macs)), "MACs", 2),
        Column("Time per step", lambda s: times_cell(s.relative_step_time), "Time", 4),
        Column("Validation loss", lambda s: _loss(s, digits), "Loss", 5),
    ]
    if comparison.loss_has_perplexity:
        # A score may be a perplexity as well, that of the test part.
        is_score = any(score.statistic == "perplexity" for score in (first, *further))
        header = "Validation perplexity" if is_score else "Perplexity"
        columns.append(Column(header, _perplexity))
    columns += [
        Column(name, lambda s: score_cell(s, first), name, math.inf),
        Column(
            f"{name} against baseline", lambda s: _difference(comparison, s), "Difference", math.inf
        ),
    ]
    columns += _test_columns(comparison)
    for number, score in enumerate(further):
        cell = partial(score_cell, score=score)
        name = heading(score.name)
        columns.append(Column(name, cell, name, 1 - number / len(further)))
    return columns


def _trained_column(comparison: Comparison) -> list[Column[SystemSummary]]:
    """Returns the number of parameters that learned, if some systems have frozen ones."""

    def cell(system: SystemSummary) -> Cell:
        run = system.runs[0]
        trained = run.trained_parameters
        return Cell(count(run.parameters if trained is None else trained))

    if all(s.runs[0].trained_parameters is None for s in comparison.systems):
        return []
    return [Column("Trained parameters", cell, "Trained", 3.5)]


def _test_columns(comparison: Comparison) -> list[Column[SystemSummary]]:
    """Returns the columns that say more of the tests than the difference itself does."""
    sources = difference_sources(comparison)
    columns: list[Column[SystemSummary]] = []
    if sources - {"items"}:
        columns = [
            Column("Detectable", lambda s: _detectable(comparison, s), "Detectable", 1.5),
            Column("p, not corrected", partial(_uncorrected, of_runs=False)),
        ]
    if "items" in sources:
        header = f"p of these runs, over test {comparison.item_name} alone"
        columns.append(Column(header, partial(_uncorrected, of_runs=True)))
    return columns


def _difference(comparison: Comparison, system: SystemSummary) -> Cell:
    """Returns the difference of the first score to the baseline's."""
    if system.name == comparison.baseline:
        return Cell("baseline")
    return difference_cell(system.difference, first_score(comparison).digits)


def _detectable(comparison: Comparison, system: SystemSummary) -> Cell:
    found = system.difference
    if found is None or found.detectable is None:
        return NO_CELL
    return Cell(f"{found.detectable:.{first_score(comparison).digits}f}")


def _uncorrected(system: SystemSummary, of_runs: bool) -> Cell:
    """The p-value of a difference between systems, or of one between single runs."""
    found = system.difference
    if found is None or (found.source == "items") != of_runs:
        return NO_CELL
    return Cell(bare_p_value(found.p_value))


def results_table(results: Comparison | Benchmark) -> ConsoleRenderable:
    """Returns the table for a terminal, of one data set or of several."""
    return benchmark_table(results) if isinstance(results, Benchmark) else comparison_table(results)


def comparison_table(comparison: Comparison) -> ConsoleRenderable:
    """Returns the table for a terminal; a narrow one shows only the columns of most worth."""
    return Fitted(partial(_fitting, comparison))


def _fitting(comparison: Comparison, width: int) -> Iterator[Table]:
    found = comparison_scores(comparison)
    columns, widths = found.columns, column_widths(found)
    shown = [number for number, column in enumerate(columns) if column.short]
    lost = []
    for number in sorted(shown, key=lambda number: columns[number].worth):
        needed = NARROWEST_NAME + sum(widths[n] for n in shown)
        if needed <= width or math.isinf(columns[number].worth):
            break
        shown.remove(number)
        lost.append(number)
    table = terminal_table(comparison.title, found, shown, width)
    too_wide = [columns[number].short for number in sorted(lost)]
    narrow = f" Too narrow for {listed(too_wide)}." if too_wide else ""
    table.caption = Text(f"{found.below}{narrow}".lstrip())
    yield table
    further = further_table(comparison)
    # A score and its difference stay together.
    for table in terminal_tables("Other test sets", further, width, together=2):
        table.caption = Text(further.below)
        yield table


def _macs_lengths(comparison: Comparison) -> str:
    lengths = comparison.systems[0].runs[0].macs_lengths
    if len(lengths) == 1:
        return f"a sequence of {next(iter(lengths.values())):,}"
    return " and ".join(f"{length:,} positions in the {s}" for s, length in lengths.items())


def _loss(system: SystemSummary, digits: int) -> Cell:
    if not sound_runs(system):
        return Cell("diverged")
    return over_seeds([run.validation_loss for run in sound_runs(system)], digits)


def _loss_digits(comparison: Comparison) -> int:
    """Decimals of the loss: three, or more if the loss is small, for three significant digits."""
    losses = [abs(run.validation_loss) for s in comparison.systems for run in sound_runs(s)]
    least = min(filter(None, losses), default=1.0)
    return min(8, max(3, 2 - math.floor(math.log10(least))))


def _perplexity(system: SystemSummary) -> Cell:
    values = [perplexity(run.validation_loss) for run in sound_runs(system)]
    return over_seeds(values, 2)


def perplexity(loss: float) -> float:
    """Returns the exponential of a loss; infinity if a float cannot hold it."""
    return math.exp(loss) if loss < 700 else math.inf


def early_stops(comparison: Comparison) -> list[str]:
    """Returns sentences on the runs that ended before their last step; none if all came to it."""
    reasons = {
        "for want of a better validation loss": False,
        "because the validation loss was no number": True,
    }
    sentences = []
    for why, is_lost in reasons.items():
        parts = []
        for system in comparison.systems:
            stopped = [
                run
                for run in system.runs
                if run.early_stop is not None and ended_without_a_loss(run.history) == is_lost
            ]
            if stopped:
                parts.append(f"{system.name} {listed([_when(system, run) for run in stopped])}")
        if parts:
            sentences.append(f"Stopped early, {why}: {'; '.join(parts)}.")
    return sentences


def _when(system: SystemSummary, run: RunResult) -> str:
    assert run.early_stop is not None
    seed = f" with seed {run.seed}" if len(system.runs) > 1 else ""
    best = run.early_stop.best_step
    since = f" (lowest at {best:,})" if best is not None else ""
    return f"at step {run.steps:,} of {run.early_stop.planned_steps:,}{since}{seed}"


# Further test sets: a column for each, with p-values corrected over all of them.


def further_table(comparison: Comparison) -> ScoreTable[SystemSummary]:
    """For each further test set the first score, its difference to the baseline, and others."""
    tests: dict[str, Sequence[Score]] = {}
    for system in comparison.systems:
        for run in system.runs:
            tests = {**run.tests, **tests}
    columns: list[Column[SystemSummary]] = []
    for test, (first, *others) in tests.items():
        difference = partial(
            _test_difference, baseline=comparison.baseline, test=test, digits=first.digits
        )
        columns += [
            replace(_test_column(test, first), short=test),
            Column(test, difference, test, detail="Difference"),
            *(_test_column(test, score) for score in others),
        ]
    scores = {score.name: score for scores in tests.values() for score in scores}
    differences = [
        test.difference
        for system in comparison.systems
        for test in system.tests.values()
        if test.difference is not None
    ]
    in_report = notes(
        "of_tests",
        scores=list(scores.values()),
        differences=differences,
        item_name=comparison.item_name,
    )
    rows = [Row(s.name, cells_of(columns, s), note=seeds_lost(s)) for s in comparison.systems]
    below = f"* p < {SIGNIFICANT}, corrected for the comparisons on all of these test sets."
    is_tested = any(difference.source != "items" for difference in differences)
    return ScoreTable(columns, rows, in_report, below if is_tested else "")


def _test_column(test: str, score: Score) -> Column[SystemSummary]:
    def cell(system: SystemSummary) -> Cell:
        estimate = system.tests[test].estimates.get(score.name) if test in system.tests else None
        of_runs = [run.tests.get(test, []) for run in sound_runs(system)]
        values = [each.value for of in of_runs for each in of if each.name == score.name]
        return NO_CELL if estimate is None else estimate_cell(estimate, score.digits, values)

    return Column(test, cell, detail=heading(score.name))


def _test_difference(system: SystemSummary, baseline: str, test: str, digits: int) -> Cell:
    if system.name == baseline:
        return Cell("baseline")
    found = system.tests[test].difference if test in system.tests else None
    return difference_cell(found, digits)


# Which system is best, whether its lead may be chance, what it costs, and how others do.


def verdict(comparison: Comparison) -> str:
    """Returns a sentence or two for the top of the report, made from the numbers alone."""
    score = first_score(comparison)
    sign = -1 if score.lower_is_better else 1
    baseline = find_baseline(comparison)
    goodness = {
        system.name: sign * system.estimates[score.name].value
        for system in comparison.systems
        if score.name in system.estimates
    }
    ranked = [s for s in comparison.systems if math.isfinite(goodness.get(s.name, math.nan))]
    # In a tie the baseline comes first: a system that is no better is not worth a change.
    ranked.sort(key=lambda s: (-goodness[s.name], s is not baseline))
    given: dict[str, Any] = {"comparison": comparison, "score": score}
    if not ranked:
        return said("of_none", **given, any_sound=any(map(sound_runs, comparison.systems)))
    best, *others = ranked
    given |= {"best": best, "sound": len(sound_runs(best))}
    if not others:
        sound = any(sound_runs(s) for s in comparison.systems if s is not best)
        return said("of_one", **given, others_sound=sound)
    if best is baseline:
        gap = goodness[best.name] - goodness[others[0].name]
        given |= {"groups": _of_others(comparison, others[0]), "clear": all(map(_differs, others))}
        return said("of_baseline", **given, second=others[0], gap=gap)
    lost, lead = "", math.nan
    if baseline is not None and baseline in others:
        lead = goodness[best.name] - goodness[baseline.name]
    elif baseline is not None:
        lost = "gave no result" if sound_runs(baseline) else "diverged"
    given |= {"groups": _of_others(comparison, best), "clear": _differs(best)}
    return said("of_challenger", **given, baseline=baseline, lead=lead, lost=lost)


def _differs(system: SystemSummary) -> bool:
    """Whether the tests tell a system from the baseline."""
    return system.difference is not None and system.difference.significant


def _of_others(comparison: Comparison, told: SystemSummary) -> dict[str, list[SystemSummary]]:
    """What the tests say of the systems that the first sentence does not name."""
    sign = -1 if first_score(comparison).lower_is_better else 1
    groups: dict[str, list[SystemSummary]] = {"better": [], "worse": [], "open": [], "lost": []}
    for system in comparison.systems:
        if system is told or system.name == comparison.baseline:
            continue
        found = system.difference
        if not sound_runs(system):
            groups["lost"].append(system)
        elif found is not None and found.significant:
            groups["better" if sign * found.value > 0 else "worse"].append(system)
        elif found is not None and found.detectable is not None:
            groups["open"].append(system)
    return groups
