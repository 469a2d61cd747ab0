"""The picture of all tests of two systems: the difference of each in units of its margin."""

from collections.abc import Mapping
from typing import NamedTuple

from headwise.analysis.statistics.estimates import SIGNIFICANT
from headwise.claims.catalogue.declared import Paper, Scale
from headwise.claims.judging.verdicts import Kind, Standing, Verdict
from headwise.claims.page.pictures.card import card
from headwise.claims.page.pictures.intervals import draw_interval, name_sides
from headwise.claims.page.pictures.marks import MARKS
from headwise.report.formatting import signed
from headwise.report.svg import GRID, MUTED, TEXT, drawing, panel

_WIDTH, _ROW = 720, 19
_LIMIT = 5.0  # margins, beyond which an interval is cut
_LETTERS = 54  # of a test


class _Row(NamedTuple):
    claim: str
    test: str
    kind: Kind
    standing: Standing


def forest_of_tests(
    papers: list[Paper], verdicts: Mapping[tuple[str, Scale], Verdict], scale: Scale
) -> str | None:
    """Returns an SVG file with a row for each test; None if no test has a difference.

    Args:
        papers: the claims.
        verdicts: what is known of each at each scale.
        scale: whose tests are drawn.
    """
    rows = [
        _Row(name, finding.test, finding.kind, finding.standing)
        for paper in papers
        for name in paper.claims
        for finding in verdicts[name, scale].findings
        if finding.standing is not None
    ]
    if not rows:
        return None
    identity = f"claims-{scale}-tests"
    with drawing(identity):
        figure, axes = panel(76 + _ROW * len(rows), width=_WIDTH)
        axes.axvspan(-1, 1, color=GRID, alpha=0.45, linewidth=0)
        axes.axvline(0, color=MUTED, linewidth=1.2)
        for number, row in enumerate(rows):
            standing, mark = row.standing, MARKS[row.kind]
            ends = (standing.value, standing.low, standing.high)
            significant = standing.p < SIGNIFICANT
            draw_interval(axes, number, ends, mark.colour, filled=significant, limit=_LIMIT)
            axes.text(
                1.02, number, mark.sign, color=mark.colour, fontsize=12, fontweight="bold",
                transform=axes.get_yaxis_transform(), va="center",
            )  # fmt: skip
        names = [f"{row.claim}  {_shortened(row.test)}" for row in rows]
        axes.set_yticks(range(len(rows)), names, fontsize=10)
        axes.tick_params(axis="y", length=0, labelcolor=TEXT)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(-_LIMIT - 0.4, _LIMIT + 0.4)
        axes.set_xticks(range(-4, 5, 2), ["−4", "−2", "0", "+2", "+4"])
        axes.set_xlabel("Difference in units of the margin")
        name_sides(axes, "the first is worse", "the first is better")
        return card(figure, identity, _told(rows))


def _told(rows: list[_Row]) -> str:
    said = []
    for row in rows:
        value, low, high = (
            signed(x) for x in (row.standing.value, row.standing.low, row.standing.high)
        )
        said.append(f"{row.claim}, {row.test}: {value}, {low} to {high}, {row.kind}")
    return f"Differences in units of the margin with their 95% intervals: {'; '.join(said)}."


def _shortened(test: str) -> str:
    return test if len(test) <= _LETTERS else f"{test[: _LETTERS - 1]}…"
