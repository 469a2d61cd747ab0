"""The comparison as a table: the same figures for the report and for the terminal."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev

from rich import box
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.table import Table
from rich.text import Text

from headwise.analysis.results import Comparison, RunResult, SystemSummary
from headwise.analysis.verdict import (
    SIGNIFICANT,
    count,
    diverged,
    p_value,
    signed,
    sound_runs,
    valid_test,
)

NONE = "–"


@dataclass(frozen=True)
class Cell:
    """A figure, and in smaller type what belongs to it: a deviation, an interval, a p-value."""

    figure: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One system."""

    name: str
    description: str
    matched: str  # how its size was matched, or empty
    is_baseline: bool
    note: str  # what went wrong, or empty
    significant: bool
    parameters: Cell
    macs: Cell
    step_time: Cell
    loss: Cell
    perplexity: Cell
    bleu: Cell
    difference: Cell
    chrf: Cell

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The figures, in the order of `HEADERS`."""
        return (
            self.parameters,
            self.macs,
            self.step_time,
            self.loss,
            self.perplexity,
            self.bleu,
            self.difference,
            self.chrf,
        )


HEADERS = (
    "Parameters",
    "MACs",
    "Time per step",
    "Validation loss",
    "Perplexity",
    "BLEU",
    "BLEU against baseline",
    "chrF",
)
# A terminal of 80 columns holds these; perplexity is but another way to write the loss.
_SHORT_HEADERS = {
    "Parameters": "Params",
    "MACs": "MACs",
    "Time per step": "Time",
    "Validation loss": "Loss",
    "BLEU": "BLEU",
    "BLEU against baseline": "Difference",
    "chrF": "chrF",
}
# What a narrower terminal does without, in this order.
_GIVEN_UP_FIRST = ("chrF", "MACs", "Parameters", "Time per step", "Validation loss")
_NARROWEST_NAME = 9
_PADDING = (0, 1, 0, 0)
_GAP = 2  # the padding and the table's own line between columns


def table_rows(comparison: Comparison) -> list[Row]:
    """The figures of every system as text."""
    return [_row(comparison, system) for system in comparison.systems]


def table_notes(comparison: Comparison) -> list[str]:
    """What a reader must know to read the table rightly, a sentence or two each."""
    first = comparison.systems[0].runs[0]
    source, target = first.macs_lengths
    notes = [
        f"MACs: multiply-accumulates of one forward pass over {source} source and {target} target "
        "tokens. Time per step: forward and backward, baseline = 1.00×. Loss: nats per token, on "
        "the validation part; perplexity is its exponential. BLEU and chrF: on the test part, "
        "higher is better; in brackets the 95% interval."
    ]
    several = any(len(system.runs) > 1 for system in comparison.systems)
    tests = [t for system in comparison.systems if (t := valid_test(comparison, system))]
    if several:
        notes.append(
            "Figures with ± are the mean and standard deviation over seeds. The interval and the "
            "test against the baseline are those of the first seed."
        )
    if any(system.matched for system in comparison.systems):
        notes.append(
            "The sizes under a system's name were chosen by --match parameters: they give it "
            "about as many parameters as the baseline has."
        )
    if tests:
        notes.append(
            f"* marks a significant difference, p < {SIGNIFICANT} in a paired bootstrap over the "
            "test sentences. p is the probability of a difference this large if both systems were "
            "equally good."
        )
    if len(tests) > 1:
        notes.append(f"The p-values are not corrected for making {len(tests)} comparisons.")
    if not several:
        notes.append(
            "The interval says what another choice of test sentences could change"
            f"{', and so does p' if tests else ''}. What another random start of training could "
            "change, only several seeds tell."
        )
    if any(diverged(run) for system in comparison.systems for run in system.runs):
        notes.append("Runs that diverged are left out of these numbers.")
    return notes


def comparison_table(comparison: Comparison) -> ConsoleRenderable:
    """The table for a terminal; one too narrow for all figures is shown those that matter most."""
    return _FittingTable(comparison)


class _FittingTable:
    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = table_rows(self.comparison)
        headers = list(_SHORT_HEADERS)
        for header in _GIVEN_UP_FIRST:
            if _width(rows, headers) <= options.max_width:
                break
            headers.remove(header)
        yield self._table(rows, headers)

    def _table(self, rows: list[Row], headers: list[str]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=_PADDING, pad_edge=False, show_edge=False)
        table.title = Text(self.comparison.title, style="bold")
        table.caption = Text(_caption(self.comparison, headers))
        table.caption_justify = "left"
        table.add_column("System", min_width=_NARROWEST_NAME, max_width=20, overflow="fold")
        for header in headers:
            table.add_column(_SHORT_HEADERS[header], justify="right", no_wrap=True)
        for row in rows:
            name = Text(row.name, style="bold")
            if row.note:
                name.append(f"\n{row.note}", style="not bold")
            table.add_row(name, *(Text("\n".join(_lines(row, header))) for header in headers))
        return table


def _lines(row: Row, header: str) -> tuple[str, ...]:
    cell = row.cells[HEADERS.index(header)]
    return (cell.figure, *cell.details)


def _width(rows: list[Row], headers: list[str]) -> int:
    """Columns of text that the table takes at least."""
    total = _NARROWEST_NAME
    for header in headers:
        lines = [_SHORT_HEADERS[header], *(line for row in rows for line in _lines(row, header))]
        total += _GAP + max(map(len, lines))
    return total


def _caption(comparison: Comparison, headers: list[str]) -> str:
    parts = ["BLEU with its 95% interval."]
    if any(valid_test(comparison, system) for system in comparison.systems):
        parts.append(f"* p < {SIGNIFICANT}, paired bootstrap.")
    if any(len(system.runs) > 1 for system in comparison.systems):
        parts.append("± over seeds; interval and test: first seed.")
    if any(system.matched for system in comparison.systems):
        parts.append("Sizes matched in parameters.")
    if lost := [short for header, short in _SHORT_HEADERS.items() if header not in headers]:
        parts.append(f"Too narrow for {', '.join(lost)}.")
    return " ".join(parts)


def _row(comparison: Comparison, system: SystemSummary) -> Row:
    is_baseline = system.name == comparison.baseline
    test = valid_test(comparison, system)
    significant = test is not None and test.p_value < SIGNIFICANT
    difference = Cell(NONE)
    if is_baseline:
        difference = Cell("baseline")
    elif test is not None:
        mark = " *" if significant else ""
        difference = Cell(signed(test.bleu_difference) + mark, (p_value(test.p_value),))
    first = system.runs[0]
    interval: tuple[str, ...] = ()
    if not diverged(first) and math.isfinite(first.score.bleu_low + first.score.bleu_high):
        interval = (f"[{first.score.bleu_low:.1f}, {first.score.bleu_high:.1f}]",)
    bleu = _mean(system, lambda run: run.score.bleu, 1)
    loss = _mean(system, lambda run: run.validation_loss, 3)
    return Row(
        name=system.name,
        description=system.description,
        matched=system.matched,
        is_baseline=is_baseline,
        note=_note(system),
        significant=significant,
        parameters=Cell(count(first.parameters)),
        macs=Cell(count(first.macs)),
        step_time=Cell(_step_time(system)),
        loss=loss if sound_runs(system) else Cell("diverged"),
        perplexity=_mean(system, lambda run: perplexity(run.validation_loss), 2),
        bleu=Cell(bleu.figure, bleu.details + interval),
        difference=difference,
        chrf=_mean(system, lambda run: run.score.chrf, 1),
    )


def _step_time(system: SystemSummary) -> str:
    ratio = system.relative_step_time
    return NONE if ratio is None or not math.isfinite(ratio) else f"{ratio:.2f}×"


def _note(system: SystemSummary) -> str:
    lost = len(system.runs) - len(sound_runs(system))
    if not lost or len(system.runs) == 1:
        return ""
    return f"{lost} of {len(system.runs)} seeds diverged"


def _mean(system: SystemSummary, figure: Callable[[RunResult], float], digits: int) -> Cell:
    """Mean and standard deviation over the seeds that did not diverge."""
    values = [value for run in sound_runs(system) if math.isfinite(value := figure(run))]
    if not values:
        return Cell(NONE)
    text = f"{fmean(values):.{digits}f}" if fmean(values) < 1e5 else f"{fmean(values):.1e}"
    return Cell(text, (f"± {stdev(values):.{digits}f}",) if len(values) > 1 else ())


def perplexity(loss: float) -> float:
    """e to the loss, and infinity where that is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf
