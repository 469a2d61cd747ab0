"""A page: sections with a sentence, a table and figures, in one HTML file that fetches nothing.

Numbers are DataFrames, a page is a list of sections, and a section is a small function of data.
The tables of a page are saved beside it as CSV.
"""

import base64
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from headwise.files import write_text

_TEMPLATE = Path(__file__).with_name("page.html.jinja")
_STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.alpha": 0.3,
    "figure.dpi": 72,
    "text.parse_math": False,  # names of users' own may hold a dollar
}


@dataclass
class Section:
    """What one question found.

    Attributes:
        title: of the section.
        says: a sentence or two: what was found, and how to read it.
        table: shown below; a cell may be a text, with line breaks, or a number.
        figures: shown behind it.
        pictures: caption to a PNG in base64.
        more: title to a table, a text or sections, folded.
    """

    title: str
    says: str = ""
    table: pd.DataFrame | None = None
    figures: list[Figure] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)
    more: dict[str, "pd.DataFrame | str | list[Section]"] = field(default_factory=dict)

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
    """A figure with plots side by side, and the plots."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(1, columns, squeeze=False, **shared)[0]


def heat(
    frame: pd.DataFrame, title: str = "", *, centre: float | None = None, form: str = "{:.2f}"
) -> Figure:
    """A matrix as coloured cells with their numbers; with a centre, in two colours around it."""
    figure, (plot,) = axes(height=0.8 + 0.3 * len(frame))
    values = frame.to_numpy(float)
    limit = float(abs(values - (centre or 0)).max()) or 1.0
    low, high = (0.0, limit) if centre is None else (centre - limit, centre + limit)
    plot.imshow(
        values, cmap="Blues" if centre is None else "RdBu_r", aspect="auto", vmin=low, vmax=high
    )
    plot.set_xticks(range(frame.shape[1]), map(str, frame.columns))
    plot.set_yticks(range(frame.shape[0]), map(str, frame.index))
    plot.set_title(title, loc="left", fontsize=11)
    plot.grid(visible=False)
    if frame.size <= 300:
        for (row, column), value in pd.DataFrame(values).stack().items():
            plot.text(column, row, form.format(value), ha="center", va="center", fontsize=9)
    return figure


def number(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """A number as all pages write it: a true minus, thousands apart, a dash where there is none.

    >>> number(-0.5, 1), number(1234.5, 0), number(float("nan")), number(0.25, 2, sign=True)
    ('−0.5', '1,234', '–', '+0.25')
    """
    if not abs(value) < float("inf"):
        return "–"
    text = f"{value:{'+' if sign else ''},.{digits}f}"
    return text.replace("-", "−")


def write_page(path: Path, title: str, says: str, sections: Sequence[Section | None]) -> None:
    """Writes a page, and its tables as CSV into the folder `tables` beside it.

    Args:
        path: of the HTML file.
        title: of the page.
        says: the finding, in a sentence or two, which is read first.
        sections: in their order; None where there is nothing to show.
    """
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.tests["frame"] = lambda content: isinstance(content, pd.DataFrame)
    environment.tests["sections"] = lambda content: isinstance(content, list)
    environment.filters |= {"image": _as_image, "csv": _as_link, "table": _as_table}
    shown = [section for section in sections if section is not None]
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    html = template.render(title=title, says=says, sections=shown)
    for section in shown:
        for name, table in section.tables():
            write_text(path.parent / "tables" / f"{_file_name(name)}.csv", _as_csv(table))
    write_text(path, html)


def _file_name(title: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", title.lower()).strip("-")[:100]


def _as_image(figure: Figure) -> str:
    """The address of an image: nothing in it can meet the page's ids or styles."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _as_csv(frame: pd.DataFrame) -> str:
    """A table as CSV; a text that a spreadsheet would run as a formula begins with an apostrophe."""

    def plain(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and cell[:1] in "=+-@" else cell

    return frame.map(plain).rename(index=plain, columns=plain).to_csv()


def _as_link(frame: pd.DataFrame) -> str:
    return f"data:text/csv;base64,{base64.b64encode(_as_csv(frame).encode('utf-8-sig')).decode()}"


def _as_table(frame: pd.DataFrame) -> Markup:
    text = frame.to_html(border=0, na_rep="–", escape=True, float_format="{:.3g}".format)
    return Markup(text.replace("\\n", "<br>").replace("\n", ""))  # escaped by pandas
