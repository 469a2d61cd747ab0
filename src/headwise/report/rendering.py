"""Pages from templates. Everything that comes from the data is escaped, and none of it runs."""

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headwise.analysis.statistics.estimates import POWER, SIGNIFICANT
from headwise.report.cells import chance_over, directions, interval_of
from headwise.report.formatting import (
    count,
    decimals,
    fixed,
    heading,
    in_words,
    listed,
    p_value,
    signed,
)
from headwise.report.policy import source_of
from headwise.report.svg import HEAT_OPACITY, with_own_ids


def rendered(template: str, **values: Any) -> Markup:
    """Returns a template of this folder, or of those in it, with the values in it."""
    return Markup(with_own_ids(_environment().get_template(template).render(values)))


def notes(kind: str, **values: Any) -> Markup:
    """Returns the notes below a table: what a macro of `notes.html.jinja` makes of the values."""
    return Markup(getattr(_environment().get_template("notes.html.jinja").module, kind)(**values))


def said(kind: str, **values: Any) -> str:
    """Returns the sentences that a macro of `sentences.txt.jinja` makes of the values."""
    text = getattr(_environment(trim=False).get_template("sentences.txt.jinja").module, kind)(
        **values
    )
    text = re.sub(r"[ \n]+", " ", text).strip()
    return re.sub(r" (?=[,.;:)])|(?<=\() ", "", text)


def headings(body: str) -> list[tuple[str, Markup]]:
    """Returns the anchor and the text of each section's heading in the HTML of a page.

    >>> headings('<h2 id="a">Bread &amp; butter</h2>')
    [('a', Markup('Bread &amp; butter'))]
    """
    found = re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', body)
    return [(identity, Markup(text)) for identity, text in found]


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> duration(59.6), duration(754), duration(7384)
    ('1 min 0 s', '12 min 34 s', '2 h 3 min')
    """
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@cache
def _environment(*, trim: bool = True) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: name is not None and ".html." in name,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
        trim_blocks=trim,
        lstrip_blocks=trim,
    )
    functions = (count, decimals, duration, fixed, heading, headings, in_words, listed, p_value)
    for function in (*functions, signed):
        environment.filters[function.__name__] = function
    script = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
    environment.globals.update(
        script=Markup(script),
        script_source=source_of(script),
        heat_opacity=HEAT_OPACITY,
        chance_over=chance_over,
        directions=directions,
        interval_of=interval_of,
        significant=SIGNIFICANT,
        power=POWER,
    )
    return environment
