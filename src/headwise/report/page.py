"""A page: sections with a sentence, a table and figures, in one HTML file that fetches nothing.

Numbers are DataFrames, a page is a list of sections, and a section is a small function of data.
The tables of a page are saved beside it as CSV.
"""

import base64
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

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
_DECIMALS = re.compile(rb"(\.\d)\d+")
_CELLS_WITH_NUMBERS = 300  # of a heat map
_LONG = 48  # letters of a cell that is a text, whose lines are broken


@dataclass
class Section:
    """A part of a page: a sentence or two, a table, figures, and what is folded.

    Attributes:
        title: of the section.
        says: a sentence or two: what was found, and how to read it.
        table: shown below; a cell is a number, or a text whose lines after the first are smaller.
            A first line that ends with a star is bold.
        figures: shown behind it.
        pictures: caption to a PNG in base64. The first line of a caption is a title, which those
            that follow each other may share.
        more: title to a table, a text or sections, folded.
        notes: how to read tables and figures, in small type.
    """

    title: str
    says: str = ""
    table: pd.DataFrame | None = None
    figures: list[Figure] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)
    more: dict[str, "pd.DataFrame | str | list[Section]"] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def tables(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yields its tables, also those that are folded, with their titles."""
        if self.table is not None:
            yield self.title, self.table
        for title, content in self.more.items():
            if isinstance(content, pd.DataFrame):
                yield title, content
            elif isinstance(content, list):
                for section in content:
                    yield from ((f"{title} {name}", table) for name, table in section.tables())


def axes(columns: int = 1, height: float = 3.2, width: float = 5.2, **shared: Any) -> Any:
    """Makes a figure with plots side by side, and returns both."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(1, columns, squeeze=False, **shared)[0]


def legend(figure: Figure) -> None:
    """Writes the names of a figure's lines above it."""
    figure.legend(loc="outside upper left", ncols=3, fontsize=10, columnspacing=1.2, frameon=False)


def look(number: int) -> dict[str, Any]:
    """Returns colour, marker and dashes of the line of the n-th system, counted from 0."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number % len(_DASHES)],
    }


def heat(
    frame: pd.DataFrame, title: str = "", *, centre: float | None = None, digits: int = 2
) -> Figure:
    """Draws a table as coloured cells with numbers; with a centre, in two colours around it."""
    figure, (plot,) = axes(height=0.8 + 0.3 * len(frame))
    values = frame.to_numpy(float)
    off = np.abs(values - (centre or 0))
    limit = float(off[np.isfinite(off)].max(initial=0)) or 1.0
    low, high = (0.0, limit) if centre is None else (centre - limit, centre + limit)
    plot.imshow(
        values, cmap="Blues" if centre is None else "RdBu_r", aspect="auto", vmin=low, vmax=high
    )
    plot.set_xticks(range(frame.shape[1]), map(str, frame.columns))
    plot.set_yticks(range(frame.shape[0]), map(str, frame.index))
    plot.set_title(title, loc="left", fontsize=11)
    plot.grid(visible=False)
    if frame.size <= _CELLS_WITH_NUMBERS:
        for (row, column), value in np.ndenumerate(values):
            if math.isfinite(value):
                colour = "white" if off[row, column] > 0.6 * limit else "black"
                text = number(value, digits)
                at = {"ha": "center", "va": "center", "fontsize": 9}
                plot.text(column, row, text, color=colour, **at)
    return figure


def number(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """Writes a number with a true minus and commas between thousands; a dash if there is none.

    >>> number(-0.5, 1), number(1234.5, 0), number(float("nan")), number(0.25, 2, sign=True)
    ('−0.5', '1,234', '–', '+0.25')
    >>> number(-0.01, 1), number(0.01, 1, sign=True)
    ('0.0', '0.0')
    """
    if not abs(value) < math.inf:
        return NONE
    text = f"{value:{'+' if sign else ''},.{digits}f}".replace("-", "−")
    return text if text.strip("+−0.,") else text.lstrip("+−")


def short(value: float) -> str:
    """Writes a number with three digits, and with a unit if it is large.

    >>> short(1_534_208), short(930), short(61_200_000_000), short(999_999), short(-0.5)
    ('1.53M', '930', '61.2G', '1.00M', '−0.5')
    """
    if not abs(value) < math.inf:
        return NONE
    unit = ""
    for unit in ("", "k", "M", "G", "T", "P"):
        text = f"{value:#.3g}".rstrip(".") if unit else f"{value:.3g}"
        if abs(float(text)) < 1000:
            break
        value /= 1000
    return text.replace("-", "−") + unit


def write_page(path: Path, title: str, says: str, sections: Sequence[Section | None]) -> None:
    """Writes a page, and its tables as CSV into the folder `tables` beside it.

    Args:
        path: of the HTML file.
        title: of the page.
        says: the finding, in a sentence or two, which is read first; a line is a paragraph.
        sections: in their order; None where there is nothing to show.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "image": _as_image,
        "about": _about,
        "csv": _as_link,
        "file": _file_name,
        "rows": _rows,
        "by_title": _by_title,
    }
    environment.filters |= filters
    shown = [section for section in sections if section is not None]
    template = environment.get_template("page.html.jinja")
    html = template.render(title=title, says=says.splitlines(), sections=shown)
    for section in shown:
        for name, table in section.tables():
            write_text(path.parent / "tables" / _file_name(name), _as_csv(table))
    write_text(path, html)


