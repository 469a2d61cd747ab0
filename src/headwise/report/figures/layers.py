"""The figures of how alike layers decide, each an `<svg>` element."""

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle

from headwise.analysis.decisions.layers import Matrix, StackLikeness
from headwise.report.figures.cells import HEAT_OPACITY, divide_cells, frame_cells
from headwise.report.figures.looks import Look
from headwise.report.figures.svg import (
    HEAT,
    MUTED,
    SERIES,
    WIDTH,
    drawing,
    panel,
    to_svg,
)
from headwise.report.formatting import decimals
from headwise.report.place_names import place_names

_MOST_NUMBERS = 18  # rows of a matrix whose cells have numbers; smaller ones could not be read


def layers_matrix(title: str, matrix: Matrix, names: list[str], identity: str, what: str) -> str:
    """Cells that are the stronger in colour the further from 0; what is negative is orange.

    Args:
        title: of the matrix, for screen readers.
        matrix: of one stack, square; None where there is no number.
        names: of rows and columns.
        identity: unique in the page.
        what: the numbers are, for screen readers.
    """
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
                    axes.text(column, row, decimals(value), ha="center", va="center", fontsize=font)
        divide_cells(axes, size, size, between_rows=1)
        frame_cells(axes, size, size)
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
) -> str:
    """How much of a quantity the decisions of each layer say, a line for each run and stack.

    Args:
        found: stacks, each with the name of its run.
        level: name of the quantity.
        looks: of the runs, by name.
        identity: unique in the page.
    """
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
                color=look.colour,
                marker=look.marker,
                linestyle=look.dashes,
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
