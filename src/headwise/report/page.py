"""A page: sections with a sentence, a table and figures, in one HTML file that fetches nothing.

Numbers are DataFrames, a page is a list of sections, and a section is a small function of data.
"""

import base64
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from numbers import Integral
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.ticker import EngFormatter

from headwise.analysis.statistics import p_value
from headwise.files import write_text

NONE = "–"  # where there is no number
# Colour-blind readers can tell these colours apart. All are dark enough on white; a dark page
# inverts the lightness of figures and keeps their hue.
_COLOURS = ("#2b2f36", "#1f4fd0", "#c8420a", "#15805a", "#b8478c", "#7a2020", "#5b63c9", "#7d6608")
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#888888",
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelcolor": "#444444",
    "axes.prop_cycle": cycler(color=_COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 72,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # written beside every text
    "font.size": 11,
    "grid.color": "#bbbbbb",
    "grid.alpha": 0.5,
    "svg.fonttype": "none",  # text stays text: a page is a third of the size
    "svg.hashsalt": "headwise",
    "text.parse_math": False,  # names of users' own may hold a dollar
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}
_MARKERS, _DASHES = "osD^vPX*", ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (5, 1.5, 1, 1.5)))
_CELLS_WITH_NUMBERS = 300  # of a heat map
_LETTERS = 32  # of a name in a figure
_LONGEST_NAME = 200  # bytes of the name of a CSV; file systems take 255
_LONG_CELL = 48  # letters of a cell whose lines are broken
_FORMULA = re.compile(r"(?=.*([^\W\d]|[|(!=@]))[=+\-@\t\r]", re.DOTALL)  # to a spreadsheet


@dataclass
class Section:
    """A part of a page: a sentence or two, a table, figures, and what is folded.

    Attributes:
        title: of the section.
        text: a sentence or two: what was found, and how to read it.
        table: shown below; of a cell that is a text, the lines after the first are smaller.
        figures: shown behind it.
        pictures: captions, each with a PNG in base64.
        more: title to a table, a text or sections, folded.
        notes: how to read tables and figures, in small type.
    """

    title: str
    text: str = ""
    table: pd.DataFrame | None = None
    figures: list[Figure] = field(default_factory=list)
    pictures: list[tuple[str, str]] = field(default_factory=list)
    more: dict[str, "pd.DataFrame | str | list[Section]"] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def tables(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yields its tables, also those that are folded, with their titles."""
        if self.table is not None:
            yield self.title, self.table
        for title, content in self.more.items():
            if isinstance(content, pd.DataFrame):
                content = [Section("", table=content)]
            for section in content if isinstance(content, list) else []:
                for name, table in section.tables():
                    yield " ".join(filter(None, (self.title, title, name))), table


def subplots(columns: int = 1, height: float = 3.2, width: float = 5.2) -> Any:
    """Makes a figure with plots side by side, and returns both."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(1, columns, squeeze=False)[0]


def legend(figure: Figure) -> None:
    """Writes the names of a figure's lines above it."""
    figure.legend(loc="outside upper left", ncols=3, fontsize=10, columnspacing=1.2, frameon=False)


def line_style(number: int) -> dict[str, Any]:
    """Returns colour, marker and dashes of the line of the n-th system, counted from 0."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number % len(_DASHES)],
    }


def heatmap(
    frame: pd.DataFrame, title: str, *, around_zero: bool = False, digits: int = 2
) -> Figure:
    """Draws a table as coloured cells with numbers, with one colour or with two around zero."""
    figure, (plot,) = subplots(height=0.8 + 0.3 * len(frame))
    values = frame.to_numpy(float)
    limit = float(np.abs(values[np.isfinite(values)]).max(initial=0)) or 1.0
    low, colours = (-limit, "RdBu_r") if around_zero else (0.0, "Blues")
    plot.imshow(values, cmap=colours, aspect="auto", vmin=low, vmax=limit)
    plot.set_xticks(range(frame.shape[1]), map(shorten, frame.columns))
    plot.set_yticks(range(frame.shape[0]), map(shorten, frame.index))
    plot.set_title(shorten(title, 3 * _LETTERS), loc="left", fontsize=11)
    plot.grid(visible=False)
    if frame.size <= _CELLS_WITH_NUMBERS:
        for (row, column), value in np.ndenumerate(values):
            colour = "white" if abs(value) > 0.6 * limit else "black"
            text = format_number(value, digits)
            plot.text(column, row, text, color=colour, ha="center", va="center", fontsize=9)
    return figure


def forest(table: pd.DataFrame, label: str, colours: Sequence[str], width: float = 5.2) -> Figure:
    """Draws a `value` with its interval, from `low` to `high`, for each row of a table.

    Points are filled in rows that are `significant`.
    """
    figure, (plot,) = subplots(height=0.9 + 0.3 * len(table), width=width)
    rows = range(len(table))
    plot.axvline(0, color="#777777", linewidth=1.2)
    plot.hlines(rows, table["low"], table["high"], color=colours, linewidth=2)
    filled = np.where(table["significant"], colours, "white")
    plot.scatter(table["value"], rows, c=filled, edgecolors=colours, zorder=3)
    plot.set_yticks(rows, map(shorten, table.index))
    plot.set_ylim(len(table) - 0.5, -0.5)
    plot.grid(visible=False, axis="y")
    plot.locator_params(axis="x", nbins=5)
    plot.set_xlabel(label)
    return figure


def shorten(name: Any, letters: int = _LETTERS) -> str:
    """Leaves out the middle of a long name, since similar names differ at the end.

    Control characters, with which an SVG cannot be read, are replaced.
    """
    text = "".join(x if x.isprintable() or x == "\n" else "\ufffd" for x in str(name))
    half = (letters - 1) // 2
    return text if len(text) <= letters else f"{text[:half]}…{text[-half:]}"


def format_number(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """Writes a number with a true minus and commas between thousands; a dash if there is none.

    >>> format_number(-0.5, 1), format_number(1234.5, 0), format_number(0.25, 2, sign=True)
    ('−0.5', '1,234', '+0.25')
    >>> format_number(float("nan")), format_number(-0.01, 1), format_number(0.01, 1, sign=True)
    ('–', '0.0', '0.0')
    """
    if not abs(value) < math.inf:
        return NONE
    text = f"{value:{'+' if sign else ''},.{digits}f}".replace("-", "−")
    return text if text.strip("+−0.,") else text.lstrip("+−")


def format_interval(
    low: float, high: float, digits: int, *, before: str = "", sign: bool = False, unit: str = ""
) -> str:
    """Writes an interval in brackets; nothing if there is none."""
    ends = (format_number(end, digits, sign=sign) + unit for end in (low, high))
    return f"{before}[{', '.join(ends)}]" if math.isfinite(low) else ""


def format_count(value: float) -> str:
    """Writes a count with three digits, and with a unit if it is large.

    >>> format_count(1_534_208), format_count(930), format_count(999_999)
    ('1.53M', '930', '1M')
    """
    return EngFormatter(sep="")(float(f"{value:.3g}"))


def write_page(path: Path, title: str, summary: str, sections: Sequence[Section]) -> None:
    """Writes a page, and its tables as CSV into the folder `tables` beside it.

    Args:
        path: of the HTML file.
        title: of the page.
        summary: the finding, in a sentence or two, which is read first; a line is a paragraph.
        sections: in their order.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"image": _image_address, "alt_text": _alt_text}
    environment.filters |= {"table": _table_html, "csv": _csv_address, "csv_name": _csv_name}
    template = environment.get_template("page.html.jinja")
    html = template.render(title=title, summary=summary.splitlines(), sections=sections)
    written: set[str] = set()
    for section in sections:
        for title, table in section.tables():
            names = (_csv_name(title, number) for number in count(1))
            name = next(each for each in names if each not in written)
            written.add(name)
            write_text(path.parent / "tables" / name, _csv_text(table))
    write_text(path, html)


