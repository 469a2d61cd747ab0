"""The sections on how alike heads are, and how alike layers decide."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from headwise.analysis.decisions.layers import StackLikeness
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.section import Figures, Looks, legend_of
from headwise.report.figures import line_of_each
from headwise.report.formatting import NONE, SITES, decimals, heading, place_name, place_names
from headwise.report.svg import (
    HEAT,
    HEAT_OPACITY,
    MUTED,
    SERIES,
    WIDTH,
    HeatCell,
    are_numbered,
    draw_cells,
    drawing,
    frame_cells,
    number_units,
    panel,
    to_svg,
)

MEASURES = {"outputs": "what heads say", "attention": "what heads look at"}
_SHADES = 24  # cells of one shade are one element, so that many heads make no large page
_LETTERS = 12  # in a line of the name of a quantity
_MOST_NUMBERS = 18  # rows of a matrix whose cells have numbers; smaller ones could not be read

Matrix = Sequence[Sequence[float | None]]


def likeness_section(runs: Sequence[RunAnalysis], looks: Looks) -> dict[str, Any] | None:
    """Returns what is shown of heads; None if no run has attentions of several heads."""
    having = [run for run in runs if run.likeness is not None]
    if not having:
        return None
    found = [(run.name, each) for run in having if run.likeness for each in run.likeness.systems]
    return {
        "means": found,
        "several_systems": len({system.system for _, system in found}) > 1,
        "legend": legend_of(having, looks),
        "panels": _panels(having, looks),
        "details": [(run.name, _details(run)) for run in having],
    }


def _panels(runs: Sequence[RunAnalysis], looks: Looks) -> Figures:
    """Title and figure for each site and measure."""
    modules = {run.name: run.likeness.modules for run in runs if run.likeness}
    sites = dict.fromkeys(module.where.site for of_run in modules.values() for module in of_run)
    panels = []
    for site in sites:
        for measure, meaning in MEASURES.items():
            lines = {}
            for run, of_run in modules.items():
                points = [
                    (module.where.layer, value)
                    for module in of_run
                    if module.where.site == site
                    and (value := getattr(module, f"mean_{measure}")) is not None
                ]
                if points:
                    lines[run] = dict(sorted(points))
            if not lines:
                continue
            title = f"{SITES.get(site, 'Attention')}: {meaning}"
            said = "; ".join(
                f"{name} {', '.join(f'layer {at} {value:.2f}' for at, value in points.items())}"
                for name, points in lines.items()
            )
            lowest = min([-0.03, *(1.1 * v for points in lines.values() for v in points.values())])
            label = f"{title}: {said}."
            svg = line_of_each(lines.items(), looks, ("Layer", ""), label, (lowest, 1.03))
            panels.append((title, svg))
    return panels


def _details(run: RunAnalysis) -> list[dict[str, Any]]:
    """Each attention of a run, with its most alike pairs and its matrices drawn."""
    details = []
    for module in run.likeness.modules if run.likeness else []:
        alike = {
            measure: _pair(getattr(module, f"most_alike_{measure}"), getattr(module, measure))
            for measure in MEASURES
        }
        place = place_name(module.where)
        label = f"{place}, {len(module.outputs)} {module.unit}s, most alike: " + "; ".join(
            f"in {MEASURES[measure]} {pair}" for measure, pair in alike.items()
        )
        svg = heads_matrix(module.outputs, module.attention, label)
        details.append({"figure": (place, svg), "likeness": module, "alike": alike})
    return details


def _pair(pair: tuple[int, int] | None, matrix: Matrix) -> str:
    if pair is None:
        return NONE
    first, second = pair
    return f"{first} and {second} ({decimals(matrix[first][second])})"


def heads_matrix(outputs: Matrix, attention: Matrix, label: str) -> Markup:
    """Heads × heads: outputs below the diagonal, attention above; the stronger, the more alike."""
    heads = len(outputs)
    below = np.tril(np.ones((heads, heads), dtype=bool), -1)
    both = np.where(below, _numbers(outputs), _numbers(attention))
    np.fill_diagonal(both, np.nan)
    shades = np.round(np.nan_to_num(both.clip(0.0, 1.0)) * _SHADES).astype(int)
    with drawing():
        figure, axes = panel(300, width=300)
        axes.set_aspect("equal")
        for shade in range(1, _SHADES + 1):
            places = np.argwhere(shades == shade).tolist()
            if places:
                cells = Path.make_compound_path(*(_cell(row, column) for row, column in places))
                opacity = HEAT_OPACITY * shade / _SHADES
                axes.add_patch(PathPatch(cells, facecolor=HEAT, alpha=opacity, linewidth=0))
        axes.plot([-0.5, heads - 0.5], [-0.5, heads - 0.5], color=MUTED, linewidth=1)
        if are_numbered(heads):
            for row, column in np.argwhere(~np.eye(heads, dtype=bool)):
                text = decimals(both[row, column]).replace("0.", ".", 1)
                axes.text(column, row, text, ha="center", va="center", fontsize=10)
        number_units(axes.xaxis, heads)
        number_units(axes.yaxis, heads)
        frame_cells(axes, heads, heads)
        return to_svg(figure, label)


def _cell(row: int, column: int) -> Path:
    left, right, top, bottom = column - 0.48, column + 0.48, row - 0.48, row + 0.48
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    return Path(corners, closed=True)


def _numbers(matrix: Matrix) -> np.ndarray:
    return np.array([[np.nan if v is None else v for v in row] for row in matrix], dtype=float)


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
