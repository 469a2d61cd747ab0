"""The figures of the report, each an `<svg>` element."""

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from headwise.analysis.formatting import heading
from headwise.analysis.results import (
    AttentionRecord,
    Comparison,
    Course,
    RunResult,
    SystemSummary,
)
from headwise.analysis.svg import (
    GRID,
    HEAT,
    MUTED,
    SERIES,
    SURFACE,
    drawing,
    panel,
    panels,
    to_svg,
)
from headwise.analysis.verdict import diverged, sound_runs
from headwise.heads.words import Words

SITES = {
    "encoder_self": "Encoder self-attention",
    "decoder_self": "Decoder self-attention",
    "decoder_cross": "Decoder cross-attention",
}
# Records of a validation that are no figures measured by a task.
_NOT_MEASURED = ("step", "epoch", "loss", "eval_loss", "seconds")
# Opacity of the cell of a fully used expert; more would hide its number.
HEAT_OPACITY = 0.75

_MARKERS = "osD^vPX*<>"
_SITE_MARKERS = {"encoder_self": "o", "decoder_self": "s", "decoder_cross": "^"}
_SITE_DASHES = {"encoder_self": "-", "decoder_self": (0, (5, 2)), "decoder_cross": (0, (1, 1.5))}
_POINTS_OF_A_CURVE = 100


@dataclass(frozen=True)
class Look:
    """How a system is drawn: never by its colour alone."""

    colour: str
    marker: str
    dashes: str


def looks(comparison: Comparison) -> dict[str, Look]:
    """The look of each system; the baseline is the neutral one."""
    others = [s.name for s in comparison.systems if s.name != comparison.baseline]
    found = {comparison.baseline: Look(SERIES[0], _MARKERS[0], "-")}
    for number, name in enumerate(others):
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


# Learning curves

Curve = dict[int, float]


def curve(run: RunResult, key: str) -> Curve:
    """The finite values under `key` (loss or eval_loss) by step."""
    return {
        int(record["step"]): record[key]
        for record in run.history
        if key in record and math.isfinite(record[key])
    }


def mean_curve(curves: list[Curve]) -> Curve:
    """The mean at the steps that all curves have: another mean would jump where one ends."""
    shared = set.intersection(*map(set, curves)) if curves else set()
    return {step: fmean(each[step] for each in curves) for step in sorted(shared)}


def learning_curves(comparison: Comparison, identity: str) -> str | None:
    """Training and validation loss of all systems from the first step; None if not recorded."""
    ceiling = _ceiling(comparison)
    if ceiling is None:
        return None
    with drawing(identity):
        figure, axes = panel(290)
        lowest = _draw_training(axes, comparison)
        lowest = min(lowest, _draw_curves(axes, comparison, "eval_loss"))
        room = 0.05 * (ceiling - lowest) or 0.1
        axes.set_ylim(lowest - room, ceiling + room)
        axes.set_xlim(left=0)
        _name_axes(axes, "Step", f"Loss, {comparison.loss_name}")
        label = "Training and validation loss of each system over the steps of training."
        return to_svg(figure, identity, f"{label} {_last_losses(comparison)}")


def close_up(comparison: Comparison, identity: str) -> str | None:
    """Validation loss in the second half of training, where all curves lie close together."""
    steps = [step for run in _runs(comparison) for step in curve(run, "eval_loss")]
    if len(set(steps)) < 4:
        return None
    start, end = max(steps) / 2, max(steps)
    ceiling = _ceiling(comparison)
    values = [
        value
        for run in _runs(comparison)
        for step, value in curve(run, "eval_loss").items()
        if step >= start and ceiling is not None and value <= ceiling
    ]
    if not values:
        return None
    with drawing(identity):
        figure, axes = panel(290)
        _draw_curves(axes, comparison, "eval_loss")
        room = 0.06 * (max(values) - min(values)) or 0.1
        axes.set_ylim(min(values) - room, max(values) + room)
        axes.set_xlim(start - 0.02 * end, end * 1.02)
        _name_axes(axes, "Step", "Validation loss")
        label = "Validation loss of each system in the second half of training."
        return to_svg(figure, identity, f"{label} {_last_losses(comparison)}")


def measures(comparison: Comparison) -> list[str]:
    """The figures that the task has measured at validations, by name."""
    names = dict.fromkeys(key for r in _runs(comparison) for record in r.history for key in record)
    return [
        name
        for name in names
        if name not in _NOT_MEASURED and any(curve(run, name) for run in _runs(comparison))
    ]


