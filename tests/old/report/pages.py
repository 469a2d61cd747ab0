"""What tests of the report ask of a page, and a run that diverges."""

import math
from html.parser import HTMLParser

from synthetic import judge

from headwise.analysis.decisions.record import RunAnalysis
from headwise.analysis.results import Comparison
from headwise.report.analysis_page.page import sections_of

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What the tests ask of a page: its tags and the text of chosen ones.

    Whatever page is read must be nested well, and each of its ids must stand once.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.rows: list[list[str]] = []
        self.feed(html)
        assert self.open == []
        self.ids = [attributes["id"] for _, attributes in self.tags if "id" in attributes]
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in VOID:
            return
        self.open.append(tag)
        self.texts.setdefault(tag, []).append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += f" {data.strip()}"

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def row(self, *start: str) -> list[str]:
        """The first table row that begins so."""
        rows = [[cell.strip() for cell in row] for row in self.rows]
        return next(row for row in rows if row[: len(start)] == list(start))


def section_of(name: str, *runs: RunAnalysis) -> tuple[str, str]:
    """The title and the HTML of a section of an analysis of some runs."""
    ((_, title, body),) = sections_of(runs, [name])
    return title, str(body)


def shown(name: str, *runs: RunAnalysis) -> Page:
    """The section of an analysis of some runs."""
    return Page(section_of(name, *runs)[1])


def diverge(made: Comparison, system: int, run: int, step: int) -> None:
    broken = made.systems[system].runs[run]
    broken.validation_loss = math.nan
    for score in broken.scores:
        score.value = score.low = score.high = 0.0
    for record in broken.history:
        for key in {"loss", "eval_loss"} & set(record):
            if record["step"] > step:
                record[key] = math.nan
            elif record["step"] == step:
                record[key] = 1e6
    for attention in broken.attention:
        attention.entropy = math.nan
        attention.load = [math.nan] * attention.experts
    judge(made)
