"""The pictures of docs/claims.md: SVG files that say to screen readers all that they show."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from evidence.answers import Answer
from evidence.claims import Paper, Scale
from evidence.verdicts import Kind, Verdict
from headwise.analysis.statistics.estimates import SIGNIFICANT
from headwise.report.formatting import in_words, signed

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=lambda name: name is not None and name.endswith(".svg.jinja"),
)


class Mark(NamedTuple):
    """How a verdict is drawn: never by its colour alone."""

    sign: str
    colour: str


MARKS: dict[Kind, Mark] = {
    "holds here": Mark("✓", "#23906a"),
    "does not hold here": Mark("✗", "#e34a0a"),
    "cannot be told": Mark("?", "#5a6270"),
    "not testable here": Mark("≠", "#5a6270"),
    "not run": Mark("–", "#5a6270"),
}


def overview(
    papers: list[Paper], verdicts: Mapping[tuple[str, Scale], Verdict], scale: Scale
) -> str:
    """Returns an SVG file with a tile for each claim, with its verdict at a scale."""
    return _drawn("overview", papers=papers, verdicts=verdicts, scale=scale)


def forest_of_tests(
    papers: list[Paper], verdicts: Mapping[tuple[str, Scale], Verdict], scale: Scale
) -> str | None:
    """Returns an SVG file with the differences of all tests in units of their margins."""
    rows = [
        (name, finding)
        for paper in papers
        for name in paper.claims
        for finding in verdicts[name, scale].findings
        if finding.standing is not None
    ]
    return _drawn("tests", rows=rows, significant=SIGNIFICANT, signed=signed) if rows else None


def trend_lines(answer: Answer) -> str | None:
    """Returns an SVG file with the differences along a key, if a system is known at two points."""
    known = {
        system: [(place, of) for place, of in enumerate(points) if of.value is not None]
        for system, points in list(answer.told.items())[1:]
    }
    drawn = {system: points for system, points in known.items() if len(points) > 1}
    found = next((of.found for points in drawn.values() for _, of in points if of.found), None)
    if found is None:
        return None
    unit = in_words(found.unit)
    return _drawn("trend", answer=answer, drawn=drawn, found=found, unit=unit, signed=signed)


def _drawn(name: str, **values: Any) -> str:
    return TEMPLATES.get_template(f"{name}.svg.jinja").render(marks=MARKS, **values) + "\n"
