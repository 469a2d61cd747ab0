"""The spread of numbers of which there are too many to keep."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import Self

PERCENTILES = (10, 50, 90)
STEP = 1 / 2048  # width of a bin


class Histogram:
    """Numbers from 0 on, counted in narrow bins.

    A bin also has the sum of its numbers: a percentile is the mean of those in its bin. It is exact
    if they are equal, and otherwise wrong by less than `STEP`.
    """

    def __init__(self) -> None:
        self._counts = torch.zeros(0, dtype=torch.float64)
        self._sums = torch.zeros(0, dtype=torch.float64)
        self._squares = 0.0

    def add(self, values: Tensor) -> None:
        """Counts numbers, `(count,)`, float64."""
        bins = (values / STEP).nan_to_num().long().clamp(min=0)
        self._join(bins.bincount().double(), bins.bincount(values), float(values.square().sum()))

    @classmethod
    def of(cls, parts: list[Self]) -> Self:
        """Returns the histogram of the numbers of several."""
        found = cls()
        for part in parts:
            found._join(part._counts, part._sums, part._squares)
        return found

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return int(self._counts.sum())

    @property
    def deviation(self) -> float:
        """The standard deviation of the numbers."""
        mean = float(self._sums.sum()) / self.count
        variance = self._squares / self.count - mean**2
        return math.sqrt(max(0.0, variance)) if not math.isnan(variance) else math.nan

    @property
    def percentiles(self) -> dict[int, float]:
        """Percent to the number below which so many of the numbers are, by nearest rank."""
        if math.isnan(float(self._sums.sum())):
            return dict.fromkeys(PERCENTILES, math.nan)
        below = self._counts.cumsum(0)
        found = {}
        for percent in PERCENTILES:
            rank = round(percent / 100 * (self.count - 1))
            number = int(torch.searchsorted(below, float(rank), right=True))
            found[percent] = float(self._sums[number] / self._counts[number])
        return found

    def _join(self, counts: Tensor, sums: Tensor, squares: float) -> None:
        more = len(counts) - len(self._counts)
        if more > 0:
            self._counts, self._sums = pad(self._counts, (0, more)), pad(self._sums, (0, more))
        self._counts[: len(counts)] += counts
        self._sums[: len(counts)] += sums
        self._squares += squares
