"""The figures of the report that show scores, each an `<svg>` element."""

import math

from matplotlib.axes import Axes

from headwise.analysis.results import Comparison, SystemSummary, first_score, sound_runs
from headwise.report.figures.looks import Look, looks
from headwise.report.figures.svg import MUTED, TEXT, drawing, panel, to_svg
from headwise.report.formatting import heading, signed
from headwise.report.verdict import interval_of

_LETTERS_OF_A_NAME = 22


def intervals(comparison: Comparison, identity: str) -> str | None:
    """The first score: a point for each seed, the mean and its interval; None for one system."""
    score = first_score(comparison)
    systems = [s for s in comparison.systems if score.name in s.estimates]
    if len(systems) < 2:
        return None
    said = []
    with drawing(identity):
        figure, axes = panel(46 + 26 * len(systems))
        for row, system in enumerate(systems):
            estimate = system.estimates[score.name]
            text = f"{system.name} {estimate.value:.{score.digits}f}"
            look = looks(comparison)[system.name]
            if (ends := interval_of(estimate)) is not None:
                axes.plot(ends, [row, row], color=look.colour, linewidth=2, marker="|")
                text += f", {ends[0]:.{score.digits}f} to {ends[1]:.{score.digits}f}"
            _draw_seeds(axes, row, system, look)
            axes.plot(estimate.value, row, marker=look.marker, markersize=8, color=look.colour)
            said.append(text)
        _name_rows(axes, systems)
        axes.set_xlabel(heading(score.name))
        label = f"{heading(score.name)} of each system with its 95% interval: {'; '.join(said)}."
        return to_svg(figure, identity, label)


def differences(comparison: Comparison, identity: str) -> str | None:
    """The differences of the first score to the baseline with their intervals, and zero."""
    score = first_score(comparison)
    systems = [s for s in comparison.systems if s.difference is not None]
    if not systems:
        return None
    said = []
    with drawing(identity):
        figure, axes = panel(46 + 26 * len(systems))
        axes.axvline(0, color=MUTED, linewidth=1.2)
        for row, system in enumerate(systems):
            found, look = system.difference, looks(comparison)[system.name]
            assert found is not None
            ends = (found.low, found.high)
            axes.plot(ends, [row, row], color=look.colour, linewidth=2, marker="|")
            filled = look.colour if found.significant else "none"
            axes.plot(
                found.value,
                row,
                marker=look.marker,
                markersize=8,
                color=look.colour,
                markerfacecolor=filled,
            )
            value, *interval = (signed(x, score.digits) for x in (found.value, *ends))
            said.append(f"{system.name} {value}, {' to '.join(interval)}")
        _name_rows(axes, systems)
        axes.set_xlabel(f"{heading(score.name)}, difference to {_shortened(comparison.baseline)}")
        label = f"Differences to the baseline with their 95% intervals: {'; '.join(said)}."
        return to_svg(figure, identity, label)


def _draw_seeds(axes: Axes, row: int, system: SystemSummary, look: Look) -> None:
    values = [run.scores[0].value for run in sound_runs(system)]
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) > 1:
        # Below the line of the interval, which would hide them.
        axes.plot(
            finite,
            [row + 0.24] * len(finite),
            marker=look.marker,
            markersize=4.5,
            linestyle="none",
            color=look.colour,
            alpha=0.5,
        )


def _name_rows(axes: Axes, systems: list[SystemSummary]) -> None:
    axes.set_yticks(range(len(systems)), [_shortened(s.name) for s in systems])
    axes.tick_params(axis="y", length=0, labelcolor=TEXT)
    axes.set_ylim(len(systems) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def _shortened(name: str) -> str:
    """Shortens a long name in its middle, since similar names differ at the end."""
    if len(name) <= _LETTERS_OF_A_NAME:
        return name
    half = (_LETTERS_OF_A_NAME - 1) // 2
    return f"{name[:half]}…{name[-half:]}"