def _csv_name(title: str, number: int = 1) -> str:
    """Returns a file name; `number` tells titles apart that are alike but for what is cut."""
    name = re.sub(r"[^\w.+-]+", "-", title.lower()).strip("-.")
    name = name.encode()[:_LONGEST_NAME].decode(errors="ignore") or "table"
    return f"{name}-{number}.csv" if number > 1 else f"{name}.csv"


# --- figures ----------------------------------------------------------------------------------


def _image_address(figure: Figure) -> str:
    """Returns the address of a figure as an image, whose ids and styles stay out of the page."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _alt_text(figure: Figure) -> str:
    """Says what a figure shows, for those who do not see it: its titles, or its axes' names."""
    return "; ".join(
        plot.get_title(loc="left") or plot.get_ylabel() or plot.get_xlabel() for plot in figure.axes
    )


# --- tables -----------------------------------------------------------------------------------


def _table_html(frame: pd.DataFrame) -> Markup:
    """Writes a table as HTML; pandas escapes its texts."""
    shown = frame.map(_format_cell)
    for name in {"p", "corrected_p"} & {*frame}:
        shown[name] = frame[name].map(_format_p)
    levels = shown.index.nlevels
    shown = shown.rename_axis(index=[None] * levels, columns=frame.index.names[-1])
    # Numbers stand right and keep their lines; texts stand left, and their lines are broken.
    is_long = shown.map(lambda cell: max(map(len, cell.split("\n"))) > _LONG_CELL).any(axis=None)
    are_texts = is_long or shown.iloc[:, 0].str[:1].str.isalpha().mean() > 0.5
    with pd.option_context("display.max_colwidth", None):
        # Without formatters of our own pandas would write the ends of lines as \n.
        formatters: Any = [str] * shown.shape[1]
        html = shown.to_html(border=0, classes="texts" if are_texts else "", formatters=formatters)
    return Markup(html)


def _format_cell(cell: Any) -> str:
    """Writes a cell as the page shows it; the CSV has all digits."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool | np.bool_):
        return "yes" if cell else "no"
    if cell is None or not abs(cell) < math.inf:
        return NONE
    text = f"{cell + 0.0:#.3g}"  # never -0.0
    is_whole = isinstance(cell, Integral) or 1000 <= abs(float(text)) < 1e9
    return format_number(cell, 0) if is_whole else text.rstrip(".").replace("-", "−")


def _format_p(p: float) -> str:
    """Writes a p-value below its heading; a tiny one would be written as zero."""
    return NONE if math.isnan(p) else p_value(p).removeprefix("p ").removeprefix("= ")


def _csv_text(frame: pd.DataFrame) -> str:
    """Writes a table as CSV; texts that a spreadsheet would run as a formula get an apostrophe."""

    def escape(cell: Any) -> Any:
        if isinstance(cell, str) and _FORMULA.match(cell):
            return f"'{cell}"
        return cell

    return frame.map(escape).rename(index=escape, columns=escape).to_csv()


def _csv_address(frame: pd.DataFrame) -> str:
    return f"data:text/csv;base64,{base64.b64encode(_csv_text(frame).encode('utf-8-sig')).decode()}"
