"""The figure of validation loss against training loss, an `<svg>` element."""

import math

import numpy as np

from headwise.analysis.how_soon import by_training_loss
from headwise.analysis.results import Comparison, SystemSummary, diverged
from headwise.report.figures.looks import looks
from headwise.report.figures.svg import drawing, panel, to_svg


def losses_against_each_other(comparison: Comparison, identity: str) -> str | None:
    """Validation loss against training loss, a line per run; training goes to the right.

    Args:
        comparison: the runs, of which those that diverged are left out.
        identity: unique in the page.

    Returns:
        The figure; None if no run has two points.
    """
    curves = {system.name: _curves(system) for system in comparison.systems}
    drawn = [points for of_system in curves.values() for points in of_system]
    if not drawn:
        return None
    # From the start of training lines would be long and steep; what matters lies at the end.
    widest = max(float(points[len(points) // 4, 0]) for points in drawn)
    with drawing(identity):
        figure, axes = panel(290)
        for system in comparison.systems:
            look = looks(comparison)[system.name]
            for number, points in enumerate(curves[system.name]):
                axes.plot(
                    points[:, 0],
                    points[:, 1],
                    color=look.colour,
                    linestyle=look.dashes,
                    marker=look.marker if number == 0 else None,
                    markersize=5,
                    markevery=max(1, len(points) // 8),
                    linewidth=2 if number == 0 else 0.9,
                )
        shown = np.concatenate([points[points[:, 0] <= widest] for points in drawn])
        (left, low), (right, high) = shown.min(0), shown.max(0)
        axes.set_xlim(right + _room(left, right), left - _room(left, right))
        axes.set_ylim(low - _room(low, high), high + _room(low, high))
        axes.set_xlabel("Training loss, falling to the right")
        axes.set_ylabel("Validation loss")
        ends = [
            f"{name} {points[-1, 1]:.3f} at {points[-1, 0]:.3f}"
            for name, of_system in curves.items()
            for points in of_system[:1]
        ]
        label = "Validation loss of each system against its training loss. Last: "
        return to_svg(figure, identity, f"{label}{'; '.join(ends)}.")


def _curves(system: SystemSummary) -> list[np.ndarray]:
    found = [by_training_loss(run.history) for run in system.runs if not diverged(run)]
    return [points for points in found if len(points) > 1]


def _room(low: float, high: float) -> float:
    return 0.06 * (high - low) or 0.05 * max(1.0, math.fabs(high))
