"""The correction of p-values for the number of comparisons."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from headwise.analysis.statistics.estimates import Difference

Key = TypeVar("Key")


def corrected(
    differences: Mapping[Key, Difference | None], comparisons: int | None = None
) -> dict[Key, Difference | None]:
    """Returns the differences of one table with p-values corrected by Holm's method.

    Holm 1979, *A Simple Sequentially Rejective Multiple Test Procedure*,
    https://www.jstor.org/stable/4615733: of m p-values in ascending order the i-th is multiplied by
    m − i + 1, and is at least as large as the one before.

    Args:
        differences: of the table; None where there is no difference.
        comparisons: how many were planned; by default as many as there are differences. Those that
            could not be made count as if they had a p-value of 1.
    """
    found = {name: made.p_value for name, made in differences.items() if made is not None}
    missing = 0 if comparisons is None else comparisons - len(found)
    adjusted = dict(zip(found, holm([*found.values(), *[1.0] * missing]), strict=False))
    return {
        name: made and made.model_copy(update={"corrected_p_value": adjusted[name]})
        for name, made in differences.items()
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected by Holm's method.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    raised = np.maximum.accumulate(np.asarray(p_values, dtype=float)[order] * factors)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(raised, 1.0)
    return adjusted.tolist()
