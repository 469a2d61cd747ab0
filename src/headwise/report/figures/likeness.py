"""The figures that show how alike heads are, each an `<svg>` element."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from headwise.report.figures.cells import HEAT_OPACITY, frame_cells
from headwise.report.figures.looks import Look
from headwise.report.figures.svg import HEAT, MUTED, drawing, panel, to_svg

_WITH_NUMBERS = 10  # up to so many heads the cells have room for a number
_SHADES = 24  # cells of one shade are one element, so that many heads make no large page

Matrix = Sequence[Sequence[float | None]]


def likeness_by_layer(
    lines: Mapping[str, Sequence[tuple[int, float]]],
    looks: Mapping[str, Look],
    identity: str,
    label: str,
) -> str:
    """A mean likeness over layers, a line for each run.

    Args:
        lines: name of a run to its layers and values.
        looks: name of a run to its look.
        identity: unique in the page.
        label: what is drawn, for screen readers; the values follow it.
    """
    with drawing(identity):
        figure, axes = panel(210)
        for name, points in lines.items():
            look = looks[name]
            style: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes}
            layers, values = [layer for layer, _ in points], [value for _, value in points]
            axes.plot(layers, values, marker=look.marker, markersize=7, **style)
        found = [value for points in lines.values() for _, value in points]
        axes.set_ylim(min([-0.03, *(1.1 * value for value in found)]), 1.03)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        axes.set_xlabel("Layer")
        said = "; ".join(
            f"{name} {', '.join(f'layer {layer} {value:.2f}' for layer, value in points)}"
            for name, points in lines.items()
        )
        return to_svg(figure, identity, f"{label}: {said}.")


def likeness_matrix(outputs: Matrix, attention: Matrix, identity: str, label: str) -> str:
    """Heads × heads: outputs below the diagonal, attention above; the stronger, the more alike.

    Args:
        outputs, attention: heads × heads; None where a pair has no likeness.
        identity: unique in the page.
        label: for screen readers.
    """
    heads = len(outputs)
    below = np.tril(np.ones((heads, heads), dtype=bool), -1)
    both = np.where(below, _numbers(outputs), _numbers(attention))
    np.fill_diagonal(both, np.nan)
    shades = np.round(np.nan_to_num(both.clip(0.0, 1.0)) * _SHADES).astype(int)
    with drawing(identity):
        figure, axes = panel(300, width=300)
        axes.set_aspect("equal")
        for shade in range(1, _SHADES + 1):
            places = np.argwhere(shades == shade).tolist()
            if places:
                cells = Path.make_compound_path(*(_cell(row, column) for row, column in places))
                opacity = HEAT_OPACITY * shade / _SHADES
                axes.add_patch(PathPatch(cells, facecolor=HEAT, alpha=opacity, linewidth=0))
        axes.plot([-0.5, heads - 0.5], [-0.5, heads - 0.5], color=MUTED, linewidth=1)
        if heads <= _WITH_NUMBERS:
            for row, column in np.argwhere(~np.eye(heads, dtype=bool)):
                value = both[row, column]
                text = "–" if np.isnan(value) else f"{abs(value):.2f}".removeprefix("0")
                text = f"−{text}" if value <= -0.005 else text
                axes.text(column, row, text, ha="center", va="center", fontsize=10)
            axes.set_xticks(range(heads))
            axes.set_yticks(range(heads))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        frame_cells(axes, heads, heads)
        return to_svg(figure, identity, label)


def _cell(row: int, column: int) -> Path:
    left, right, top, bottom = column - 0.48, column + 0.48, row - 0.48, row + 0.48
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    return Path(corners, closed=True)


def _numbers(matrix: Matrix) -> np.ndarray:
    return np.array([[np.nan if v is None else v for v in row] for row in matrix], dtype=float)
