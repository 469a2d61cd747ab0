"""How verdicts are drawn: each in a colour and with a mark."""

from typing import NamedTuple

from headwise.claims.judging.verdicts import Kind
from headwise.report.svg import MUTED, SERIES


class Mark(NamedTuple):
    """How a verdict is drawn: never by its colour alone."""

    sign: str
    colour: str


MARKS: dict[Kind, Mark] = {
    "confirmed": Mark("✓", SERIES[3]),
    "contradicted": Mark("✗", SERIES[2]),
    "not comparable": Mark("≠", MUTED),
    "no difference": Mark("=", SERIES[1]),
    "cannot be told": Mark("?", MUTED),
    "not run": Mark("–", MUTED),
}
