"""Draws a value with its interval in a row of a forest plot."""

from matplotlib.axes import Axes

from headwise.report.svg import MUTED

_DOT = 6.5


def name_sides(axes: Axes, left: str, right: str) -> None:
    """Says above a plot what its left and its right half mean."""
    for place, text, side in ((0.0, f"← {left}", "left"), (1.0, f"{right} →", "right")):
        axes.annotate(
            text, (place, 1.0), xycoords="axes fraction", xytext=(0, 5),
            textcoords="offset points", ha=side, fontsize=11, color=MUTED,
        )  # fmt: skip


def draw_interval(
    axes: Axes,
    row: float,
    ends: tuple[float, float, float],
    colour: str,
    *,
    filled: bool,
    limit: float | None = None,
) -> None:
    """Draws the interval as a line and the value as a dot, cut at a limit.

    Args:
        axes: the plot.
        row: the place on its vertical axis.
        ends: the value, and the low and the high end of its interval.
        colour: of the series.
        filled: whether the dot is filled, which says that the difference is significant.
        limit: an interval that goes beyond plus or minus this ends there with an arrowhead.
    """
    value, low, high = ends
    if limit is not None:
        for end, head in ((low, "<"), (high, ">")):
            if abs(end) > limit:
                place = limit if end > 0 else -limit
                axes.plot(place, row, marker=head, markersize=6, color=colour, clip_on=False)
        value, low, high = (min(max(x, -limit), limit) for x in (value, low, high))
    axes.plot([low, high], [row, row], color=colour, linewidth=2, solid_capstyle="butt")
    axes.plot(
        value,
        row,
        marker="o",
        markersize=_DOT,
        color=colour,
        markerfacecolor=colour if filled else "#ffffff",
        markeredgewidth=1.6,
    )
