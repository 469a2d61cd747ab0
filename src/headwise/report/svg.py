"""Figures as inline SVG: colours and font of the page around it, looks of systems, scales, cells.

Figures are drawn in placeholder colours, one for each role. The SVG has the CSS variables of the
page in their place, so that one drawing serves the light and the dark page.
"""

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from itertools import count
from typing import Any, NamedTuple

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from headwise.analysis.results import Comparison

TEXT, MUTED, GRID, SURFACE, HEAT = "#010101", "#020202", "#030303", "#040404", "#050505"
SERIES = tuple(f"#0a0a{number:02x}" for number in range(7))

_VARIABLES = {
    TEXT: "currentColor",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    SURFACE: "var(--surface)",
    HEAT: "var(--heat)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES)},
}

# In points, which are pixels in the SVG. A panel of this width is legible on a phone.
WIDTH = 400

_STYLE = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "text.parse_math": False,  # a dollar in a system's name is a dollar
    "font.size": 12,
    "text.color": TEXT,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "lines.linewidth": 2.0,
    "legend.frameon": False,
}
_MARKERS = "osD^vPX*<>"
# Opacity of the strongest cell; more would hide its number.
HEAT_OPACITY = 0.75
_MOST_NUMBERED = 10  # units whose cells have room for a number