def measured_curves(comparison: Comparison, name: str, identity: str) -> str:
    """A measured figure of all systems over the steps of training."""
    with drawing(identity):
        figure, axes = panel(290)
        _draw_curves(axes, comparison, name)
        axes.set_xlim(left=0)
        _name_axes(axes, "Step", heading(name))
        ends = []
        for system in comparison.systems:
            if values := _mean_of_sound(system, name):
                ends.append(f"{system.name} {values[max(values)]:.3g}")
        label = f"{heading(name)} of each system over the steps of training."
        return to_svg(figure, identity, f"{label} Last: {'; '.join(ends)}.")


def _draw_training(axes: Axes, comparison: Comparison) -> float:
    """Returns the lowest value drawn."""
    lowest = math.inf
    for system in comparison.systems:
        mean = _mean_of_sound(system, "loss")
        look = looks(comparison)[system.name]
        axes.plot(list(mean), list(mean.values()), color=look.colour, linewidth=1.2, alpha=0.45)
        lowest = min([lowest, *mean.values()])
    return lowest


def _draw_curves(axes: Axes, comparison: Comparison, key: str) -> float:
    """What is recorded at validations. Returns the lowest value drawn."""
    lowest = math.inf
    for system in comparison.systems:
        look = looks(comparison)[system.name]
        line: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes}
        mean = _mean_of_sound(system, key)
        axes.plot(
            list(mean),
            list(mean.values()),
            marker=look.marker,
            markersize=5,
            markevery=max(1, len(mean) // 8),
            **line,
        )
        lowest = min([lowest, *mean.values()])
        for run in system.runs if len(system.runs) > 1 else []:
            each = curve(run, key)
            axes.plot(list(each), list(each.values()), linewidth=0.9, alpha=0.7, **line)
            lowest = min([lowest, *each.values()])
    return lowest


def _mean_of_sound(system: SystemSummary, key: str) -> Curve:
    """Returns the mean curve of the seeds that did not diverge, or of all if all diverged."""
    return mean_curve([curve(run, key) for run in sound_runs(system) or system.runs])


def _ceiling(comparison: Comparison) -> float | None:
    """The top of the picture: where losses start. A run that explodes leaves through it."""
    runs = _runs(comparison)
    starts = [
        losses[min(losses)]
        for run in [run for run in runs if not diverged(run)] or runs
        for key in ("loss", "eval_loss")
        if (losses := curve(run, key))
    ]
    return max(starts) if starts else None


def _runs(comparison: Comparison) -> list[RunResult]:
    return [run for system in comparison.systems for run in system.runs]


def _last_losses(comparison: Comparison) -> str:
    """The final losses of the lines that are drawn: means over the seeds that did not diverge."""
    ends = []
    for system in comparison.systems:
        losses = _mean_of_sound(system, "eval_loss")
        if not sound_runs(system):
            ends.append(f"{system.name} diverged")
        elif losses:
            ends.append(f"{system.name} {losses[max(losses)]:.3f}")
    several = any(len(system.runs) > 1 for system in comparison.systems)
    which = "Last validation loss, mean over seeds" if several else "Last validation loss"
    return f"{which}: {'; '.join(ends)}." if ends else ""


def _name_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))


# What the heads do


def uniform_entropy(record: AttentionRecord) -> float:
    """The entropy if all experts that may count did so alike."""
    return math.log(record.experts) if record.uniform is None else record.uniform


def site_name(record: AttentionRecord | Course, *, alone: bool = False) -> str:
    """Where a system stands, for titles.

    Args:
        record: of the system.
        alone: the model has a single stack, which needs no name.
    """
    site = record.site
    if record.whole_layer:
        return "Layers" if alone else f"{site.partition('_')[0].capitalize()} layers"
    if alone and site.endswith("_self"):
        return "Self-attention"
    return SITES.get(site, site)


