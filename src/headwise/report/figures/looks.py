"""How the systems of a report are drawn: each in a colour, with a marker and a kind of line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from headwise.analysis.results import Comparison
from headwise.report.figures.svg import SERIES, drawing, to_svg

_MARKERS = "osD^vPX*<>"


@dataclass(frozen=True)
class Look:
    """How a system is drawn: never by its colour alone."""

    colour: str
    marker: str
    dashes: str


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


def swatch(look: Look, identity: str) -> str:
    """A piece of the system's line, for legends in the page."""
    with drawing(identity):
        figure = Figure(figsize=(34 / 72, 14 / 72), dpi=72)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        line: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes}
        axes.plot([0, 0.5, 1], [0, 0, 0], marker=look.marker, markevery=[1], markersize=7, **line)
        return to_svg(figure, identity, "")
