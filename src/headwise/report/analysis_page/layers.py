"""The section on how alike layers decide."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

from markupsafe import Markup

from headwise.analysis.decisions.layers import StackLikeness
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.section import Looks, legend_of
from headwise.report.figures import line_of_each
from headwise.report.formatting import decimals, heading, place_names
from headwise.report.svg import HEAT, SERIES, WIDTH, HeatCell, draw_cells, drawing, panel, to_svg

_LETTERS = 12  # in a line of the name of a quantity
_MOST_NUMBERS = 18  # rows of a matrix whose cells have numbers; smaller ones could not be read

Matrix = Sequence[Sequence[float | None]]


def layers_section(runs: Sequence[RunAnalysis], looks: Looks) -> dict[str, Any] | None:
    """Matrices of each run and stack, and curves of all runs; None if no run has any."""
    found = [(run, stack) for run in runs for stack in run.layers]
    if not found:
        return None
    alike, plain = [], []
    for run, stack in found:
        title = _title(run, stack, several=len(runs) > 1)
        names = [name.removeprefix(f"{stack.stack} ") for name in place_names(stack.places)]
        if len(names) > 1:
            alike.append(_heat(title, stack.likeness, names, "Likeness"))
        if stack.first_unit is not None:
            names = names + [fill(each.level, _LETTERS) for each in stack.levels]
            plain.append(_heat(title, stack.first_unit, names, "Correlation"))
    levels = dict.fromkeys(each.level for _, stack in found for each in stack.levels)
    return {
        "alike": alike,
        "plain": plain,
        "levels": [(heading(level), _level_shares(found, level, looks)) for level in levels],
        "legend": legend_of(runs, looks),
        "sequences": any(stack.of == "sequences" for _, stack in found),
        "rows": [(_title(run, stack, several=True), stack.rows, stack.of) for run, stack in found],
    }


def _title(run: RunAnalysis, stack: StackLikeness, *, several: bool) -> str:
    stacks = {each.stack for each in run.layers}
    parts = [run.name] * several + [stack.stack] * (len(stacks) > 1)
    return ", ".join(parts) or heading(stack.stack or "layers")


def _heat(title: str, matrix: Matrix, names: list[str], what: str) -> tuple[Any, ...]:
    """A matrix of one stack of a run: title and figure, and the headers and rows of a table."""
    figure = layers_matrix(title, matrix, names, what)
    rows = [[name, *map(decimals, row)] for name, row in zip(names, matrix, strict=True)]
    return (title, figure), ["", *names], rows


def layers_matrix(title: str, matrix: Matrix, names: list[str], what: str) -> Markup:
    """Cells that are the stronger in colour the further from 0; what is negative is orange."""
    size = len(names)
    with drawing():
        figure, axes = panel(min(WIDTH, 70 + 34 * size))
        rows = [
            {
                column: HeatCell(
                    abs(value or 0.0),
                    decimals(value) if size <= _MOST_NUMBERS else "",
                    colour=HEAT if (value or 0.0) >= 0 else SERIES[2],
                )
                for column, value in enumerate(values)
            }
            for values in matrix
        ]
        font = 11 if size <= 8 else 9 if size <= 12 else 7
        draw_cells(axes, rows, size, fontsize=font, between_rows=1)
        upright = max(map(len, names)) * size > 50
        axes.set_xticks(range(size), names, rotation=90 if upright else 0)
        axes.set_yticks(range(size), names)
        said = [
            f"{names[i]} and {names[j]} {decimals(matrix[i][j])}"
            for i in range(size)
            for j in range(i)
        ]
        return to_svg(figure, f"{what} of layers, {title}: {'; '.join(said)}.")


def _level_shares(
    found: Sequence[tuple[RunAnalysis, StackLikeness]], level: str, looks: Looks
) -> Markup:
    """How much of a quantity the decisions of each layer say, a line for each run and stack."""
    order = list(dict.fromkeys(name for _, stack in found for name in place_names(stack.places)))
    lines, said = [], []
    for run, stack in found:
        shares = {each.level: each.shares for each in stack.levels}.get(level, [])
        points = {
            name: share
            for name, share in zip(place_names(stack.places), shares, strict=False)
            if share is not None
        }
        if points:
            lines.append((run.name, {order.index(name): share for name, share in points.items()}))
        of_run = f"{run.name}, " if len(looks) > 1 else ""
        said += [f"{of_run}{name} {decimals(share)}" for name, share in points.items()]
    values = [0.0, *(share for _, points in lines for share in points.values())]
    least, largest = min(values), max([0.1, *values])
    margin = 0.08 * (largest - least)
    return line_of_each(
        lines,
        looks,
        ("Layer", "Share of its variance"),
        f"How much the decisions say of {level}: {'; '.join(said)}.",
        (least - margin, largest + margin),
        ticks=[name.removeprefix("layer ") for name in order],
    )
