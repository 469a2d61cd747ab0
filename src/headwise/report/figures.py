"""The figures that several pages share, each an `<svg>` element."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from headwise.analysis.results import Course
from headwise.analysis.words import Words
from headwise.report.formatting import site_name
from headwise.report.svg import (
    MUTED,
    TEXT,
    WIDTH,
    HeatCell,
    Look,
    are_numbered,
    draw_cells,
    drawing,
    name_end,
    number_units,
    panel,
    panels,
    reference_line,
    to_svg,
    value_scale,
)

_POINTS_OF_A_CURVE = 100


@dataclass(frozen=True)
class Banded:
    """A line with a band."""

    name: str  # what the line is of, for screen readers
    look: Look  # how it is drawn
    # Of each place on the horizontal axis the value, and the band's lower and upper end.
    points: dict[str, tuple[float, float, float]]


def banded_lines(
    lines: Sequence[Banded],
    places: Sequence[str],
    bounds: Sequence[tuple[float, str]],
    axes_names: tuple[str, str],
    what: str,
    *,
    thin: Sequence[Banded] = (),
) -> Markup:
    """Returns the figure as an `<svg>` element.

    Args:
        lines: those with marks.
        places: on the horizontal axis, from the left.
        bounds: values at which a dashed line is drawn, with what is written on it.
        axes_names: of the horizontal and the vertical axis.
        what: what is drawn, for screen readers.
        thin: further lines, without marks and bands.
    """
    at = {place: number for number, place in enumerate(places)}
    with drawing():
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
                **line.look.line,
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
        return to_svg(figure, f"{what}: {said}.")


def _said(line: Banded, number: int) -> str:
    place = list(line.points)[number]
    return f"{line.points[place][0]:.3g} at {place}"


def smoothed(values: list[float], radius: int) -> list[float]:
    """Means over neighbours up to `radius` away, equally many on both sides.

    >>> smoothed([0.0, 3.0, 0.0, 3.0], radius=1)
    [0.0, 1.0, 2.0, 3.0]
    """
    means = []
    for middle in range(len(values)):
        reach = min(radius, middle, len(values) - 1 - middle)
        means.append(fmean(values[middle - reach : middle + reach + 1]))
    return means


def _radius(course: Course) -> int:
    """Returns the radius of a smoothing window of about a twentieth of the curve."""
    return len(course.steps) // 40


def smoothing(courses: Sequence[Course]) -> int:
    """Returns how many records a point of the curves is the mean of, at most."""
    return max((2 * _radius(course) + 1 for course in courses), default=1)


def _course_over_training(
    course: Course, words: Words, scale: tuple[float, float], look: Look, site: str
) -> Markup:
    """What was recorded of a layer over training, a panel for each name and a line per unit.

    The units that end highest and lowest are named.
    """
    floor, ceiling = scale
    said = []
    with drawing():
        number = len(course.values)
        figure, side_by_side = panels(160, columns=number, width=max(280, 140 * number))
        for axes, (name, rows) in zip(side_by_side, course.values.items(), strict=True):
            radius = _radius(course)
            curves = [smoothed(list(of_unit), radius) for of_unit in zip(*rows, strict=True)]
            last = [curve[-1] for curve in curves]
            top, bottom = last.index(max(last)), last.index(min(last))
            if all(math.isclose(sum(row), 1.0, abs_tol=1e-3) for row in rows):  # shares
                axes.axhline(1 / len(curves), color=MUTED, linestyle="--", linewidth=1)
            _draw_course(axes, course.steps, curves, {top, bottom}, look)
            axes.set_title(name, loc="left", fontsize=13)
            axes.set_ylim(1.05 * floor, 1.05 * ceiling)
            said.append(
                f"{name} ends between {last[bottom]:.3f} ({words.unit} {bottom}) and "
                f"{last[top]:.3f} ({words.unit} {top})"
            )
        return to_svg(figure, f"{site}, layer {course.layer}: {'; '.join(said)}.")


def course_panels(
    courses: list[Course], words: Words, look: Look, alone: bool
) -> dict[str, list[tuple[str, Markup]]]:
    """The figures of all courses of a system, on one scale: by site, a title and a figure each."""
    scale = value_scale(row for each in courses for rows in each.values.values() for row in rows)
    by_site: dict[str, list[tuple[str, Markup]]] = {}
    for course in courses:
        site = site_name(course, alone=alone)
        svg = _course_over_training(course, words, scale, look, site)
        by_site.setdefault(site, []).append((f"Layer {course.layer}", svg))
    return by_site


def _draw_course(
    axes: Axes, steps: list[int], curves: list[list[float]], named: set[int], look: Look
) -> None:
    """Draws a line for each unit."""
    for unit, values in enumerate(curves):
        width, alpha = (1.8, 1.0) if unit in named else (1.0, 0.6)
        points = _thinned(steps, values)
        axes.plot(*points, color=look.colour, linewidth=width, alpha=alpha)
    for unit in sorted(named):
        name_end(axes, str(unit), steps[-1], curves[unit][-1])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.set_xlabel("Step")


def _thinned(steps: list[int], values: list[float]) -> tuple[list[int], list[float]]:
    """Returns at most as many points as a small plot can show; the last one is kept."""
    stride = -(-len(steps) // _POINTS_OF_A_CURVE)
    kept = sorted({*range(0, len(steps), stride), len(steps) - 1})
    return [steps[i] for i in kept], [values[i] for i in kept]


class Dot(NamedTuple):
    """A row of a figure of dots: a number with its interval, and the numbers it is the mean of."""

    name: str
    value: float
    ends: tuple[float, float] | None
    look: Look
    filled: bool = True
    seeds: Sequence[float] = ()


def dots_by_row(
    dots: Sequence[Dot],
    axis: str,
    label: str,
    *,
    zero: bool = False,
    hollow: str = "none",
    row_height: int = 26,
    width: int = WIDTH,
    markersize: float = 8,
) -> Markup:
    """A dot for each row, from top to bottom, with its interval."""
    with drawing():
        figure, axes = panel(46 + row_height * len(dots), width)
        if zero:
            axes.axvline(0, color=MUTED, linewidth=1.2)
        for row, dot in enumerate(dots):
            look = dot.look
            if dot.ends is not None:
                axes.plot(dot.ends, [row, row], color=look.colour, linewidth=2, marker="|")
            if len(dot.seeds) > 1:
                # Below the line of the interval, which would hide them.
                below = [row + 0.24] * len(dot.seeds)
                style: dict[str, Any] = {"color": look.colour, "linestyle": "none", "alpha": 0.5}
                axes.plot(dot.seeds, below, marker=look.marker, markersize=4.5, **style)
            axes.plot(
                dot.value,
                row,
                marker=look.marker,
                markersize=markersize,
                color=look.colour,
                markerfacecolor=look.colour if dot.filled else hollow,
            )
        axes.set_yticks(range(len(dots)), [dot.name for dot in dots])
        axes.tick_params(axis="y", length=0, labelcolor=TEXT)
        axes.set_ylim(len(dots) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(axis)
        return to_svg(figure, label)


def layers_by_unit(
    layers: Mapping[int, Mapping[int, HeatCell]],
    unit: str,
    label: str,
    *,
    fontsize: float,
) -> Markup:
    """Layers × units, as coloured cells with a text where there is room for it."""
    units = 1 + max(number for cells in layers.values() for number in cells)
    rows = [
        {at: cell if are_numbered(units) else cell._replace(text="") for at, cell in cells.items()}
        for _, cells in sorted(layers.items())
    ]
    with drawing():
        figure, axes = panel(52 + 26 * len(layers))
        draw_cells(axes, rows, units, fontsize=fontsize)
        axes.set_yticks(range(len(layers)), [str(layer) for layer in sorted(layers)])
        number_units(axes.xaxis, units)
        axes.set_xlabel(unit.capitalize())
        axes.set_ylabel("Layer")
        return to_svg(figure, label)


def line_of_each(
    lines: Iterable[tuple[str, Mapping[int, float]]],
    looks: Mapping[str, Look],
    axes_names: tuple[str, str],
    label: str,
    ends: tuple[float, float],
    *,
    ticks: Sequence[str] = (),
) -> Markup:
    """Lines with the names of their runs, between two ends; `ticks` are the names of 0, 1, ...."""
    with drawing():
        figure, axes = panel(230)
        for name, points in lines:
            every = max(1, len(points) // 8)
            x, y = list(points), list(points.values())
            axes.plot(x, y, **looks[name].line, markersize=6, markevery=every)
        axes.set_ylim(*ends)
        if ticks:
            axes.axhline(0, color=MUTED, linewidth=1)
            axes.set_xticks(range(len(ticks)), ticks)
            axes.set_xlim(-0.4, len(ticks) - 0.6)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        axes.set_xlabel(axes_names[0])
        axes.set_ylabel(axes_names[1])
        return to_svg(figure, label)
