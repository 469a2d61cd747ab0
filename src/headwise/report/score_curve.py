"""Scores against a number in recipes, as a table, a figure and a page."""

import math

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from headwise.analysis.score_curve import CurvePoint, ScoreCurve
from headwise.report.formatting import NONE, count, decimals, heading
from headwise.report.rendering import rendered
from headwise.report.svg import drawing, legend, looks_of, name_end, panel, reference_line, to_svg

_CLOSE = 0.06  # part of the axis within which the names of levels would overlap
_WIDE = 10  # values that differ by more than this factor stand on a logarithmic axis


def curve_headers(curve: ScoreCurve) -> list[str]:
    """Returns the headers of the table."""
    first = ["System", curve.key, heading(curve.score), "95% interval"]
    return [*first, "Seeds", "Trained", "Best step"]


def curve_rows(curve: ScoreCurve) -> list[list[str]]:
    """Returns a row for each system and value of the key, with cells as `curve_headers` says."""
    return [_row(point, curve.digits) for point in curve.points]


def render_curve(curve: ScoreCurve) -> str:
    """The page as HTML. Everything that comes from the data is escaped."""
    lines = [name for name in curve.systems if len(curve.of(name)) > 1]
    look_of = looks_of(curve.systems)
    return rendered(
        "curve.html.jinja",
        title=f"{heading(curve.score)} against {curve.key}",
        figure=draw_score_curve(curve),
        lines=legend(lines, look_of),
        headers=curve_headers(curve),
        rows=curve_rows(curve),
    )


def _row(point: CurvePoint, digits: int) -> list[str]:
    interval = NONE
    if point.low is not None and point.high is not None:
        interval = f"{point.low:.{digits}f}–{point.high:.{digits}f}"
    return [
        point.system,
        f"{point.value:g}",
        decimals(point.score, digits),
        interval,
        str(point.seeds),
        count(point.trained),
        f"{point.best_step:,.0f}",
    ]


def draw_score_curve(curve: ScoreCurve) -> Markup:
    """The score of each system over the values of the key, with the intervals over seeds.

    A system with a single value is a level: a dashed line across the figure.
    """
    systems = curve.systems
    lines = [name for name in systems if len(curve.of(name)) > 1]
    values = sorted({point.value for point in curve.points})
    look_of = looks_of(systems)
    with drawing():
        figure, axes = panel(320, width=520)
        for name in lines:
            points, look = curve.of(name), look_of[name]
            along = [point.value for point in points]
            axes.plot(
                along,
                [point.score for point in points],
                **look.line,
                markersize=7,
            )
            for point in points:
                if point.low is not None and point.high is not None:
                    ends = [point.low, point.high]
                    axes.plot([point.value] * 2, ends, color=look.colour, linewidth=1.2, marker="_")
            name_end(axes, name, along[-1], points[-1].score)
        _draw_levels(axes, curve, [name for name in systems if name not in lines])
        if values[0] > 0 and values[-1] / values[0] >= _WIDE:
            axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(values))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([f"{value:g}" for value in values])
        axes.set_xlabel(curve.key)
        axes.set_ylabel(heading(curve.score))
        said = [
            f"{name} "
            + ", ".join(f"{decimals(p.score, curve.digits)} at {p.value:g}" for p in curve.of(name))
            for name in systems
        ]
        label = f"{heading(curve.score)} against {curve.key}: {'; '.join(said)}."
        return to_svg(figure, label)


def _draw_levels(axes: Axes, curve: ScoreCurve, names: list[str]) -> None:
    """Draws a dashed line for each system; those that lie close together are named together."""
    low, high = axes.get_ylim() if axes.lines else (0.0, 0.0)
    waiting: list[str] = []
    scores = {name: curve.of(name)[0].score for name in names}
    levels = sorted((score, name) for name, score in scores.items() if math.isfinite(score))
    for (score, name), following in zip(levels, [*levels, None][1:], strict=True):
        waiting.append(f"{name} {score:.{curve.digits}f}")
        is_close = following is not None and following[0] - score < _CLOSE * (high - low)
        reference_line(axes, score, "" if is_close else ", ".join(waiting))
        if not is_close:
            waiting = []