def entropy_by_layer(
    records: list[AttentionRecord],
    words: Words,
    look: Look,
    identity: str,
    *,
    alone: bool = False,
) -> str:
    """Entropy over layers, a line per site, and the entropy of equal weights for reference.

    Args:
        records: of one system.
        words: of this system; they say whether the lowest percentile is drawn too.
        look: of the system.
        identity: unique in the page.
        alone: the model has a single stack.
    """
    bounds = sorted({round(uniform_entropy(record), 6) for record in records})
    sites = list(dict.fromkeys(record.site for record in records))
    with drawing(identity):
        figure, axes = panel(250)
        for bound in bounds:
            axes.axhline(bound, color=MUTED, linestyle="--", linewidth=1.2)
            text = f"uniform: ln {math.exp(bound):.0f} = {bound:.2f}"
            axes.annotate(
                text,
                (0.995, bound),
                xycoords=("axes fraction", "data"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="right",
                va="bottom",
                color=MUTED,
                fontsize=11,
            )
        handles = []
        for site in sites:
            points = sorted((r.layer, r.entropy) for r in records if r.site == site)
            style: dict[str, Any] = {
                "color": look.colour,
                "linestyle": _SITE_DASHES.get(site, "-"),
                "marker": _SITE_MARKERS.get(site, "D"),
                "markersize": 7,
            }
            axes.plot([layer for layer, _ in points], [value for _, value in points], **style)
            name = _short_site(next(r for r in records if r.site == site), alone)
            handles.append(Line2D([], [], label=name, **style))
            lowest = [
                (r.layer, min(r.entropy_percentiles.values()))
                for r in sorted(records, key=lambda record: record.layer)
                if r.site == site and words.shows_lowest and r.entropy_percentiles
            ]
            style |= {"linewidth": 1.2, "alpha": 0.7, "markersize": 4}
            axes.plot([layer for layer, _ in lowest], [value for _, value in lowest], **style)
        layers = sorted({record.layer for record in records})
        axes.set_xticks(layers if len(layers) <= 12 else layers[:: len(layers) // 6])
        axes.set_xlim(layers[0] - 0.4, layers[-1] + 0.4)
        finite = [r.entropy for r in records if math.isfinite(r.entropy)]
        axes.set_ylim(0, 1.18 * max([*finite, *bounds, 0.1]))
        axes.set_xlabel("Layer")
        axes.set_ylabel("Entropy, nats")
        if not alone:
            figure.legend(
                handles=handles, loc="outside upper left", ncols=3, fontsize=11, handlelength=2.4,
                columnspacing=1.2, borderpad=0,
            )  # fmt: skip
        said = "; ".join(f"{_short_site(r, alone)} {r.layer}: {r.entropy:.2f}" for r in records)
        limit = ", ".join(f"{bound:.2f}" for bound in bounds)
        return to_svg(
            figure, identity, f"Entropy per site and layer, {said}; {limit} would be uniform."
        )


def load_scale(records: list[AttentionRecord]) -> float:
    """The load at full colour, in multiples of an even share; at least 2, so even is midway."""
    return max([2.0, *(max(r.load) * r.experts for r in records if r.load)])


def expert_load(
    records: list[AttentionRecord],
    words: Words,
    scale: float,
    identity: str,
    *,
    alone: bool = False,
) -> str:
    """Layers × experts of one site; the stronger a cell's colour, the larger its share.

    Args:
        records: of one site, with equally many experts.
        words: of their system.
        scale: `load_scale` of all sites of the system, so that their colours can be compared.
        identity: unique in the page.
        alone: the model has a single stack.
    """
    records = sorted(records, key=lambda record: record.layer)
    experts = records[0].experts
    with drawing(identity):
        figure, axes = panel(52 + 26 * len(records))
        for row, record in enumerate(records):
            for expert, share in enumerate(record.load):
                opacity = HEAT_OPACITY * min(1.0, max(0.0, share * experts / scale))
                box = Rectangle((expert - 0.5, row - 0.5), 1, 1, alpha=opacity, facecolor=HEAT)
                axes.add_patch(box)
                if experts <= 10:
                    percent = f"{100 * share:.0f}%"
                    axes.text(expert, row, percent, ha="center", va="center", fontsize=11)
        # Lines between the cells, in the colour of the page.
        axes.vlines([e + 0.5 for e in range(experts - 1)], -0.5, len(records) - 0.5, SURFACE, lw=1)
        axes.hlines([r + 0.5 for r in range(len(records) - 1)], -0.5, experts - 0.5, SURFACE, lw=2)
        axes.set_xlim(-0.5, experts - 0.5)
        axes.set_ylim(len(records) - 0.5, -0.5)
        axes.grid(visible=False)
        for side in axes.spines.values():
            side.set(visible=True, color=GRID)
        axes.set_yticks(range(len(records)), [str(record.layer) for record in records])
        axes.tick_params(length=0)
        if experts > 10:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        else:
            axes.set_xticks(range(experts))
        axes.set_xlabel(words.unit.capitalize())
        axes.set_ylabel("Layer")
        said = "; ".join(f"layer {r.layer} {_extremes(r)}" for r in records)
        place = site_name(records[0], alone=alone)
        what = f"{place}, share of each of {experts} {words.units}"
        return to_svg(figure, identity, f"{what}: {said}.")


def _extremes(record: AttentionRecord) -> str:
    return f"from {100 * min(record.load):.1f}% to {100 * max(record.load):.1f}%"


def _short_site(record: AttentionRecord, alone: bool) -> str:
    name = site_name(record, alone=alone)
    return name.removesuffix("-attention").removesuffix(" layers").lower()


# What rules of training record


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


def smoothing_radius(course: Course) -> int:
    """Returns the radius of a smoothing window of about a twentieth of the curve."""
    return len(course.steps) // 40


def course_scale(courses: list[Course]) -> tuple[float, float]:
    """Returns both ends of the scale of all panels of a system: all recorded values, and zero.

    >>> course_scale([])
    (0.0, 1.0)
    """
    values = [
        x for course in courses for rows in course.values.values() for row in rows for x in row
    ]
    finite = [x for x in values if math.isfinite(x)]
    floor, ceiling = min([0.0, *finite]), max([0.0, *finite])
    return (floor, ceiling) if floor < ceiling else (0.0, 1.0)


def course_over_training(
    course: Course,
    words: Words,
    scale: tuple[float, float],
    look: Look,
    identity: str,
    *,
    alone: bool = False,
) -> str:
    """What was recorded of a layer over training, a panel for each name and a line per unit.

    The units that end highest and lowest are named.

    Args:
        course: of the layer.
        words: of its system.
        scale: `course_scale` of all layers of the system, so that their panels can be compared.
        look: of the system.
        identity: unique in the page.
        alone: the model has a single stack.
    """
    floor, ceiling = scale
    said = []
    with drawing(identity):
        number = len(course.values)
        figure, side_by_side = panels(160, columns=number, width=140 * number)
        for axes, (name, rows) in zip(side_by_side, course.values.items(), strict=True):
            symbol = words.recorded.get(name, name)
            radius = smoothing_radius(course)
            curves = [smoothed(list(of_unit), radius) for of_unit in zip(*rows, strict=True)]
            last = [curve[-1] for curve in curves]
            top, bottom = last.index(max(last)), last.index(min(last))
            are_shares = all(math.isclose(sum(row), 1.0, abs_tol=1e-3) for row in rows)
            _draw_course(axes, course.steps, curves, {top, bottom}, look, evenly=are_shares)
            axes.set_title(symbol, loc="left", fontsize=13)
            axes.set_ylim(1.05 * floor, 1.05 * ceiling)
            said.append(
                f"{symbol} ends between {last[bottom]:.3f} ({words.unit} {bottom}) and "
                f"{last[top]:.3f} ({words.unit} {top})"
            )
        site = site_name(course, alone=alone)
        return to_svg(figure, identity, f"{site}, layer {course.layer}: {'; '.join(said)}.")


def _draw_course(
    axes: Axes,
    steps: list[int],
    curves: list[list[float]],
    named: set[int],
    look: Look,
    *,
    evenly: bool,
) -> None:
    """Draws a line for each unit, and for shares a dashed line at the equal share."""
    if evenly:
        axes.axhline(1 / len(curves), color=MUTED, linestyle="--", linewidth=1)
    for unit, values in enumerate(curves):
        width, alpha = (1.8, 1.0) if unit in named else (1.0, 0.6)
        points = _thinned(steps, values)
        axes.plot(*points, color=look.colour, linewidth=width, alpha=alpha)
    for unit in sorted(named):
        axes.annotate(
            str(unit),
            (steps[-1], curves[unit][-1]),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=11,
            annotation_clip=False,
        )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.set_xlabel("Step")


def _thinned(steps: list[int], values: list[float]) -> tuple[list[int], list[float]]:
    """Returns at most as many points as a small plot can show; the last one is kept."""
    stride = -(-len(steps) // _POINTS_OF_A_CURVE)
    kept = sorted({*range(0, len(steps), stride), len(steps) - 1})
    return [steps[i] for i in kept], [values[i] for i in kept]
