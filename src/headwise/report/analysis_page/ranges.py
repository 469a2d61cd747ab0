"""The section of the page that shows the least, mean and greatest weight of frequent tokens."""

import re
from collections.abc import Mapping, Sequence

from markupsafe import Markup
from matplotlib.axes import Axes

from headwise.analysis.decisions.ranges import PlaceRanges
from headwise.analysis.decisions.record import RunAnalysis
from headwise.heads.words import Words
from headwise.report.analysis_page.section import Section
from headwise.report.place_names import place_names
from headwise.report.rendering import rendered
from headwise.report.svg import MUTED, Look, drawing, panel, to_svg

IDENTITY = "ranges"
SHOWN = 12  # tokens in a figure
_LETTERS = 16


def ranges_section(runs: Sequence[RunAnalysis], looks: Mapping[str, Look]) -> Section | None:
    """A figure for each run and stack; None if no run has tokens."""
    made: list[tuple[str, Words, PlaceRanges, Markup]] = []
    for run in runs:
        names = place_names([found.where for found in run.ranges])
        by_stack: dict[str, list[tuple[PlaceRanges, str]]] = {}
        for found, name in zip(run.ranges, names, strict=True):
            by_stack.setdefault(found.where.stack, []).append((found, name))
        for of_stack in by_stack.values():
            found, name = max(of_stack, key=lambda each: each[0].spread)
            title = f"{run.name}, {name}" if len(runs) > 1 else name
            identity = f"{IDENTITY}-{len(made)}"
            words = run.words.get(found.where.system, Words())
            svg = token_ranges(found, title, words, looks[run.name], identity)
            made.append((title, words, found, svg))
    if not made:
        return None
    kinds = list(dict.fromkeys(found.word for _, _, found, _ in made))
    body = rendered("analysis_page/ranges.html.jinja", made=made, shown=SHOWN, kinds=kinds)
    return Section(
        IDENTITY, "Weights of frequent " + " and ".join(f"{k}s" for k in kinds), body=body
    )


def token_ranges(found: PlaceRanges, title: str, words: Words, look: Look, identity: str) -> Markup:
    """A line from the least to the greatest weight of each token, with the mean as a dot."""
    tokens = found.tokens[:SHOWN]
    said, coloured = [], False
    with drawing(identity):
        figure, axes = panel(52 + 20 * len(tokens))
        for row, token in enumerate(tokens):
            unit = token.units[0]
            if found.units == 2:
                unit = next(each for each in token.units if each.unit == 0)
            ends = (unit.least, unit.greatest)
            axes.plot(ends, [row, row], color=look.colour, linewidth=2, marker="|", markersize=8)
            axes.plot(unit.mean, row, color=look.colour, marker="o", markersize=7)
            text = f"{unit.least:.2f}, {unit.mean:.2f}, {unit.greatest:.2f}"
            said.append(f"{token.name} {text} ({words.unit} {unit.unit})")
            if found.units > 2:
                axes.annotate(
                    str(unit.unit), (unit.greatest, row), xytext=(6, 0), va="center", fontsize=10,
                    textcoords="offset points", color=MUTED,
                )  # fmt: skip
            if re.fullmatch("#[0-9a-f]{6}", token.name):
                coloured = True
                _swatch(axes, row, token.name)
        axes.axvline(1 / found.units, color=MUTED, linestyle="--", linewidth=1)
        axes.set_yticks(range(len(tokens)), [_label(token.name) for token in tokens])
        axes.tick_params(length=0, pad=12 if coloured else 4)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(tokens) - 0.5, -0.5)
        axes.set_xlim(-0.03, 1.06)
        which = f"{words.unit} 0" if found.units == 2 else f"the leading {words.unit}"
        axes.set_xlabel(f"Weight of {which}")
        label = f"Least, mean and greatest weight, {title}: {'; '.join(said)}."
        return to_svg(figure, identity, label)


def _label(name: str) -> str:
    """A name at the side of a figure, cut if it is long."""
    short = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
    # With a word joiner in it, the name of a colour is not taken for a placeholder of the page's.
    return short.replace("#", "#\u2060")


def _swatch(axes: Axes, row: int, colour: str) -> None:
    """A square of the colour that the row is about, at the left end of the row."""
    # Placeholders of the page's colours are almost black.
    almost_black = all(int(colour[i : i + 2], 16) <= 10 for i in (1, 3, 5))
    axes.plot(
        -0.015, row, marker="s", markersize=9, color="#000000" if almost_black else colour,
        markeredgecolor=MUTED, markeredgewidth=0.6, transform=axes.get_yaxis_transform(),
        clip_on=False,
    )  # fmt: skip
