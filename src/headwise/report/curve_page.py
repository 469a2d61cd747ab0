"""Scores against a number in recipes, as a table and as a page."""

from markupsafe import Markup

from headwise.analysis.score_curve import CurvePoint, ScoreCurve
from headwise.report.figures.looks import looks_of, swatch
from headwise.report.figures.score_curve import draw_score_curve
from headwise.report.formatting import NONE, count, heading
from headwise.report.rendering import rendered


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
        figure=Markup(draw_score_curve(curve, "curve")),
        lines=[
            (name, Markup(swatch(look_of[name], f"swatch-{number}")))
            for number, name in enumerate(lines)
        ],
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
        f"{point.score:.{digits}f}",
        interval,
        str(point.seeds),
        count(point.trained),
        f"{point.best_step:,.0f}",
    ]
