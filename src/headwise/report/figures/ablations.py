"""The figures of what ablations cost, each an `<svg>` element."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from headwise.report.figures.cells import HEAT_OPACITY, divide_cells, frame_cells
from headwise.report.figures.looks import Look
from headwise.report.figures.svg import HEAT, MUTED, SURFACE, TEXT, drawing, panel, to_svg
from headwise.report.formatting import signed

_LETTERS = 30  # of the name of a row
_WIDTH = 470
_MOST_NUMBERED = 10  # units whose cells have room for a number


class Dot(NamedTuple):
    """A row of the plot of differences."""

    name: str
    difference: float
    low: float | None
    high: float | None
    significant: bool


class Cell(NamedTuple):
    """What it costs to do without one unit of one layer."""

    cost: float
    significant: bool


def differences_by_ablation(
    dots: Sequence[Dot], look: Look, axis: str, digits: int, identity: str
) -> str:
    """The difference of each ablation with its 95% interval, and zero; filled if significant.

    Args:
        dots: a row each, from top to bottom.
        look: of the run.
        axis: what the differences are of.
        digits: number of decimals for screen readers.
        identity: unique in the page.
    """
    names = [name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…" for name, *_ in dots]
    said = []
    with drawing(identity):
        figure, axes = panel(46 + 20 * len(dots), _WIDTH)
        axes.axvline(0, color=MUTED, linewidth=1.2)
        for row, dot in enumerate(dots):
            text = f"{dot.name} {signed(dot.difference, digits)}"
            if dot.low is not None and dot.high is not None:
                axes.plot((dot.low, dot.high), [row, row], color=look.colour, marker="|")
                text += f" ({signed(dot.low, digits)} to {signed(dot.high, digits)})"
            face = look.colour if dot.significant else SURFACE
            axes.plot(
                dot.difference,
                row,
                marker=look.marker,
                markersize=7,
                color=look.colour,
                markerfacecolor=face,
            )
            said.append(text)
        axes.set_yticks(range(len(dots)), names)
        axes.tick_params(axis="y", length=0, labelcolor=TEXT)
        axes.set_ylim(len(dots) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(axis)
        return to_svg(figure, identity, f"{axis}: {'; '.join(said)}.")


def cost_scale(costs: Sequence[float]) -> float:
    """The cost at full colour: the largest one."""
    return max([0.0, *filter(math.isfinite, costs)]) or 1.0


def cost_by_unit(
    layers: Mapping[int, Mapping[int, Cell]],
    unit: str,
    scale: float,
    digits: int,
    title: str,
    identity: str,
) -> str:
    """Layers × units; the stronger a cell's colour, the more it costs to do without the unit.

    Cells of units that cost nothing, or less, have no colour. A frame is around significant ones.

    Args:
        layers: the layer to the number of each unit, and its cell.
        unit: what is removed, for the axis.
        scale: the cost at full colour, the same for all sites, so that these can be compared.
        digits: number of decimals.
        title: of the figure, for screen readers.
        identity: unique in the page.
    """
    units = 1 + max(number for cells in layers.values() for number in cells)
    said = []
    with drawing(identity):
        figure, axes = panel(52 + 26 * len(layers))
        divide_cells(axes, len(layers), units)
        for row, (layer, cells) in enumerate(sorted(layers.items())):
            for number, cell in cells.items():
                cost = cell.cost if math.isfinite(cell.cost) else 0.0
                opacity = HEAT_OPACITY * min(1.0, max(0.0, cost / scale))
                box = Rectangle((number - 0.5, row - 0.5), 1, 1, alpha=opacity, facecolor=HEAT)
                axes.add_patch(box)
                if cell.significant:
                    corner = (number - 0.44, row - 0.42)
                    frame = Rectangle(corner, 0.88, 0.84, fill=False, edgecolor=TEXT, linewidth=1.1)
                    axes.add_patch(frame)
                if units <= _MOST_NUMBERED:
                    text = signed(cell.cost, digits).removeprefix("+")
                    axes.text(number, row, text, ha="center", va="center", fontsize=10)
            costliest = max(cells, key=lambda number: cells[number].cost)
            most = signed(cells[costliest].cost, digits)
            said.append(f"layer {layer}: most for {unit} {costliest}, {most}")
        frame_cells(axes, len(layers), units)
        axes.set_yticks(range(len(layers)), [str(layer) for layer in sorted(layers)])
        if units > _MOST_NUMBERED:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        else:
            axes.set_xticks(range(units))
        axes.set_xlabel(unit.capitalize())
        axes.set_ylabel("Layer")
        return to_svg(figure, identity, f"{title}: {'; '.join(said)}.")
