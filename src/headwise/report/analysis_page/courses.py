"""The section "Over training": how decisions moved, and what rules of training recorded."""

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from headwise.analysis.decisions.record import OverTraining, RunAnalysis
from headwise.analysis.decisions.snapshots import MOST_SEQUENCES, DecisionCourse, relative_entropy
from headwise.analysis.results import Course
from headwise.analysis.words import Words
from headwise.report.analysis_page.section import Figures, Looks, legend_of
from headwise.report.figures import course_panels, line_of_each, smoothing
from headwise.report.formatting import decimals, site_name
from headwise.report.svg import MUTED, Look, Values, drawing, name_end, panel, to_svg, value_scale


def courses_section(runs: Sequence[RunAnalysis], looks: Looks) -> dict[str, Any] | None:
    """What is shown of all runs that have kept something of their training; None if none has."""
    shown = [
        made
        for run in runs
        if run.courses is not None
        for made in _systems(run, run.courses, looks[run.name], len(runs))
    ]
    if not shown:
        return None
    return {"together": _together(runs, looks), "shown": shown, "most": MOST_SEQUENCES}


def _together(runs: Sequence[RunAnalysis], looks: Looks) -> dict[str, Any] | None:
    """Entropy of all runs in one figure, and its legend; None if fewer than two have any."""
    curves = {
        run.name: curve
        for run in runs
        if run.courses is not None and (curve := relative_entropy(run.courses.snapshots))
    }
    if len(curves) < 2:
        return None
    said = "; ".join(
        f"{name} from {decimals(curve[min(curve)], 3)} to {decimals(curve[max(curve)], 3)}"
        for name, curve in curves.items()
    )
    label = f"Entropy divided by that of equal weights, {said}."
    svg = line_of_each(curves.items(), looks, ("Step", "Entropy / uniform"), label, (0, 1.05))
    return {"svg": svg, "legend": legend_of([run for run in runs if run.name in curves], looks)}


def _systems(run: RunAnalysis, kept: OverTraining, look: Look, runs: int) -> list[dict[str, Any]]:
    """What is shown of each kind of system in one run."""
    names = list(
        dict.fromkeys([*(c.system for c in kept.snapshots), *(c.system for c in kept.recorded)])
    )
    alone = len(kept.stacks) == 1
    shown = []
    for name in names:
        words = run.words.get(name, Words())
        courses = [course for course in kept.snapshots if course.system == name]
        recorded = [course for course in kept.recorded if course.system == name]
        labels = list(dict.fromkeys(label for course in courses for label in course.explained))
        units = words.units if len(names) > 1 else ""
        of_units = [_of_units(course) for course in courses]
        shown.append(
            {
                "title": ": ".join(filter(None, [run.name if runs > 1 else "", units])),
                "words": words,
                "entropy": _entropy(courses, look, alone),
                "explained": _explained(courses, labels, look, alone),
                "shares": course_panels(of_units, words, look, alone),
                "recorded": course_panels(recorded, words, look, alone),
                "smoothing": smoothing(recorded),
                "labels": [f"Explained by {label}" for label in labels],
                "rows": [_row(course, labels, alone) for course in courses],
            }
        )
    return shown


def _entropy(courses: list[DecisionCourse], look: Look, alone: bool) -> Figures:
    scale = value_scale([course.entropy for course in courses], *(c.uniform for c in courses))
    return [
        (
            site,
            layers_over_training(
                group,
                [course.entropy for course in group],
                look,
                scale,
                f"Entropy in nats, {site}",
                reference=group[0].uniform,
            ),
        )
        for site, group in _by_site(courses, alone).items()
    ]


def _explained(
    courses: list[DecisionCourse], labels: list[str], look: Look, alone: bool
) -> Figures:
    scale = value_scale([values for course in courses for values in course.explained.values()])
    figures: Figures = []
    for site, group in _by_site(courses, alone).items():
        for label in labels:
            having = [course for course in group if label in course.explained]
            if having:
                curves: list[Values] = [course.explained[label] for course in having]
                what = f"Explained by {label}, {site}"
                svg = layers_over_training(having, curves, look, scale, what)
                figures.append((f"{site}: {label}", svg))
    return figures


def _by_site(courses: list[DecisionCourse], alone: bool) -> dict[str, list[DecisionCourse]]:
    groups: dict[str, list[DecisionCourse]] = {}
    for course in courses:
        groups.setdefault(site_name(course, alone=alone), []).append(course)
    return groups


def _of_units(course: DecisionCourse) -> Course:
    """Share and mean weight of each unit; the weight alone where it is the share."""
    values = {"Share": course.shares}
    if course.weights != course.shares:
        values["Mean weight"] = course.weights
    same = course.model_dump(include={"site", "layer", "system", "whole_layer", "steps"})
    return Course(**same, values=values)


def _row(course: DecisionCourse, labels: list[str], alone: bool) -> list[str]:
    """Place, layer, and the first and last value of everything that has a single one."""
    curves: list[Values] = [course.entropy]
    curves += [course.explained.get(label, [None]) for label in labels]
    values = [f"{decimals(curve[0], 3)} → {decimals(curve[-1], 3)}" for curve in curves]
    return [site_name(course, alone=alone), str(course.layer), *values]


def layers_over_training(
    courses: Sequence[DecisionCourse],
    curves: Sequence[Values],
    look: Look,
    scale: tuple[float, float],
    what: str,
    *,
    reference: float | None = None,
) -> Markup:
    """One quantity over training, a line for each layer: the higher the layer, the stronger.

    The last layer is named, and so is the first, unless both end at about the same height. At the
    reference is a dashed line.
    """
    floor, ceiling = scale
    room = 0.06 * (ceiling - floor)
    ends = _drawable([curves[0][-1], curves[-1][-1]])
    # Names would lie upon each other where both lines end at about the same height.
    apart = not abs(ends[0] - ends[1]) < 1.5 * room
    named = {0, len(courses) - 1} if apart else {len(courses) - 1}
    with drawing():
        figure, axes = panel(170, width=280)
        if reference is not None:
            axes.axhline(reference, color=MUTED, linestyle="--", linewidth=1)
        for number, course in enumerate(courses):
            alpha = 1.0 if len(courses) == 1 else 0.4 + 0.6 * number / (len(courses) - 1)
            style: dict[str, Any] = {"color": look.colour, "alpha": alpha}
            values = _drawable(curves[number])
            axes.plot(course.steps, values, linewidth=1.8, **style)
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
        return to_svg(figure, f"{what}, {said}.")


def _drawable(values: Values) -> list[float]:
    return [math.nan if value is None else value for value in values]
