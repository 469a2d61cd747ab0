"""A figure that a paper prints and ours, and whether they agree."""

import re
from dataclasses import dataclass
from typing import NamedTuple

# How far our figure may be from a printed one and still agree with it, relative to it. Where the
# printed figure is rounded more coarsely, half of its last digit is allowed.
TOLERANCES = {"MACs": 0.005, "params": 0.015}

_UNITS = {"": 1.0, "M": 1e6, "G": 1e9, "%": 1e-2}
_NUMBER = re.compile(r"([\d.]+)([MG%]?)")


class Printed(NamedTuple):
    """A printed figure: a number, or a range of numbers."""

    low: float
    high: float
    unit: str
    decimals: int

    @classmethod
    def parse(cls, text: str) -> "Printed":
        """Reads a printed figure."""
        numbers = _NUMBER.findall(text.replace(",", ""))
        last, unit = numbers[-1]  # of a range, only the second number has the unit
        low, high = (float(number) * _UNITS[unit] for number in (numbers[0][0], last))
        return cls(low, high, unit, len(last.partition(".")[2]))

    @property
    def rounding(self) -> float:
        """How much rounding to the printed digits may change a number."""
        return 0.5 * 10**-self.decimals * _UNITS[self.unit] if self.low == self.high else 0.0


@dataclass(frozen=True)
class Figure:
    """One published figure and ours."""

    model: str
    what: str  # the quantity: `params`, `MACs`, `share` or `entropy`
    printed: str  # as the paper prints it: `65M`, `+12.6M`, `192`, `3–5%`
    ours: float | None  # None if headwise cannot compute it
    words: str = ""  # the size of the vocabulary that we assume; empty if it does not matter
    remark: str = ""  # why ours differs or is missing, or what else we assume
    exact: bool = False  # whether only the same number agrees

    @property
    def agrees(self) -> bool | None:
        """Whether our figure agrees with the paper's; None if there is none of ours."""
        if self.ours is None:
            return None
        printed = Printed.parse(self.printed)
        if self.exact:
            return self.ours == printed.low
        tolerance = TOLERANCES.get(self.what, 0.0)
        below = max(tolerance * printed.low, printed.rounding)
        above = max(tolerance * printed.high, printed.rounding)
        return printed.low - below <= self.ours <= printed.high + above

    @property
    def shown(self) -> str:
        """Our figure in the unit of the paper's."""
        if self.ours is None:
            return "–"
        printed = Printed.parse(self.printed)
        sign = "+" if self.printed.startswith("+") else ""
        if self.exact:
            return f"{sign}{self.ours:,.0f}"
        digits = max(2, printed.decimals)
        return f"{sign}{self.ours / _UNITS[printed.unit]:.{digits}f}{printed.unit}"

    @property
    def difference(self) -> str:
        """How far our figure is from the paper's."""
        if self.ours is None:
            return "–"
        printed = Printed.parse(self.printed)
        off = self.ours - printed.low
        if self.exact:
            return "exact" if self.agrees else f"≠ {off:+,.0f}"
        if printed.low < printed.high:
            return "within" if self.agrees else "≠ outside"
        return f"{'' if self.agrees else '≠ '}{off / printed.low:+.1%}"


@dataclass(frozen=True)
class Paper:
    """The figures of one paper, in the order of its tables."""

    title: str  # the authors, the year, the subject and the tables
    note: str  # what we assume for all figures
    figures: tuple[Figure, ...]
