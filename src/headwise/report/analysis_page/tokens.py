"""The sections on what decisions say of tokens, and what tokens and other labels say of them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from headwise.analysis.decisions.explained import ExplainedShare
from headwise.analysis.decisions.ranges import PlaceRanges
from headwise.analysis.decisions.record import RunAnalysis
from headwise.analysis.decisions.tokens import LEADING, TokensRecord
from headwise.analysis.words import Words
from headwise.report.analysis_page.section import Looks, kinds, legend_of
from headwise.report.formatting import decimals, heading, place_names
from headwise.report.svg import MUTED, Look, drawing, panel, to_svg

COLOUR = re.compile(r"#[0-9a-f]{6}")
SHOWN = 12  # tokens in a figure
_LETTERS = 16
_BAR = 13  # points

Table = tuple[str, Words, TokensRecord]  # with its title


def tokens_section(runs: Sequence[RunAnalysis], looks: Looks) -> dict[str, Any] | None:
    """Which tokens and classes of positions go to which units; None if none can be told apart."""
    of_runs = _tables(runs)
    if not any(of_runs):
        return None
    return {
        # The papers show the first layer; so does the page, for each run, and folds the rest.
        "shown": [table for tables in of_runs for table in tables[:1]],
        "folded": [table for tables in of_runs for table in tables[1:]],
        "leading": LEADING,
        "is_colour": COLOUR.fullmatch,
    }


def _tables(runs: Sequence[RunAnalysis]) -> list[list[Table]]:
    """The tables of each run, by module, then by label."""
    found: list[list[Table]] = [[] for _ in runs]
    for kind in kinds(runs, lambda run: run.tokens):
        for number, place, record in kind.modules():
            title = f"{place}, layer {record.where.layer}" if record.where.site else place
            title = f"{runs[number].name}: {title}" if len(runs) > 1 else title
            found[number].append((title, kind.words, record))
    return found


def ranges_section(runs: Sequence[RunAnalysis], looks: Looks) -> dict[str, Any] | None:
    """The least, mean and greatest weight of frequent tokens; None if no run has tokens.

    There is a figure for each run and stack.
    """
    made: list[tuple[str, Words, PlaceRanges, Markup]] = []
    for run in runs:
        names = place_names([found.where for found in run.ranges])
        by_stack: dict[str, list[tuple[PlaceRanges, str]]] = {}
        for found, name in zip(run.ranges, names, strict=True):
            by_stack.setdefault(found.where.stack, []).append((found, name))
        for of_stack in by_stack.values():
            found, name = max(of_stack, key=lambda each: each[0].spread)
            title = f"{run.name}, {name}" if len(runs) > 1 else name
            words = run.words.get(found.where.system, Words())
            made.append((title, words, found, token_ranges(found, title, words, looks[run.name])))
    if not made:
        return None
    kinds = list(dict.fromkeys(found.word for _, _, found, _ in made))
    figures = [(heading(title) if len(made) == 1 else title, svg) for title, _, _, svg in made]
    frequent = " and ".join(f"{kind}s" for kind in kinds)
    return {"made": made, "figures": figures, "rows": _rows, "kinds": kinds, "frequent": frequent}


def _rows(found: PlaceRanges) -> list[list[str]]:
    return [
        [token.name, f"{token.count:,}", str(unit.unit)]
        + [decimals(weight, 3) for weight in (unit.least, unit.mean, unit.greatest)]
        for token in found.tokens[:SHOWN]
        for unit in token.units
    ]


def token_ranges(found: PlaceRanges, title: str, words: Words, look: Look) -> Markup:
    """A line from the least to the greatest weight of each token, with the mean as a dot."""
    tokens = found.tokens[:SHOWN]
    is_coloured = any(COLOUR.fullmatch(token.name) for token in tokens)
    said = []
    with drawing():
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
            if COLOUR.fullmatch(token.name):
                _draw_colour(axes, row, token.name)
        axes.axvline(1 / found.units, color=MUTED, linestyle="--", linewidth=1)
        axes.set_yticks(range(len(tokens)), [_label(token.name) for token in tokens])
        axes.tick_params(length=0, pad=12 if is_coloured else 4)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(tokens) - 0.5, -0.5)
        axes.set_xlim(-0.03, 1.06)
        which = f"{words.unit} 0" if found.units == 2 else f"the leading {words.unit}"
        axes.set_xlabel(f"Weight of {which}")
        return to_svg(figure, f"Least, mean and greatest weight, {title}: {'; '.join(said)}.")


def _label(name: str) -> str:
    """A name at the side of a figure, cut if it is long."""
    short = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
    # With a word joiner in it, the name of a colour is not taken for a placeholder of the page's.
    return short.replace("#", "#\u2060")


def _draw_colour(axes: Axes, row: int, colour: str) -> None:
    """A square of the colour that the row is about, at the left end of the row."""
    # Placeholders of the page's colours are almost black.
    almost_black = all(int(colour[i : i + 2], 16) <= 10 for i in (1, 3, 5))
    axes.plot(
        -0.015, row, marker="s", markersize=9, color="#000000" if almost_black else colour,
        markeredgecolor=MUTED, markeredgewidth=0.6, transform=axes.get_yaxis_transform(),
        clip_on=False,
    )  # fmt: skip


# The records of one label: of each run, by the name of their place.
ByRun = Mapping[str, Mapping[str, ExplainedShare]]


def explained_section(runs: Sequence[RunAnalysis], looks: Looks) -> dict[str, Any] | None:
    """How much of the decisions each label explains; None if no run has any.

    There are bars for each label and place, of all runs side by side.
    """
    records = [(run.name, record) for run in runs for record in run.explained]
    if not records:
        return None
    names = place_names([record.where for _, record in records])
    by_label: dict[str, dict[str, dict[str, ExplainedShare]]] = {}
    for (run, record), name in zip(records, names, strict=True):
        by_label.setdefault(record.label, {}).setdefault(run, {})[name] = record
    shares = [record.share for _, record in records if record.share is not None]
    bounds = min([0.0, *shares]), max([0.1, *shares])  # of all labels: they have one scale
    order = list(dict.fromkeys(names))
    return {
        "figures": [
            (_caption(label, by_run), _bars(label, by_run, order, bounds, looks))
            for label, by_run in by_label.items()
        ],
        "rows": [(run, name, record) for (run, record), name in zip(records, names, strict=True)],
        "legend": legend_of(runs, looks),
        "sides": "side" in by_label,
    }


def _caption(label: str, by_run: ByRun) -> str:
    of = {record.of for found in by_run.values() for record in found.values()}
    return heading(label) + (", over sequences" if of == {"sequences"} else "")


def _bars(
    label: str, by_run: ByRun, order: Sequence[str], bounds: tuple[float, float], looks: Looks
) -> Markup:
    """Bars from 0, one for each place and run, with their numbers behind them."""
    places = [name for name in order if any(name in found for found in by_run.values())]
    height = 1 / (len(by_run) + 0.6)
    said = []
    with drawing():
        figure, axes = panel(40 + (_BAR * len(by_run) + 9) * len(places))
        for shift, (run, found) in enumerate(by_run.items()):
            look = looks[run]
            for row, name in enumerate(places):
                if name not in found:
                    continue
                share, text = found[name].share or 0.0, decimals(found[name].share)
                at = row + (shift - (len(by_run) - 1) / 2) * height
                axes.barh(at, share, 0.45 * height, color=look.colour)
                axes.plot(share, at, marker=look.marker, markersize=6, color=look.colour)
                end = max(share, 0.0) + 0.025 * bounds[1]
                axes.text(end, at, text, va="center", fontsize=10, color=MUTED)
                said.append(f"{run + ', ' if len(looks) > 1 else ''}{name} {text}")
        axes.axvline(0, color=MUTED, linewidth=1)
        axes.set_xlim(1.1 * bounds[0], 1.14 * bounds[1])
        axes.set_yticks(range(len(places)), places)
        axes.set_ylim(len(places) - 0.45, -0.55)
        axes.tick_params(length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("Share of the variance, chance taken away")
        return to_svg(figure, f"How much {label} explains: {'; '.join(said)}.")
