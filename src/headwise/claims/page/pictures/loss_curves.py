"""The picture of an experiment: the validation losses of its systems near the end of training."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from headwise.analysis.how_soon import Curve, mean_curve
from headwise.claims.page.experiment_results import ExperimentResult, SystemResult
from headwise.claims.page.pictures.card import card
from headwise.report.svg import MUTED, SERIES, TEXT, drawing

_WIDTH, _HEIGHT, _COLUMNS = 640, 150, 3  # of all panels, and of a row of them
_FROM = 0.5  # of the steps: before, all curves fall alike and would set the scale


class _Panel(NamedTuple):
    title: str
    baseline: Sequence[Curve]
    system: Sequence[Curve]


def loss_curves(results: Sequence[ExperimentResult]) -> str | None:
    """Returns an SVG file with a panel for each system, in which the baseline is drawn too.

    Args:
        results: of an experiment, on each of its data sets.

    Returns:
        The text of the file; None if a baseline, or its validations, are not there.
    """
    shown = _panels(results)
    if not shown:
        return None
    first = results[0]
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    identity = f"claims-{first.scale}-{first.name}-losses"
    with drawing(identity):
        size = (_WIDTH / 72, (70 + _HEIGHT * rows) / 72)
        figure = Figure(figsize=size, dpi=72, layout="constrained")
        # On one data set all panels have one scale, so that they can be compared.
        one_scale = len(results) == 1
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=one_scale)
        for number, (axes, panel) in enumerate(zip(grid.flat, shown, strict=False)):
            _draw(axes, panel)
            axes.tick_params(length=0, labelbottom=number >= len(shown) - columns)
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_axis_off()
        figure.supylabel("Validation loss", fontsize=12, color=MUTED)
        figure.supxlabel("Step", fontsize=12, color=MUTED)
        figure.suptitle(
            f"dashed: {first.baseline}; solid: the named system; shaded: range of the seeds",
            fontsize=11, color=MUTED,
        )  # fmt: skip
        return card(figure, identity, _told(shown, first))


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
    """The losses of each seed without the first steps."""
    last = max((step for curve in system.curves for step in curve), default=0)
    late = [
        {step: loss for step, loss in curve.items() if step >= _FROM * last}
        for curve in system.curves
    ]
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


def _told(shown: Sequence[_Panel], first: ExperimentResult) -> str:
    said = []
    for panel in shown:
        ends = []
        for curves in (panel.system, panel.baseline):
            mean = mean_curve(curves)
            ends += [f"{mean[max(mean)]:.3f}"] if mean else []
        said.append(f"{panel.title} {' against '.join(ends)}")
    return (
        f"Validation loss in the second half of the steps, mean and range of the seeds, beside "
        f"{first.baseline}; at the end {'; '.join(said)}."
    )
