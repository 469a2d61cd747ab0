"""The picture of all claims at a scale: a tile for each, with its verdict."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from headwise.claims.catalogue.declared import Paper, Scale
from headwise.claims.judging.verdicts import Kind, Verdict
from headwise.claims.page.pictures.card import card
from headwise.claims.page.pictures.marks import MARKS
from headwise.report.svg import MUTED, TEXT, drawing

_COLUMNS, _WIDTH, _HEIGHT, _GAP, _HEAD = 4, 146, 40, 6, 24  # of tiles, in points
_LEGEND = 30
_LETTERS = 100  # of the title of a paper


def overview(
    papers: list[Paper], verdicts: Mapping[tuple[str, Scale], Verdict], scale: Scale
) -> str:
    """Returns an SVG file with a tile for each claim, by paper.

    Args:
        papers: the claims.
        verdicts: what is known of each at each scale.
        scale: whose verdicts are drawn.
    """
    width = _COLUMNS * (_WIDTH + _GAP) - _GAP
    rows = sum(-(-len(paper.claims) // _COLUMNS) for paper in papers)
    height = _LEGEND + len(papers) * _HEAD + rows * (_HEIGHT + _GAP)
    identity = f"claims-{scale}"
    said = []
    with drawing(identity):
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        axes.set_axis_off()
        kinds = [verdicts[name, scale].kind for paper in papers for name in paper.claims]
        _legend(axes, kinds)
        top = float(_LEGEND)
        for paper in papers:
            title = paper.paper if len(paper.paper) <= _LETTERS else f"{paper.paper[:_LETTERS]}…"
            axes.text(0, top + _HEAD - 7, title, fontsize=11, color=MUTED)
            top += _HEAD
            for number, (name, claim) in enumerate(paper.claims.items()):
                row, column = divmod(number, _COLUMNS)
                place = (column * (_WIDTH + _GAP), top + row * (_HEIGHT + _GAP))
                verdict = verdicts[name, scale]
                _tile(axes, place, name, claim.short, verdict)
                stale = " (stale)" if verdict.stale else ""
                said.append(f"{name} {claim.short}: {verdict.kind}{stale}")
            top += -(-len(paper.claims) // _COLUMNS) * (_HEIGHT + _GAP)
        return card(figure, identity, f"Verdicts at the scale {scale}: {'; '.join(said)}.")


def _legend(axes: Axes, kinds: list[Kind]) -> None:
    """The marks with their meaning and how often each occurs, spread over the width."""
    left = 0.0
    for kind, mark in MARKS.items():
        axes.text(left, 13, mark.sign, fontsize=13, color=mark.colour, fontweight="bold")
        said = f"{kinds.count(kind)} {kind}"
        axes.text(left + 15, 13, said, fontsize=11.5, color=TEXT)
        left += 15 + 6.9 * len(said) + 13


def _tile(axes: Axes, place: tuple[float, float], name: str, short: str, verdict: Verdict) -> None:
    mark = MARKS[verdict.kind]
    known = verdict.kind != "not run"
    for alpha, face, edge in ((0.16, mark.colour, "none"), (1.0, "none", mark.colour)):
        if face == "none" or known:
            axes.add_patch(
                FancyBboxPatch(
                    (place[0] + 4, place[1] + 4), _WIDTH - 8, _HEIGHT - 8,
                    boxstyle="round,pad=4,rounding_size=5", facecolor=face, edgecolor=edge,
                    alpha=alpha, linewidth=1.2, linestyle="-" if known else ":", clip_on=False,
                )
            )  # fmt: skip
    axes.text(
        place[0] + 8, place[1] + 16, name, fontsize=13, fontweight="bold",
        color=TEXT if known else MUTED,
    )  # fmt: skip
    sign = f"{mark.sign} stale" if verdict.stale else mark.sign
    axes.text(
        place[0] + _WIDTH - 8, place[1] + 16, sign, fontsize=14, fontweight="bold",
        color=mark.colour, ha="right",
    )  # fmt: skip
    axes.text(place[0] + 8, place[1] + 33, short, fontsize=12, color=TEXT if known else MUTED)
