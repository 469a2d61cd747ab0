"""Lines with a band around them, one for each model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwise.report.figures.looks import Look
from headwise.report.figures.svg import drawing, panel, reference_line, to_svg


@dataclass(frozen=True)
class Banded:
    """A line with a band.

    Attributes:
        name: what the line is of, for screen readers.
        look: how it is drawn.
        points: of each place on the horizontal axis the value, and the band's lower and upper end.
    """

    name: str
    look: Look
    points: dict[str, tuple[float, float, float]]


def banded_lines(
    lines: Sequence[Banded],
    places: Sequence[str],
    bounds: Sequence[tuple[float, str]],
    axes_names: tuple[str, str],
    identity: str,
    what: str,
    *,
    thin: Sequence[Banded] = (),
) -> str:
    """Returns the figure as an `<svg>` element.

    Args:
        lines: those with marks.
        places: on the horizontal axis, from the left.
        bounds: values at which a dashed line is drawn, with what is written on it.
        axes_names: of the horizontal and the vertical axis.
        identity: unique in the page.
        what: what is drawn, for screen readers.
        thin: further lines, without marks and bands.
    """
    at = {place: number for number, place in enumerate(places)}
    with drawing(identity):
        figure, axes = panel(230)
        for bound, text in bounds:
            reference_line(axes, bound, text)
        for line in thin:
            found = [(at[place], value[0]) for place, value in line.points.items()]
            axes.plot(*zip(*found, strict=True), color=line.look.colour, linewidth=0.9, alpha=0.55)
        for line in lines:
            positions = [at[place] for place in line.points]
            middle, low, high = zip(*line.points.values(), strict=True)
            band: dict[str, Any] = {"color": line.look.colour, "alpha": 0.16}
            axes.fill_between(positions, low, high, linewidth=0, **band)
            if len(positions) == 1:
                axes.vlines(positions, low, high, linewidth=8, **band)
            axes.plot(
                positions,
                middle,
                color=line.look.colour,
                linestyle=line.look.dashes,
                marker=line.look.marker,
                markersize=6 if len(places) <= 20 else 0,
                clip_on=False,  # a mark at 0 is whole
            )
        every = -(-len(places) // 12)
        axes.set_xticks(range(0, len(places), every), list(places)[::every])
        if any(len(place) > 3 for place in places):
            axes.tick_params(axis="x", labelrotation=40)
        axes.set_xlim(-0.4, len(places) - 0.6)
        drawn = [
            value for line in (*lines, *thin) for point in line.points.values() for value in point
        ]
        finite = [value for value in drawn if math.isfinite(value)]
        axes.set_ylim(0, 1.18 * max([*finite, *(bound for bound, _ in bounds), 1e-6]))
        axes.set_xlabel(axes_names[0])
        axes.set_ylabel(axes_names[1])
        said = "; ".join(
            f"{line.name} from {_said(line, 0)} to {_said(line, -1)}" for line in lines
        )
        return to_svg(figure, identity, f"{what}: {said}.")


def _said(line: Banded, number: int) -> str:
    place = list(line.points)[number]
    return f"{line.points[place][0]:.3g} at {place}"
