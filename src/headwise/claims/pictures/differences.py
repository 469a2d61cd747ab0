"""The picture of an experiment: how its systems differ from the baseline, with intervals."""

from collections.abc import Sequence

from headwise.analysis.chance.estimates import Difference
from headwise.analysis.figures.svg import MUTED, SERIES, TEXT, drawing, panels
from headwise.analysis.formatting import heading, in_words, signed
from headwise.claims.experiment_results import ExperimentResult
from headwise.claims.pictures.card import card
from headwise.claims.pictures.intervals import draw_interval, name_sides

_WIDTH, _ROW = 640, 22


def differences_picture(results: Sequence[ExperimentResult]) -> str | None:
    """Returns an SVG file: a row for each system, score at the left and test loss at the right.

    Args:
        results: of an experiment, on each of its data sets.

    Returns:
        The text of the file; None if no system has a difference with an interval.
    """
    rows: list[tuple[str, Difference | None, Difference | None]] = []
    for result in results:
        of = "" if result.dataset is None else f"{result.dataset}: "
        rows += [
            (f"{of}{name}", result.scores.get(name), result.losses.get(name))
            for name in (system.name for system in result.systems)
            if result.scores.get(name) is not None or result.losses.get(name) is not None
        ]
    if not rows:
        return None
    first = results[0]
    score = next((s.score for s in first.systems if s.score is not None), None)
    name, digits = ("score", 1) if score is None else (score.unit, score.digits)
    is_higher = score is None or score.higher_is_better
    identity = f"claims-{first.scale}-{first.name}-differences"
    with drawing(identity):
        figure, (left, right) = panels(72 + _ROW * len(rows), columns=2, width=_WIDTH)
        for axes, index, better in ((left, 1, is_higher), (right, 2, False)):
            axes.axvline(0, color=MUTED, linewidth=1.2)
            for number, row in enumerate(rows):
                found = row[index]
                if isinstance(found, Difference):
                    is_better = (found.value > 0) == better
                    colour = SERIES[1] if is_better else SERIES[2]
                    ends = (found.value, found.low, found.high)
                    filled = found.significant
                    draw_interval(axes, number, ends, colour, filled=filled)
            axes.grid(visible=False, axis="y")
            axes.tick_params(axis="y", length=0, labelcolor=TEXT)
            axes.locator_params(axis="x", nbins=5)
            name_sides(axes, *(("worse", "better") if better else ("better", "worse")))
        left.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=11)
        left.set_ylim(len(rows) - 0.4, -0.6)
        left.set_xlabel(heading(name))
        right.set_xlabel(f"Test loss, {first.loss_name}")
        return card(figure, identity, _told(rows, first.baseline, name, digits))


def _told(
    rows: Sequence[tuple[str, Difference | None, Difference | None]],
    baseline: str,
    score: str,
    digits: int,
) -> str:
    said = []
    for row, of_score, of_loss in rows:
        parts = [
            f"{what} {signed(found.value, places)}, {signed(found.low, places)} to "
            f"{signed(found.high, places)}"
            for what, found, places in ((in_words(score), of_score, digits), ("loss", of_loss, 3))
            if found is not None
        ]
        said.append(f"{row} {', '.join(parts)}")
    return f"Differences from {baseline} with their 95% intervals: {'; '.join(said)}."
