"""The section of the page that says how alike layers decide, and how that goes with loudness."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from markupsafe import Markup

from headwise.analysis.decisions.layers import Matrix, StackLikeness
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.section import Section, legend
from headwise.report.formatting import decimals, heading
from headwise.report.place_names import place_names
from headwise.report.rendering import rendered
from headwise.report.svg import (
    HEAT,
    MUTED,
    SERIES,
    WIDTH,
    HeatCell,
    Look,
    draw_cells,
    drawing,
    panel,
    to_svg,
)

IDENTITY = "layers"
_LETTERS = 12  # in a line of the name of a quantity
_MOST_NUMBERS = 18  # rows of a matrix whose cells have numbers; smaller ones could not be read


def layers_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Matrices of each run and stack, and curves of all runs; None if no run has any."""
    found = [(run, stack) for run in runs for stack in run.layers]
    if not found:
        return None
    named = [(run.name, stack) for run, stack in found]
    alike, plain = [], []
    for number, (run, stack) in enumerate(found):
        title = _title(run, stack, several=len(runs) > 1)
        names = [name.removeprefix(f"{stack.stack} ") for name in place_names(stack.places)]
        prefix = f"{IDENTITY}-{number}"
        if len(names) > 1:
            alike.append(_heat(title, stack.likeness, names, f"{prefix}-likeness", "Likeness"))
        if stack.first_unit is not None:
            names += [fill(each.level, _LETTERS) for each in stack.levels]
            plain.append(_heat(title, stack.first_unit, names, f"{prefix}-r", "Correlation"))
    body = rendered(
        "analysis_page/layers.html.jinja",
        alike=alike,
        plain=plain,
        levels=[
            (
                heading(level),
                level_shares(named, level, looks, f"{IDENTITY}-level-{number}"),
            )
            for number, level in enumerate(
                dict.fromkeys(each.level for _, stack in found for each in stack.levels)
            )
        ],
        legend=legend(runs, looks, IDENTITY),
        sequences=any(stack.of == "sequences" for _, stack in found),
        rows=[(_title(run, stack, several=True), stack.rows, stack.of) for run, stack in found],
    )
    return Section(IDENTITY, "How alike the layers decide", body)


def _title(run: RunAnalysis, stack: StackLikeness, *, several: bool) -> str:
    stacks = {each.stack for each in run.layers}
    parts = [run.name] * several + [stack.stack] * (len(stacks) > 1)
    return ", ".join(parts) or heading(stack.stack or "layers")


def _heat(title: str, matrix: Matrix, names: list[str], identity: str, what: str) -> dict[str, Any]:
    """A matrix of one stack of a run, as a figure and a table."""
    figure = layers_matrix(title, matrix, names, identity, what)
    rows = [[decimals(value) for value in row] for row in matrix]
    return {"title": title, "figure": figure, "names": names, "rows": rows}


def layers_matrix(title: str, matrix: Matrix, names: list[str], identity: str, what: str) -> Markup:
    """Cells that are the stronger in colour the further from 0; what is negative is orange."""
    size = len(names)
    with drawing(identity):
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
        return to_svg(figure, identity, f"{what} of layers, {title}: {'; '.join(said)}.")


def level_shares(
    found: Sequence[tuple[str, StackLikeness]],
    level: str,
    looks: Mapping[str, Look],
    identity: str,
) -> Markup:
    """How much of a quantity the decisions of each layer say, a line for each run and stack."""
    order = list(dict.fromkeys(name for _, stack in found for name in place_names(stack.places)))
    said, values = [], [0.0]
    with drawing(identity):
        figure, axes = panel(230)
        for run, stack in found:
            names = place_names(stack.places)
            shares = {each.level: each.shares for each in stack.levels}.get(level, [])
            points = [
                (order.index(name), share)
                for name, share in zip(names, shares, strict=False)
                if share is not None
            ]
            if not points:
                continue
            look = looks[run]
            axes.plot(
                [at for at, _ in points],
                [share for _, share in points],
                **look.line,
            )
            values += [share for _, share in points]
            said += [
                f"{run + ', ' if len(looks) > 1 else ''}{order[at]} {decimals(share)}"
                for at, share in points
            ]
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.set_xticks(range(len(order)), [name.removeprefix("layer ") for name in order])
        axes.set_xlim(-0.4, len(order) - 0.6)
        least, largest = min(values), max([0.1, *values])
        margin = 0.08 * (largest - least)
        axes.set_ylim(least - margin, largest + margin)
        axes.set_xlabel("Layer")
        axes.set_ylabel("Share of its variance")
        return to_svg(
            figure, identity, f"How much the decisions say of {level}: {'; '.join(said)}."
        )
