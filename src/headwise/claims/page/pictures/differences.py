"""The picture of an experiment: how its systems differ from the baseline, with intervals."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from headwise.analysis.statistics.estimates import Difference
from headwise.claims.page.experiment_results import ExperimentResult
from headwise.claims.page.pictures.card import card
from headwise.claims.page.pictures.intervals import draw_interval, name_sides
from headwise.report.formatting import heading, in_words, signed
from headwise.report.svg import MUTED, SERIES, TEXT, drawing, panels

_WIDTH, _ROW = 640, 22


class _Row(NamedTuple):
    name: str
    score: Difference | None
    loss: Difference | None


def differences_picture(results: Sequence[ExperimentResult]) -> str | None:
    """Returns an SVG file: a row for each system, score at the left and test loss at the right.

    Args:
        results: of an experiment, on each of its data sets.

    Returns:
        The text of the file; None if no system has a difference with an interval.
    """
    rows = [row for result in results for row in _rows(result)]
    if not rows:
        return None
    first = results[0]
    score = next((s.score for s in first.systems if s.score is not None), None)
    name, digits = ("score", 1) if score is None else (score.unit, score.digits)
    is_higher = score is None or score.higher_is_better
    identity = f"claims-{first.scale}-{first.name}-differences"
    with drawing(identity):
        figure, (left, right) = panels(72 + _ROW * len(rows), columns=2, width=_WIDTH)
        figure.set_layout_engine("constrained", wspace=0.1)
        _draw(left, [row.score for row in rows], higher_is_better=is_higher)
        _draw(right, [row.loss for row in rows], higher_is_better=False)
        left.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=11)
        left.set_ylim(len(rows) - 0.4, -0.6)
        left.set_xlabel(heading(name))
        right.set_xlabel(f"Test loss, {first.loss_name}")
        return card(figure, identity, _told(rows, first.baseline, name, digits))


def _rows(result: ExperimentResult) -> list[_Row]:
    before = "" if result.dataset is None else f"{result.dataset}: "
    found = [
        _Row(f"{before}{name}", result.scores.get(name), result.losses.get(name))
        for name in (system.name for system in result.systems)
    ]
    return [row for row in found if row.score is not None or row.loss is not None]


def _draw(axes: Axes, found: Sequence[Difference | None], *, higher_is_better: bool) -> None:
    axes.axvline(0, color=MUTED, linewidth=1.2)
    for number, each in enumerate(found):
        if each is not None:
            is_better = (each.value > 0) == higher_is_better
            colour = SERIES[1] if is_better else SERIES[2]
            ends = (each.value, each.low, each.high)
            draw_interval(axes, number, ends, colour, filled=each.significant)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0, labelcolor=TEXT)
    axes.locator_params(axis="x", nbins=5)
    name_sides(axes, *(("worse", "better") if higher_is_better else ("better", "worse")))


def _told(rows: Sequence[_Row], baseline: str, score: str, digits: int) -> str:
    said = []
    for row in rows:
        parts = [
            f"{what} {signed(found.value, places)}, {signed(found.low, places)} to "
            f"{signed(found.high, places)}"
            for what, found, places in ((in_words(score), row.score, digits), ("loss", row.loss, 3))
            if found is not None
        ]
        said.append(f"{row.name} {', '.join(parts)}")
    return f"Differences from {baseline} with their 95% intervals: {'; '.join(said)}."
