"""Pages from templates. Everything that comes from the data is escaped."""

import math
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headwise.report.formatting import count, decimals


def rendered(template: str, **values: Any) -> Markup:
    """Returns a template of this folder, or of those in it, with the values in it."""
    return Markup(_environment().get_template(template).render(values))


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
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=count, decimals=decimals, duration=duration)
    return environment