def _file_name(title: str) -> str:
    return (re.sub(r"[^\w.+-]+", "-", title.lower()).strip("-.")[:100] or "table") + ".csv"


# --- figures and pictures ---------------------------------------------------------------------


def _as_image(figure: Figure) -> str:
    """Returns the address of a figure as an image, whose ids and styles stay out of the page."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    # Of the coordinates of lines more decimals than an eye can see are left out.
    svg = re.sub(rb'(?<= d=")[^"]*', lambda path: _DECIMALS.sub(rb"\1", path[0]), buffer.getvalue())
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _about(figure: Figure) -> str:
    """Says what a figure shows, for those who do not see it: its titles, or its axes' names."""
    return "; ".join(
        plot.get_title(loc="left") or plot.get_ylabel() or plot.get_xlabel() for plot in figure.axes
    )


def _by_title(pictures: dict[str, str]) -> Iterator[tuple[str, list[tuple[list[str], str]]]]:
    """Groups pictures by title, each with the further lines of its caption."""
    found = [(*caption.partition("\n")[::2], png) for caption, png in pictures.items()]
    for title, group in groupby(found, key=lambda each: each[0]):
        yield title, [(rest.splitlines(), png) for _, rest, png in group]


# --- tables -----------------------------------------------------------------------------------


def _rows(frame: pd.DataFrame) -> Iterator[tuple[list[list[str]], list[tuple[list[str], str]]]]:
    """Yields the rows of a table, its header first: heads, and cells with their CSS class.

    A head or a cell is a list of lines. A head that the row above has too is left out.
    """
    columns = [[_lines(cell) for cell in frame.iloc[:, at]] for at in range(frame.shape[1])]
    kinds = [_kind(cells) for cells in columns]
    names = [_lines(name) if name is not None else [""] for name in frame.index.names]
    yield names, list(zip(map(_lines, frame.columns), kinds, strict=True))
    before: tuple[Any, ...] = ()
    for at, label in enumerate(frame.index):
        heads = label if isinstance(label, tuple) else (label,)
        same = [n for n in range(len(heads) - 1) if heads[: n + 1] == before[: n + 1]]
        shown = [[""] if n in same else _lines(head) for n, head in enumerate(heads)]
        yield shown, [(cells[at], kind) for cells, kind in zip(columns, kinds, strict=True)]
        before = heads


def _lines(cell: Any) -> list[str]:
    """Returns the lines of a cell as the page writes them."""
    if isinstance(cell, str):
        return [cell] if max(map(len, cell.split("\n"))) > _LONG else cell.split("\n")
    if isinstance(cell, tuple):
        return [line for each in cell for line in _lines(each) if line]
    if isinstance(cell, bool | np.bool_):
        return ["yes" if cell else "no"]
    if isinstance(cell, Integral):
        return [number(int(cell), 0)]
    if cell is None or pd.isna(cell):
        return [NONE]
    return [number(cell, 0) if 1000 <= abs(cell) < 1e9 else f"{cell:.3g}".replace("-", "−")]


def _kind(cells: Sequence[list[str]]) -> str:
    """Chooses the CSS class of a column: numbers stand right, texts left."""
    if any(len(lines[0]) > _LONG for lines in cells):
        return "long text"
    first = [lines[0] for lines in cells if lines[0] not in ("", NONE)]
    return "text" if 2 * sum(text[0].isalpha() for text in first) > len(first) else ""


def _as_csv(frame: pd.DataFrame) -> str:
    """Writes a table as CSV; texts that a spreadsheet would run as a formula get an apostrophe."""

    def plain(cell: Any) -> Any:
        if (
            isinstance(cell, str)
            and cell[:1] in tuple("=+-@\t\r")
            and re.search(r"[^\W\d]|[|(!=@]", cell)
        ):
            return f"'{cell}"
        return cell

    return frame.map(plain).rename(index=plain, columns=plain).to_csv()


def _as_link(frame: pd.DataFrame) -> str:
    return f"data:text/csv;base64,{base64.b64encode(_as_csv(frame).encode('utf-8-sig')).decode()}"
