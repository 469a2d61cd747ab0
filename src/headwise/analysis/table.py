"""The comparison as a table: the same figures for the report and for the terminal."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev

from rich import box
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
            "The interval says what another choice of test sentences could change, and so does p. "
            "What another random start of training could change, only several seeds tell."
        )
    if any(diverged(run) for system in comparison.systems for run in system.runs):
        notes.append("Runs that diverged are left out of these numbers.")
    return notes


def comparison_table(comparison: Comparison) -> Table:
    """The table for a terminal of 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.title = Text(comparison.title, style="bold")
    table.caption = Text(_caption(comparison))
    table.caption_justify = "left"
    table.add_column("System", min_width=9, max_width=20, overflow="fold")
    for header in _SHORT_HEADERS.values():
        table.add_column(header, justify="right", no_wrap=True)
    for row in table_rows(comparison):
        name = Text(row.name, style="bold")
        if row.note:
            name.append(f"\n{row.note}", style="not bold")
        cells = [
            Text("\n".join((cell.figure, *cell.details)))
            for header, cell in zip(HEADERS, row.cells, strict=True)
            if header in _SHORT_HEADERS
        ]
        table.add_row(name, *cells)
    return table


def _caption(comparison: Comparison) -> str:
    parts = ["BLEU with its 95% interval."]
    if any(valid_test(comparison, system) for system in comparison.systems):
        parts.append(f"* p < {SIGNIFICANT}, paired bootstrap.")
    if any(len(system.runs) > 1 for system in comparison.systems):
        parts.append("± over seeds; interval and test: first seed.")
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