@contextmanager
def drawing() -> Iterator[None]:
    """Figures drawn in this context have the look of the page."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": "headwise"}):
        yield


def panel(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """Returns a figure with one plot; `height` and `width` are in points."""
    figure, (axes,) = panels(height, columns=1, width=width)
    return figure, axes


def panels(height: float, columns: int, width: float = WIDTH) -> tuple[Figure, list[Axes]]:
    """Returns a figure with `columns` plots side by side, which share their vertical axis.

    `height` and `width` are those of the whole figure in points.
    """
    figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
    axes = figure.subplots(1, columns, sharey=True, squeeze=False)
    return figure, list(axes[0])


def reference_line(axes: Axes, value: float, text: str) -> None:
    """Draws a dashed horizontal line with a text at its right end."""
    axes.axhline(value, color=MUTED, linestyle="--", linewidth=1.2)
    axes.annotate(
        text, (0.995, value), xycoords=("axes fraction", "data"), xytext=(0, 3), ha="right",
        va="bottom", textcoords="offset points", color=MUTED, fontsize=11,
    )  # fmt: skip


def name_end(axes: Axes, name: str, step: float, value: float) -> None:
    """Writes the name of a line behind its last point."""
    axes.annotate(
        name, (step, value), xytext=(4, 0), textcoords="offset points", va="center", fontsize=11,
        annotation_clip=False,
    )  # fmt: skip


def to_svg(figure: Figure, label: str) -> Markup:
    """Returns a figure as an `<svg>` element, which the page scales to the available width.

    All ids in it begin with `figure`; `rendered` numbers the figures of a page. A screen reader
    says the label; a figure without one is decoration.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    # The rules of a style element would apply to the whole page.
    svg = re.sub(r"<metadata>.*?</metadata>\s*|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', r"\g<1>figure-", svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda colour: _VARIABLES.get(colour[0], colour[0]), svg)
    meaning = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    # Only the view box stays: without width and height, the page scales the figure.
    viewbox = re.search(r'viewBox="[^"]*"', svg)
    assert viewbox is not None
    return Markup(f"<svg {viewbox[0]} {meaning}{svg[svg.index('>') :]}")


def with_own_ids(page: str) -> str:
    """Numbers the figures of a page in their ids, so that none of these stands twice."""
    number = count()

    def numbered(svg: re.Match[str]) -> str:
        own = rf"\g<1>figure{next(number)}-"
        return re.sub(r'(\bid="|href="#|url\(#)figure\d*-', own, svg[0])

    return re.sub(r"<svg.*?</svg>", numbered, page, flags=re.DOTALL)


@dataclass(frozen=True)
class Look:
    """How a system is drawn: never by its colour alone."""

    colour: str
    marker: str
    dashes: str

    @property
    def line(self) -> dict[str, Any]:
        """What a line with marks is drawn with."""
        return {"color": self.colour, "linestyle": self.dashes, "marker": self.marker}


def looks(comparison: Comparison) -> dict[str, Look]:
    """The look of each system; the baseline is the neutral one."""
    others = [s.name for s in comparison.systems if s.name != comparison.baseline]
    return looks_of([comparison.baseline, *others])


def looks_of(names: Sequence[str]) -> dict[str, Look]:
    """The look of each name; the first is the neutral one."""
    found = {name: Look(SERIES[0], _MARKERS[0], "-") for name in names[:1]}
    for number, name in enumerate(names[1:]):
        colour = SERIES[1 + number % (len(SERIES) - 1)]
        marker = _MARKERS[1 + number % (len(_MARKERS) - 1)]
        found[name] = Look(colour, marker, "-" if number < len(SERIES) - 1 else "--")
    return found


def legend(names: Iterable[str], looks: Mapping[str, Look]) -> list[tuple[str, Markup]]:
    """Names with a piece of their lines."""
    return [(name, _swatch(looks[name])) for name in names]


def _swatch(look: Look) -> Markup:
    with drawing():
        figure = Figure(figsize=(34 / 72, 14 / 72), dpi=72)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.plot([0, 0.5, 1], [0, 0, 0], markevery=[1], markersize=7, **look.line)
        return to_svg(figure, "")


class HeatCell(NamedTuple):
    """A coloured cell of a table; `strength` is that of its colour, from 0 to 1."""

    strength: float
    text: str = ""
    framed: bool = False
    colour: str = HEAT


def draw_cells(
    axes: Axes,
    rows: Sequence[Mapping[int, HeatCell]],
    columns: int,
    *,
    fontsize: float,
    between_rows: float = 2,
) -> None:
    """Draws coloured cells of size 1, the first of them around (0, 0) at the top left."""
    for row, cells in enumerate(rows):
        for column, cell in cells.items():
            alpha = HEAT_OPACITY * min(1.0, max(0.0, cell.strength))
            corner = (column - 0.5, row - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, alpha=alpha, facecolor=cell.colour))
            if cell.framed:
                corner = (column - 0.44, row - 0.42)
                frame = Rectangle(corner, 0.88, 0.84, fill=False, edgecolor=TEXT, linewidth=1.1)
                axes.add_patch(frame)
            if cell.text:
                axes.text(column, row, cell.text, ha="center", va="center", fontsize=fontsize)
    lines = [at + 0.5 for at in range(columns - 1)]
    axes.vlines(lines, -0.5, len(rows) - 0.5, SURFACE, lw=1)
    lines = [at + 0.5 for at in range(len(rows) - 1)]
    axes.hlines(lines, -0.5, columns - 0.5, SURFACE, lw=between_rows)
    frame_cells(axes, len(rows), columns)


def frame_cells(axes: Axes, rows: int, columns: int) -> None:
    """Prepares axes for a table of cells of size 1; the cell at the top left is around (0, 0)."""
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set(visible=True, color=GRID)


def are_numbered(units: int) -> bool:
    """Whether so many cells beside each other have room for a number each."""
    return units <= _MOST_NUMBERED


def number_units(axis: Axis, units: int) -> None:
    """Numbers the units along an axis, all of them or some."""
    if are_numbered(units):
        axis.set_ticks(range(units))
    else:
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True))


Values = Sequence[float | None]  # of a curve


def value_scale(curves: Iterable[Values], *others: float) -> tuple[float, float]:
    """Returns both ends of a scale that panels share: of all values, the others given, and zero.

    >>> value_scale([[0.5, None], [-0.25, float("nan")]], 1.0)
    (-0.25, 1.0)
    """
    values = [x for curve in curves for x in curve if x is not None and math.isfinite(x)]
    floor, ceiling = min([0.0, *values, *others]), max([0.0, *values, *others])
    return (floor, ceiling) if floor < ceiling else (0.0, 1.0)
