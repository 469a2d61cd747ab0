"""The pictures of docs/claims.md: SVG files that say to screen readers all that they show."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from evidence.answers import Answer
from evidence.claims import Paper, Scale
from evidence.tables import ExperimentResult, SystemResult
from evidence.verdicts import Finding, Kind, Verdict
from headwise.analysis.how_soon import Curve, mean_curve
from headwise.analysis.statistics.estimates import SIGNIFICANT, Difference
from headwise.report.formatting import heading, in_words, signed
from headwise.report.svg import (
    GRID,
    MUTED,
    SERIES,
    TEXT,
    drawing,
    looks_of,
    panel,
    panels,
    reference_line,
    to_svg,
)

# A file does not know the colours of its page: it is on a white card, in the light colours of the
# report, in which colour-blind readers can tell the series apart.
_COLOURS = {
    "currentColor": "#1b1e23",
    "var(--muted)": "#5a6270",
    "var(--line)": "#dde1e7",
    "var(--surface)": "#ffffff",
    "var(--heat)": "#1f78c8",
    "var(--series-0)": "#2b2f36",
    "var(--series-1)": "#1f3fd0",
    "var(--series-2)": "#e34a0a",
    "var(--series-3)": "#23906a",
    "var(--series-4)": "#d071a4",
    "var(--series-5)": "#8c1c13",
    "var(--series-6)": "#5a86f5",
}


class Mark(NamedTuple):
    """How a verdict is drawn: never by its colour alone."""

    sign: str
    colour: str


MARKS: dict[Kind, Mark] = {
    "confirmed": Mark("✓", _COLOURS["var(--series-3)"]),
    "contradicted": Mark("✗", _COLOURS["var(--series-2)"]),
    "not comparable": Mark("≠", _COLOURS["var(--muted)"]),
    "no difference": Mark("=", _COLOURS["var(--series-1)"]),
    "cannot be told": Mark("?", _COLOURS["var(--muted)"]),
    "not run": Mark("–", _COLOURS["var(--muted)"]),
}

_FONTS = "'DejaVu Sans', Verdana, sans-serif"
# What says where something stands; hundredths of a point are more than an eye sees.
_PLACES = re.compile(r'\b(?:d|x|y|transform)="[^"]*"')
_LONG = re.compile(r"(\d\.\d\d)\d+")
_ROOT = re.compile(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)" (.*?)>')


def card(figure: Figure, identity: str, label: str) -> str:
    """Returns the text of an SVG file.

    Args:
        figure: drawn with `headwise.analysis.figures.svg.drawing`.
        identity: a prefix of all ids.
        label: all that the picture says, for screen readers.
    """
    svg = str(to_svg(figure, label, identity))
    for variable, colour in _COLOURS.items():
        svg = svg.replace(variable, colour)
    svg = _PLACES.sub(lambda found: _LONG.sub(r"\1", found[0]), svg)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r"'DejaVu Sans',[^;\"]*sans-serif", _FONTS, svg)
    root = _ROOT.match(svg)
    assert root is not None, svg[:200]
    width, height, meaning = root.groups()
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width}" height="{height}" viewBox="-10 -10 {float(width) + 20:g} '
        f'{float(height) + 20:g}" {meaning}>'
        f'\n<rect x="-9.5" y="-9.5" width="{float(width) + 19:g}" height="{float(height) + 19:g}" '
        f'rx="8" fill="#ffffff" stroke="#dde1e7"/>'
    )
    return head + svg[root.end() :] + "\n"


_LIMIT = 5.0  # margins, beyond which an interval of the forest of tests is cut
_TEST_LETTERS = 54


def forest_of_tests(
    papers: list[Paper], verdicts: Mapping[tuple[str, Scale], Verdict], scale: Scale
) -> str | None:
    """Returns an SVG file with a row for each test of two systems; None without any.

    A row has the difference in units of its margin.
    """
    rows = [
        (name, finding, finding.standing)
        for paper in papers
        for name in paper.claims
        for finding in verdicts[name, scale].findings
        if finding.standing is not None
    ]
    if not rows:
        return None
    identity = f"claims-{scale}-tests"
    with drawing(identity):
        figure, axes = panel(76 + 19 * len(rows), width=720)
        axes.axvspan(-1, 1, color=GRID, alpha=0.45, linewidth=0)
        for number, (_, finding, standing) in enumerate(rows):
            mark = MARKS[finding.kind]
            significant = standing.p < SIGNIFICANT
            _interval(axes, number, standing[:3], mark.colour, filled=significant, limit=_LIMIT)
            axes.text(
                1.02, number, mark.sign, color=mark.colour, fontsize=12, fontweight="bold",
                transform=axes.get_yaxis_transform(), va="center",
            )  # fmt: skip
        axes.set_yticks(range(len(rows)), [_named(name, of) for name, of, _ in rows], fontsize=10)
        _of_intervals(axes, len(rows), "the first is worse", "the first is better")
        axes.set_xlim(-_LIMIT - 0.4, _LIMIT + 0.4)
        axes.set_xticks(range(-4, 5, 2), ["−4", "−2", "0", "+2", "+4"])
        axes.set_xlabel("Difference in units of the margin")
        said = [
            f"{name}, {of.test}: {signed(at.value)}, {signed(at.low)} to {signed(at.high)}, "
            f"{of.kind}"
            for name, of, at in rows
        ]
        label = "Differences in units of the margin with their 95% intervals"
        return card(figure, identity, f"{label}: {'; '.join(said)}.")


def _named(claim: str, finding: Finding) -> str:
    test, cut = finding.test, _TEST_LETTERS
    return f"{claim}  {test if len(test) <= cut else test[: cut - 1] + '…'}"


def differences_picture(results: Sequence[ExperimentResult]) -> str | None:
    """Returns an SVG file: a row for each system, score at the left and test loss at the right.

    Args:
        results: of an experiment, on each of its data sets.

    Returns:
        The text of the file; None if no system has a difference with an interval.
    """
    rows = [
        (name if result.dataset is None else f"{result.dataset}: {name}", of_score, of_loss)
        for result in results
        for name, of_score, of_loss in result.differences
    ]
    if not rows:
        return None
    first, score = results[0], results[0].score
    name, digits = ("score", 1) if score is None else (score.unit, score.digits)
    identity = f"claims-{first.conditions.scale}-{first.conditions.name}-differences"
    with drawing(identity):
        figure, (left, right) = panels(72 + 22 * len(rows), columns=2, width=640)
        figure.set_layout_engine("constrained", wspace=0.1)
        is_higher = score is None or score.higher_is_better
        _differences(left, [of_score for _, of_score, _ in rows], higher_is_better=is_higher)
        _differences(right, [of_loss for _, _, of_loss in rows], higher_is_better=False)
        left.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=11)
        left.set_ylim(len(rows) - 0.4, -0.6)
        left.set_xlabel(heading(name))
        right.set_xlabel(f"Test loss, {first.loss_name}")
        said = [
            f"{system} "
            + ", ".join(
                f"{what} {signed(found.value, places)}, {signed(found.low, places)} to "
                f"{signed(found.high, places)}"
                for what, found, places in ((in_words(name), of, digits), ("loss", loss, 3))
                if found is not None
            )
            for system, of, loss in rows
        ]
        label = f"Differences from {first.baseline} with their 95% intervals"
        return card(figure, identity, f"{label}: {'; '.join(said)}.")


def _differences(axes: Axes, found: Sequence[Difference | None], *, higher_is_better: bool) -> None:
    for number, each in enumerate(found):
        if each is not None:
            colour = SERIES[1] if (each.value > 0) == higher_is_better else SERIES[2]
            ends = (each.value, each.low, each.high)
            _interval(axes, number, ends, colour, filled=each.significant)
    sides = ("worse", "better") if higher_is_better else ("better", "worse")
    _of_intervals(axes, len(found), *sides)
    axes.locator_params(axis="x", nbins=5)


def _of_intervals(axes: Axes, rows: int, left: str, right: str) -> None:
    """Gives a plot of intervals its axes, and says above it what its two halves mean."""
    axes.axvline(0, color=MUTED, linewidth=1.2, zorder=1)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0, labelcolor=TEXT)
    for place, text, side in ((0.0, f"← {left}", "left"), (1.0, f"{right} →", "right")):
        axes.annotate(
            text, (place, 1.0), xycoords="axes fraction", xytext=(0, 5),
            textcoords="offset points", ha=side, fontsize=11, color=MUTED,
        )  # fmt: skip


def _interval(
    axes: Axes,
    row: float,
    ends: tuple[float, float, float],
    colour: str,
    *,
    filled: bool,
    limit: float = np.inf,
) -> None:
    """Draws the interval as a line and the value as a dot, which is filled if it is significant.

    An interval that goes beyond plus or minus the limit ends there with an arrowhead.
    """
    for end, head in ((ends[1], "<"), (ends[2], ">")):
        if abs(end) > limit:
            place = limit if end > 0 else -limit
            axes.plot(place, row, marker=head, markersize=6, color=colour, clip_on=False)
    value, low, high = np.clip(ends, -limit, limit)
    axes.plot([low, high], [row, row], color=colour, linewidth=2, solid_capstyle="butt")
    face = colour if filled else "#ffffff"
    axes.plot(
        value, row, marker="o", markersize=6.5, color=colour, markerfacecolor=face,
        markeredgewidth=1.6,
    )  # fmt: skip


class _Panel(NamedTuple):
    title: str
    baseline: Sequence[Curve]
    system: Sequence[Curve]


def loss_curves(results: Sequence[ExperimentResult]) -> str | None:
    """Returns an SVG file with a panel for each system, in which the baseline is drawn too.

    A panel has the validation losses of the second half of the steps: before, all curves fall alike
    and would set the scale.

    Args:
        results: of an experiment, on each of its data sets.

    Returns:
        The text of the file; None if a baseline, or its validations, are not there.
    """
    shown = _panels(results)
    if not shown:
        return None
    first = results[0]
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    identity = f"claims-{first.conditions.scale}-{first.conditions.name}-losses"
    with drawing(identity):
        size = (640 / 72, (70 + 150 * rows) / 72)
        figure = Figure(figsize=size, dpi=72, layout="constrained")
        # On one data set all panels have one scale, so that they can be compared.
        one_scale = len(results) == 1
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=one_scale)
        for number, (axes, of) in enumerate(zip(grid.flat, shown, strict=False)):
            _draw(axes, of)
            axes.tick_params(length=0, labelbottom=number >= len(shown) - columns)
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_axis_off()
        figure.supylabel("Validation loss", fontsize=12, color=MUTED)
        figure.supxlabel("Step", fontsize=12, color=MUTED)
        figure.suptitle(
            f"dashed: {first.baseline}; solid: the named system; shaded: range of the seeds",
            fontsize=11, color=MUTED,
        )  # fmt: skip
        ends = [
            [f"{mean[max(mean)]:.3f}" for c in (of.system, of.baseline) if (mean := mean_curve(c))]
            for of in shown
        ]
        said = [f"{of.title} {' against '.join(at)}" for of, at in zip(shown, ends, strict=True)]
        return card(
            figure,
            identity,
            f"Validation loss in the second half of the steps, mean and range of the seeds, beside "
            f"{first.baseline}; at the end {'; '.join(said)}.",
        )


def _panels(results: Sequence[ExperimentResult]) -> list[_Panel]:
    found = []
    for result in results:
        of = {system.name: _late(system) for system in result.systems}
        baseline = of.get(result.baseline)
        if not baseline:
            return []
        where = "" if result.dataset is None else f", {result.dataset}"
        others = [name for name in of if name != result.baseline and of[name]]
        found += [_Panel(f"{name}{where}", baseline, of[name]) for name in others]
        if not others:
            found.append(_Panel(f"{result.baseline}{where}", baseline, []))
    return found


def _late(system: SystemResult) -> list[Curve]:
    """The losses of each seed without the first half of the steps."""
    last = max((step for curve in system.curves for step in curve), default=0)
    late = [{s: loss for s, loss in curve.items() if s >= 0.5 * last} for curve in system.curves]
    return [curve for curve in late if len(curve) > 1]


def _draw(axes: Axes, panel: _Panel) -> None:
    for curves, colour, dashes in (
        (panel.baseline, SERIES[0], (0, (3, 2))),
        (panel.system, SERIES[2], "-"),
    ):
        mean = mean_curve(curves)
        if not mean:
            continue
        values = np.array([[curve[step] for step in mean] for curve in curves])
        if len(curves) > 1:
            ends = (values.min(0), values.max(0))
            axes.fill_between(list(mean), *ends, color=colour, alpha=0.18, linewidth=0)
        axes.plot(list(mean), list(mean.values()), color=colour, linestyle=dashes, linewidth=1.8)
    axes.set_title(panel.title, fontsize=11, color=TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))


def trend_lines(answer: Answer) -> str | None:
    """Returns an SVG file of a question: the differences from the baseline along the key.

    There is a line for each system, and an interval at each point; None unless a system is known
    at two points.
    """
    question = answer.question
    baseline, *others = question.systems
    known = {
        system: [
            (place, of.value, of)
            for place, of in enumerate(answer.told[system])
            if of.value is not None
        ]
        for system in others
    }
    drawn = {system: points for system, points in known.items() if len(points) > 1}
    found = next((p.found for of in drawn.values() for *_, p in of if p.found), None)
    if found is None:
        return None
    look_of = looks_of(question.systems)
    identity = f"why-{question.scale}-{question.name}"
    said = []
    with drawing(identity):
        figure, axes = panel(320, width=640)
        reference_line(axes, 0.0, baseline)
        for number, (system, points) in enumerate(drawn.items()):
            # Lines stand beside each other, so that intervals do not cover others.
            look, aside = look_of[system], 0.06 * (number - (len(drawn) - 1) / 2)
            axes.plot(
                [place + aside for place, *_ in points], [value for _, value, _ in points],
                color=look.colour, linestyle=look.dashes, marker=look.marker, markersize=7,
                label=system,
            )  # fmt: skip
            for place, _, point in points:
                if point.difference is not None:
                    ends = [point.difference.low, point.difference.high]
                    across = [place + aside] * 2
                    axes.plot(across, ends, color=look.colour, linewidth=1.2, marker="_")
            at = [f"{of.said(found.digits)} at {question.at[place]}" for place, _, of in points]
            said.append(f"{system} {', '.join(at)}; {answer.trends[system]}")
        axes.set_xticks(range(len(question.at)), [str(value) for value in question.at])
        axes.set_xlim(-0.4, len(question.at) - 0.6)
        better = "above" if found.higher_is_better else "below"
        axes.set_xlabel(question.over)
        axes.set_ylabel(f"Test {in_words(found.unit)} − {baseline}'s\n({better} 0: better)")
        figure.legend(loc="outside upper left", ncols=4, fontsize=11)
        label = f"Differences from {baseline} of the test {in_words(found.unit)}: "
        return card(figure, identity, f"{label}{'. '.join(said)}.")
