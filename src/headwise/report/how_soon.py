"""How soon systems learn what the baseline does: the table and the figure of the report."""

import math
from typing import Any

import numpy as np
from markupsafe import Markup

from headwise.analysis.how_soon import OverSeeds, by_training_loss, target
from headwise.analysis.results import Comparison, SystemSummary, diverged, find_baseline
from headwise.analysis.speed import DecodingSpeed
from headwise.report.cells import Cell, Column, Row, several_seeds, times_cell
from headwise.report.formatting import NONE, count, listed, signed
from headwise.report.svg import drawing, looks, panel, to_svg


def how_soon_section(comparison: Comparison, identity: str) -> dict[str, Any] | None:
    """Returns a table, its notes and a figure; None if nothing was compared, and nothing decoded."""
    found = [system.how_soon for system in comparison.systems if system.how_soon is not None]
    decoding = [each.decoding for each in found if each.decoding is not None]
    columns: list[Column[SystemSummary]] = []
    notes: list[str] = []
    figure = None
    if any(each.pairs for each in found):
        columns += _compared_columns(comparison)
        notes += _compared_notes(comparison)
        figure = losses_against_each_other(comparison, identity)
    if decoding:
        columns += _decoding_columns()
        notes.append(_decoding_note(decoding[0]))
    if not columns:
        return None
    rows = [
        Row(system.name, tuple(column.cell(system) for column in columns))
        for system in comparison.systems
    ]
    return {"columns": columns, "rows": rows, "notes": notes, "figure": figure}


def _compared_columns(comparison: Comparison) -> list[Column[SystemSummary]]:
    def cell_of(system: SystemSummary, made: Cell) -> Cell:
        return Cell("baseline") if system.name == comparison.baseline else made

    return [
        Column("Steps to the baseline's loss", lambda s: cell_of(s, _steps(s))),
        Column("Time to the baseline's loss", lambda s: cell_of(s, _time(s))),
        Column("Validation loss at equal training loss", lambda s: cell_of(s, _loss(s))),
    ]


def _decoding_columns() -> list[Column[SystemSummary]]:
    return [
        Column("Tokens per second", _tokens_per_second),
        Column("Time per token", _time_per_token),
    ]


def _steps(system: SystemSummary) -> Cell:
    found = system.how_soon
    if found is None or not found.pairs:
        return Cell(NONE)
    cell = _share(found.steps, f"> {found.waited:.2f}×" if found.waited is not None else NONE)
    if found.reached == found.pairs:
        return cell
    if not found.reached:
        return Cell(cell.figure, ("never reached",))
    return Cell(cell.figure, (f"{found.reached} of {found.pairs} pairs reach it",))


def _time(system: SystemSummary) -> Cell:
    return _share(system.how_soon.time if system.how_soon else None, NONE)


def _share(found: OverSeeds | None, otherwise: str) -> Cell:
    if found is None:
        return Cell(otherwise)
    if found.low is None or found.high is None:
        return Cell(f"{found.value:.2f}×")
    return Cell(f"{found.value:.2f}×", (f"{found.low:.2f}–{found.high:.2f}",))


def _loss(system: SystemSummary) -> Cell:
    found = system.how_soon.equal_training_loss if system.how_soon else None
    if found is None:
        return Cell(NONE)
    if found.low is None or found.high is None:
        return Cell(signed(found.value, 3))
    return Cell(signed(found.value, 3), (f"[{signed(found.low, 3)}, {signed(found.high, 3)}]",))


def _tokens_per_second(system: SystemSummary) -> Cell:
    if system.how_soon is None or system.how_soon.decoding is None:
        return Cell(NONE)
    found = system.how_soon.decoding.tokens_per_second
    return Cell(count(found.value), (f"{count(found.low)}–{count(found.high)}",))


def _time_per_token(system: SystemSummary) -> Cell:
    decoding = system.how_soon.decoding if system.how_soon else None
    return times_cell(decoding.relative_time if decoding else None)


def _compared_notes(comparison: Comparison) -> list[str]:
    notes = [
        "Steps: after which share of the baseline's steps the validation loss is down to the "
        f"baseline's lowest{_targets(comparison)}. Between two validations it is taken to fall "
        "along a straight line. Time: these steps times the time per step above; validations and "
        "the clock on the wall do not count.",
        "Validation loss at equal training loss: its mean difference to the baseline's, over all "
        "training losses that both have; below 0 a system generalises better for what it has "
        "fitted. The training loss is read off a straight line through the records around a "
        "validation, and holds dropout, label smoothing and auxiliary losses.",
    ]
    if several_seeds(comparison):
        notes.append(
            "Each run of a system is compared with each of the baseline. Below the figures stands "
            "the 95% interval over seeds; where some pairs do not reach the loss, the figure is "
            "the median over pairs and has none."
        )
    else:
        notes.append(
            "From one seed these figures have no interval: what another random start of training "
            "could change, only several seeds tell."
        )
    return notes


def _targets(comparison: Comparison) -> str:
    baseline = find_baseline(comparison)
    runs = [] if baseline is None else [run for run in baseline.runs if not diverged(run)]
    found = [goal for run in runs if (goal := target(run.history)) is not None]
    if not found:
        return ""
    return f", {listed([f'{goal.loss:.3f} at step {goal.step:,}' for goal in found])}"


def _decoding_note(speed: DecodingSpeed) -> str:
    return (
        "Decoding: all systems generate the same number of tokens from the same items of the test "
        "part, by the search of the recipe, with the model of the first seed; the median of "
        f"{speed.tokens_per_second.rounds} rounds, in which they take turns, with its 95% interval."
    )


def losses_against_each_other(comparison: Comparison, identity: str) -> Markup | None:
    """Validation loss against training loss, a line per run; training goes to the right."""
    curves = {system.name: _curves(system) for system in comparison.systems}
    drawn = [points for of_system in curves.values() for points in of_system]
    if not drawn:
        return None
    # From the start of training lines would be long and steep; what matters lies at the end.
    widest = max(float(points[len(points) // 4, 0]) for points in drawn)
    with drawing(identity):
        figure, axes = panel(290)
        for system in comparison.systems:
            look = looks(comparison)[system.name]
            for number, points in enumerate(curves[system.name]):
                axes.plot(
                    points[:, 0],
                    points[:, 1],
                    color=look.colour,
                    linestyle=look.dashes,
                    marker=look.marker if number == 0 else None,
                    markersize=5,
                    markevery=max(1, len(points) // 8),
                    linewidth=2 if number == 0 else 0.9,
                )
        shown = np.concatenate([points[points[:, 0] <= widest] for points in drawn])
        (left, low), (right, high) = shown.min(0), shown.max(0)
        axes.set_xlim(right + _room(left, right), left - _room(left, right))
        axes.set_ylim(low - _room(low, high), high + _room(low, high))
        axes.set_xlabel("Training loss, falling to the right")
        axes.set_ylabel("Validation loss")
        ends = [
            f"{name} {points[-1, 1]:.3f} at {points[-1, 0]:.3f}"
            for name, of_system in curves.items()
            for points in of_system[:1]
        ]
        label = "Validation loss of each system against its training loss. Last: "
        return to_svg(figure, identity, f"{label}{'; '.join(ends)}.")


def _curves(system: SystemSummary) -> list[np.ndarray]:
    found = [by_training_loss(run.history) for run in system.runs if not diverged(run)]
    return [points for points in found if len(points) > 1]


def _room(low: float, high: float) -> float:
    return 0.06 * (high - low) or 0.05 * max(1.0, math.fabs(high))
