"""Figures of what was noted of a model's decisions over its training, each an `<svg>` element."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.ticker import MaxNLocator

from headwise.analysis.decisions.snapshots import DecisionCourse
from headwise.report.figures.looks import Look
from headwise.report.figures.scales import Values
from headwise.report.figures.svg import MUTED, drawing, name_end, panel, to_svg
from headwise.report.formatting import decimals


def relative_entropy(courses: Sequence[DecisionCourse]) -> dict[int, float]:
    """Returns the entropy by step, divided by that of equal weights: the mean over the places.

    Places that always have a single unit to choose are left out, and so are steps at which a figure
    is not finite, as in a run that diverges.
    """
    by_step: dict[int, list[float]] = {}
    for course in courses:
        if course.uniform > 0:
            for step, entropy in zip(course.steps, course.entropy, strict=True):
                by_step.setdefault(step, []).append(entropy / course.uniform)
    means = {step: fmean(found) for step, found in sorted(by_step.items())}
    return {step: mean for step, mean in means.items() if math.isfinite(mean)}


def runs_over_training(
    curves: Mapping[str, Mapping[int, float]], looks: Mapping[str, Look], identity: str
) -> str:
    """The relative entropy of several runs over training.

    Args:
        curves: name of a run to its `relative_entropy`.
        looks: of the runs.
        identity: unique in the page.
    """
    with drawing(identity):
        figure, axes = panel(230)
        for name, curve in curves.items():
            look = looks[name]
            axes.plot(
                list(curve),
                list(curve.values()),
                color=look.colour,
                linestyle=look.dashes,
                marker=look.marker,
                markersize=5,
                markevery=max(1, len(curve) // 8),
            )
        axes.set_ylim(0, 1.05)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.set_xlabel("Step")
        axes.set_ylabel("Entropy / uniform")
        said = "; ".join(
            f"{name} from {decimals(curve[min(curve)], 3)} to {decimals(curve[max(curve)], 3)}"
            for name, curve in curves.items()
        )
        return to_svg(figure, identity, f"Entropy divided by that of equal weights, {said}.")


def layers_over_training(
    courses: Sequence[DecisionCourse],
    curves: Sequence[Values],
    look: Look,
    scale: tuple[float, float],
    identity: str,
    what: str,
    *,
    lowest: Sequence[Values] = (),
    reference: float | None = None,
) -> str:
    """One quantity over training, a line for each layer: the higher the layer, the stronger.

    The last layer is named, and so is the first, unless both end at about the same height.

    Args:
        courses: of one site, in the order of their layers.
        curves: the quantity of each of them.
        look: of the run.
        scale: both ends of the vertical axis.
        identity: unique in the page.
        what: the quantity and the site, for screen readers.
        lowest: of each of them a second curve, which is drawn as a thin line.
        reference: where a dashed line is drawn.
    """
    floor, ceiling = scale
    room = 0.06 * (ceiling - floor)
    ends = _drawable([curves[0][-1], curves[-1][-1]])
    # Names would lie upon each other where both lines end at about the same height.
    apart = not abs(ends[0] - ends[1]) < 1.5 * room
    named = {0, len(courses) - 1} if apart else {len(courses) - 1}
    with drawing(identity):
        figure, axes = panel(170, width=280)
        if reference is not None:
            axes.axhline(reference, color=MUTED, linestyle="--", linewidth=1)
        for number, course in enumerate(courses):
            alpha = 1.0 if len(courses) == 1 else 0.4 + 0.6 * number / (len(courses) - 1)
            style: dict[str, Any] = {"color": look.colour, "alpha": alpha}
            values = _drawable(curves[number])
            axes.plot(course.steps, values, linewidth=1.8, **style)
            if lowest:
                axes.plot(course.steps, _drawable(lowest[number]), linewidth=0.8, **style)
            if number in named and math.isfinite(values[-1]):
                name_end(axes, str(course.layer), course.steps[-1], values[-1])
        axes.set_ylim(floor - room if floor < 0 else floor, ceiling + room)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.set_xlabel("Step")
        said = "; ".join(
            f"layer {course.layer} from {decimals(curve[0], 3)} to {decimals(curve[-1], 3)}"
            for course, curve in zip(courses, curves, strict=True)
        )
        return to_svg(figure, identity, f"{what}, {said}.")


def _drawable(values: Values) -> list[float]:
    return [math.nan if value is None else value for value in values]
