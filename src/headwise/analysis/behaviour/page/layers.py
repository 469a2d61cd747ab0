"""The section of the page that says how alike layers decide, and how that goes with loudness."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from markupsafe import Markup
from matplotlib.patches import Rectangle

from headwise.analysis.behaviour.page.names import place_names
from headwise.analysis.behaviour.page.places import legend
from headwise.analysis.behaviour.page.section import Section
from headwise.analysis.behaviour.questions.layers import Matrix, StackLikeness
from headwise.analysis.behaviour.results import RunAnalysis
from headwise.analysis.figures.heads import HEAT_OPACITY
from headwise.analysis.figures.looks import Look
from headwise.analysis.figures.svg import (
    GRID,
    HEAT,
    MUTED,
    SERIES,
    SURFACE,
    WIDTH,
    drawing,
    panel,
    to_svg,
)
from headwise.analysis.formatting import heading, hundredths
from headwise.analysis.rendering import rendered

IDENTITY = "layers"
_LETTERS = 12  # in a line of the name of a quantity
_MOST_NUMBERS = 18  # rows of a matrix whose cells have numbers; smaller ones could not be read


@dataclass(frozen=True)
class _Heat:
    """A matrix of one stack of a run, as a figure and a table."""

    title: str
    figure: Markup
    names: list[str]
    rows: list[list[str]]


def layers_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """Matrices of each run and stack, and curves of all runs; None if no run has any."""
    found = [(run, stack) for run in runs for stack in run.layers]
    if not found:
        return None
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
        "behaviour/page/layers.html.jinja",
        alike=alike,
        plain=plain,
        levels=[
            (heading(level), Markup(_levels(found, level, looks, f"{IDENTITY}-level-{number}")))
            for number, level in enumerate(
                dict.fromkeys(each.level for _, stack in found for each in stack.levels)
            )
        ],
        legend=legend(runs, looks, IDENTITY),
        sequences=any(stack.of == "sequences" for _, stack in found),
        rows=[(_title(run, stack, several=True), stack.rows, stack.of) for run, stack in found],
    )
    return Section(IDENTITY, "How alike the layers decide", Markup(body))


def _title(run: RunAnalysis, stack: StackLikeness, *, several: bool) -> str:
    stacks = {each.stack for each in run.layers}
    parts = [run.name] * several + [stack.stack] * (len(stacks) > 1)
    return ", ".join(parts) or heading(stack.stack or "layers")


def _heat(title: str, matrix: Matrix, names: list[str], identity: str, what: str) -> _Heat:
    figure = Markup(_matrix(title, matrix, names, identity, what))
    return _Heat(title, figure, names, [[hundredths(value) for value in row] for row in matrix])


def _matrix(title: str, matrix: Matrix, names: list[str], identity: str, what: str) -> str:
    """Cells that are the stronger in colour the further from 0; what is negative is orange."""
    size = len(names)
    with drawing(identity):
        figure, axes = panel(min(WIDTH, 70 + 34 * size))
        for row, values in enumerate(matrix):
            for column, value in enumerate(values):
                strength = HEAT_OPACITY * min(1.0, abs(value or 0.0))
                colour = HEAT if (value or 0.0) >= 0 else SERIES[2]
                axes.add_patch(
                    Rectangle((column - 0.5, row - 0.5), 1, 1, alpha=strength, facecolor=colour)
                )
                if size <= _MOST_NUMBERS:
                    font = 11 if size <= 8 else 9 if size <= 12 else 7
                    axes.text(
                        column, row, hundredths(value), ha="center", va="center", fontsize=font
                    )
        lines = [each + 0.5 for each in range(size - 1)]
        axes.vlines(lines, -0.5, size - 0.5, SURFACE, lw=1)
        axes.hlines(lines, -0.5, size - 0.5, SURFACE, lw=1)
        axes.set_xlim(-0.5, size - 0.5)
        axes.set_ylim(size - 0.5, -0.5)
        axes.grid(visible=False)
        for side in axes.spines.values():
            side.set(visible=True, color=GRID)
        upright = max(map(len, names)) * size > 50
        axes.set_xticks(range(size), names, rotation=90 if upright else 0)
        axes.set_yticks(range(size), names)
        axes.tick_params(length=0)
        said = [
            f"{names[i]} and {names[j]} {hundredths(matrix[i][j])}"
            for i in range(size)
            for j in range(i)
        ]
        return to_svg(figure, identity, f"{what} of layers, {title}: {'; '.join(said)}.")


def _levels(
    found: Sequence[tuple[RunAnalysis, StackLikeness]],
    level: str,
    looks: Mapping[str, Look],
    identity: str,
) -> str:
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
            look = looks[run.name]
            axes.plot(
                [at for at, _ in points],
                [share for _, share in points],
                color=look.colour,
                marker=look.marker,
                linestyle=look.dashes,
            )
            values += [share for _, share in points]
            said += [
                f"{run.name + ', ' if len(looks) > 1 else ''}{order[at]} {hundredths(share)}"
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
