"""What a difference does along a key that is varied: it grows, it shrinks, or it cannot be told."""

from typing import Literal, NamedTuple

from headwise.analysis.statistics.estimates import SIGNIFICANT, Difference

TrendKind = Literal[
    "grows", "shrinks", "changes its sign", "no change", "cannot be told", "one seed", "not run"
]


class Trend(NamedTuple):
    """The difference of a system from the baseline at the last point, against that at the first.

    Attributes:
        kind: what is said of it.
        margin: the smallest change that matters.
        change: the last difference minus the first, with p corrected over the systems of the
            question; None if it is not known.
        towards: in whose favour a significant change is; else empty.
    """

    kind: TrendKind
    margin: float
    change: Difference | None = None
    towards: Literal["the system", "the baseline", ""] = ""

    def __str__(self) -> str:
        if self.kind == "no change":
            return f"no change larger than {self.margin:g} found"
        if self.kind == "one seed":
            return "one seed: no interval"
        if self.kind == "cannot be told" and self.change and self.change.detectable:
            return f"cannot be told (a change of {self.change.detectable:.2g} would be found)"
        return f"{self.kind}, in favour of {self.towards}" if self.towards else self.kind


def trend_kind(first: Difference, last: Difference, change: Difference, margin: float) -> TrendKind:
    """Returns what is said of a change of a difference.

    A significant change makes the difference grow or shrink by its size, whatever its sign; unless
    the intervals of the first and the last difference lie on the two sides of zero.

    Args:
        first, last: the differences at both ends.
        change: the last minus the first, with its corrected p.
        margin: the smallest change that matters.
    """
    if change.corrected_p_value < SIGNIFICANT:
        lower, upper = sorted((first, last), key=lambda each: each.value)
        if upper.low > 0 > lower.high:
            return "changes its sign"
        return "grows" if abs(last.value) > abs(first.value) else "shrinks"
    if -margin < change.low and change.high < margin:
        return "no change"
    return "cannot be told"
