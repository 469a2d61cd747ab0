"""How soon systems learn what the baseline does: the table and the figure of the report."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from markupsafe import Markup

from headwise.analysis.how_soon import by_training_loss, targets
from headwise.analysis.results import Comparison, SystemSummary, diverged, find_baseline
from headwise.report.cells import (
    NO_CELL,
    Cell,
    Column,
    Row,
    ScoreTable,
    cells_of,
    several_seeds,
    times_cell,
)
from headwise.report.formatting import NONE, count, listed, signed
from headwise.report.rendering import notes
from headwise.report.svg import drawing, looks, panel, to_svg


def how_soon_section(comparison: Comparison) -> dict[str, Any] | None:
    """Returns a table with notes, and a figure, on how soon systems learn and decode; or None."""
    found = [system.how_soon for system in comparison.systems]
    decoding = [each.decoding for each in found if each.decoding is not None]
    compares = any(each.pairs for each in found)

    def compared(header: str, cell: Callable[[SystemSummary], Cell]) -> Column[SystemSummary]:
        baseline = comparison.baseline
        return Column(header, lambda s: Cell("baseline") if s.name == baseline else cell(s))

    columns: list[Column[SystemSummary]] = []
    if compares:
        columns += [
            compared("Steps to the baseline's loss", _steps),
            compared("Time to the baseline's loss", _time),
            compared("Validation loss at equal training loss", _loss),
        ]
    if decoding:
        columns += [
            Column("Tokens per second", _tokens_per_second),
            Column("Time per token", _time_per_token),
        ]
    if not columns:
        return None
    rows = [Row(system.name, cells_of(columns, system)) for system in comparison.systems]
    in_report = notes(
        "of_how_soon",
        compares=compares,
        targets=_targets(comparison),
        several_seeds=several_seeds(comparison),
        decoding=decoding[0] if decoding else None,
    )
    figure = losses_against_each_other(comparison) if compares else None
    return {"table": ScoreTable(columns, rows, in_report), "figure": figure}


def _steps(system: SystemSummary) -> Cell:
    found = system.how_soon
    if not found.pairs:
        return NO_CELL
    cell = times_cell(found.steps, f"> {found.waited:.2f}×" if found.waited is not None else NONE)
    if found.reached == found.pairs:
        return cell
    if not found.reached:
        return Cell(cell.figure, ("never reached",))
    return Cell(cell.figure, (f"{found.reached} of {found.pairs} pairs reach it",))


def _time(system: SystemSummary) -> Cell:
    return times_cell(system.how_soon.time)


def _loss(system: SystemSummary) -> Cell:
    found = system.how_soon.equal_training_loss
    if found is None:
        return NO_CELL
    if found.low is None or found.high is None:
        return Cell(signed(found.value, 3))
    return Cell(signed(found.value, 3), (f"[{signed(found.low, 3)}, {signed(found.high, 3)}]",))


def _tokens_per_second(system: SystemSummary) -> Cell:
    if system.how_soon.decoding is None:
        return NO_CELL
    found = system.how_soon.decoding.tokens_per_second
    return Cell(count(found.value), (f"{count(found.low)}–{count(found.high)}",))


def _time_per_token(system: SystemSummary) -> Cell:
    decoding = system.how_soon.decoding
    return times_cell(decoding.relative_time if decoding else None)


def _targets(comparison: Comparison) -> str:
    baseline = find_baseline(comparison)
    found = [] if baseline is None else targets([run.history for run in baseline.runs])
    if not found:
        return ""
    return f", {listed([f'{goal.loss:.3f} at step {goal.step:,}' for _, goal in found])}"


def losses_against_each_other(comparison: Comparison) -> Markup | None:
    """Validation loss against training loss, a line per run; training goes to the right."""
    curves = {system.name: _curves(system) for system in comparison.systems}
    drawn = [points for of_system in curves.values() for points in of_system]
    if not drawn:
        return None
    # From the start of training lines would be long and steep; what matters lies at the end.
    widest = max(float(points[len(points) // 4, 0]) for points in drawn)
    with drawing():
        figure, axes = panel(290)
        for system in comparison.systems:
            look = looks(comparison)[system.name]
            for number, points in enumerate(curves[system.name]):
                style: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes}
                if number == 0:
                    every = max(1, len(points) // 8)
                    style |= {"marker": look.marker, "markersize": 5, "markevery": every}
                axes.plot(*points.T, linewidth=0.9 if number else 2, **style)
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
        return to_svg(figure, f"{label}{'; '.join(ends)}.")


def _curves(system: SystemSummary) -> list[np.ndarray]:
    found = [by_training_loss(run.history) for run in system.runs if not diverged(run)]
    return [points for points in found if len(points) > 1]


def _room(low: float, high: float) -> float:
    return 0.06 * (high - low) or 0.05 * max(1.0, math.fabs(high))
