"""Writes the section of docs/claims.md that answers questions why, and its pictures."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headwise.claims.catalogue.declared import SCALES
from headwise.claims.catalogue.experiments import Places
from headwise.claims.evidence.quantities import Found
from headwise.claims.page.pictures.trend_lines import trend_lines
from headwise.claims.page.templates import template
from headwise.claims.why.answers import Answer, AtPoint, answer, interval
from headwise.claims.why.questions import all_questions
from headwise.report.formatting import decimals, p_value


class WhySection(NamedTuple):
    """What the page has of questions why.

    Attributes:
        text: the section in Markdown.
        pictures: name of a file to the text of the SVG.
        known: the questions whose answers are known.
    """

    text: str
    pictures: dict[str, str]
    known: list[Answer]


def why_section(places: Places) -> WhySection:
    """Returns what is known of all questions.

    Args:
        places: the folders of this machine, of which the evidence counts.
    """
    answers = [answer(each, places) for scale in SCALES for each in all_questions(scale).values()]
    drawn = {
        f"why-{each.question.scale}-{each.question.name}.svg": svg
        for each in answers
        if (svg := trend_lines(each)) is not None
    }
    text = template("why").render(
        answers=answers,
        pictures=drawn,
        links=_links,
        interval=interval,
        decimals=decimals,
        p_value=p_value,
        example=_example,
    )
    return WhySection(text.strip(), drawn, [each for each in answers if each.is_known])


def _example(rows: Mapping[str, Sequence[AtPoint]]) -> Found | None:
    """One of the figures of a table, which all have one unit; None if there are none."""
    found = (point.found for points in rows.values() for point in points)
    return next((each for each in found if each is not None), None)


def _links(claims: Sequence[str]) -> str:
    return ", ".join(f"[{name}](#{name.lower()})" for name in claims)
