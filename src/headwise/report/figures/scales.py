"""The vertical scale of figures that are to be compared."""

import math
from collections.abc import Iterable, Sequence

Values = Sequence[float | None]  # of a curve


def value_scale(curves: Iterable[Values], *others: float) -> tuple[float, float]:
    """Returns both ends of a scale that panels share: of all values, the others given, and zero.

    >>> value_scale([[0.5, None], [-0.25, float("nan")]], 1.0)
    (-0.25, 1.0)
    """
    values = [x for curve in curves for x in curve if x is not None and math.isfinite(x)]
    floor, ceiling = min([0.0, *values, *others]), max([0.0, *values, *others])
    return (floor, ceiling) if floor < ceiling else (0.0, 1.0)
