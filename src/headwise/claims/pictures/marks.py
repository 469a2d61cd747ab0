"""How verdicts are drawn: each in a colour and with a mark."""

from typing import NamedTuple

from headwise.analysis.figures.svg import MUTED, SERIES
from headwise.claims.verdicts import Kind


class Mark(NamedTuple):
    """How a verdict is drawn: never by its colour alone."""

    sign: str
    colour: str
    name: str


MARKS: dict[Kind, Mark] = {
    "confirmed": Mark("✓", SERIES[3], "confirmed"),
    "contradicted": Mark("✗", SERIES[2], "contradicted"),
    "no difference": Mark("=", SERIES[1], "no difference"),
    "cannot be told": Mark("?", MUTED, "cannot be told"),
    "not run": Mark("–", MUTED, "not run"),
}
