"""Running sums from which questions are answered: their memory does not grow with the data."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.analysis.statistics.estimates import (
    Difference,
    Estimate,
    Spread,
    estimated,
    judged,
    mean_part,
    total,
)


class ClusterSums:
    """Sums of quantities over sequences, such as their entropies and their numbers of rows.

    The rows of a sequence are not independent, the sequences are. So a mean over rows is a ratio of
    two sums over sequences, r = Σ s / Σ n, and its variance, by the delta method, is

        C / (C − 1) · Σ_c (s_c − r n_c)² / (Σ n)²        over C sequences c

    (Cochran 1977, *Sampling Techniques*, chapter 6). A mean of several such ratios is treated
    alike: the products of all quantities are kept, so that what is common to a sequence counts.
    """

    def __init__(self) -> None:
        self._totals = torch.zeros(0, dtype=torch.float64)
        self._products = torch.zeros(0, 0, dtype=torch.float64)
        self._sequences = torch.zeros(0, dtype=torch.int64)  # how many have the quantity

    @property
    def quantities(self) -> int:
        """How many quantities there are."""
        return len(self._totals)

    def add(self, values: Tensor) -> None:
        """Adds the sequences of a batch, `(sequences, quantities)`; later ones may have more."""
        more = values.size(1) - len(self._totals)
        if more > 0:
            self._totals = pad(self._totals, (0, more))
            self._products = pad(self._products, (0, more, 0, more))
            self._sequences = pad(self._sequences, (0, more))
        size = values.size(1)
        self._totals[:size] += values.sum(0)
        self._products[:size, :size] += values.T @ values
        self._sequences[:size] += (values != 0).sum(0)

    def total(self, quantity: int) -> float:
        """Returns the sum of a quantity over all sequences."""
        return float(self._totals[quantity])

    def ratio(self, pairs: Sequence[tuple[int, int]]) -> tuple[float, Spread | None]:
        """Returns the mean of ratios, and its variance; None if there are less than two sequences.

        Args:
            pairs: the quantities whose sums are divided, and those that they are divided by. The
                latter are positive in each sequence that counts.
        """
        above, below = (torch.tensor(numbers) for numbers in zip(*pairs, strict=True))
        ratios = self._totals[above] / self._totals[below]
        value = float(ratios.mean())
        sequences = int(self._sequences[below].min())
        if sequences < 2:
            return value, None
        # How the mean of the ratios changes with each sum.
        gradient = torch.zeros_like(self._totals)
        scale = 1 / (len(pairs) * self._totals[below])
        gradient.index_add_(0, above, scale)
        gradient.index_add_(0, below, -scale * ratios)
        squares = float(gradient @ self._products @ gradient)
        # Of equal ratios in all sequences, rounding may leave less than nothing.
        variance = max(0.0, squares) if not math.isnan(squares) else squares
        variance *= sequences / (sequences - 1)
        return value, Spread(variance, variance**2 / (sequences - 1))

    def estimate(self, pairs: Sequence[tuple[int, int]]) -> Estimate:
        """Returns the mean of ratios with its 95% interval over sequences."""
        return _estimate(*self.ratio(pairs))


def _estimate(value: float, spread: Spread | None) -> Estimate:
    if spread is None:
        return Estimate(value=value, source="items", seeds=1)
    return estimated(value, spread, "items", seeds=1)


def difference(first: Estimate, second: Estimate) -> Difference | None:
    """Returns the first minus the second, which are of different runs, with its 95% interval.

    The variances are added, as if the runs had read different sequences. Where they have read the
    same, they mostly err in the same direction, and the interval is rather too wide.

    Returns:
        None if one of them has no interval.

    >>> from headwise.analysis.statistics.estimates import Estimate
    >>> wide = Estimate(value=2.0, error=0.3, freedom=10.0, source="items", seeds=1)
    >>> found = difference(wide, wide.model_copy(update={"value": 1.5, "error": 0.4}))
    >>> found.value, round(found.error, 6), round(found.low, 2), round(found.high, 2)
    (0.5, 0.5, -0.55, 1.55)
    """
    spreads = []
    for each in (first, second):
        if each.error is None or each.freedom is None:
            return None
        spreads.append(mean_part(each.error, each.freedom))
    return judged(first.value - second.value, total(spreads), "items")


class TokenSums:
    """Sums of rows of numbers for each token; memory grows with the tokens that have occurred.

    Attributes:
        tokens: `(tokens,)`, those that have occurred, in the order in which they came.
    """

    def __init__(self, columns: int) -> None:
        self.tokens = torch.zeros(0, dtype=torch.int64)
        self._row_of = torch.zeros(0, dtype=torch.int64)  # row of each token, -1 if it has none
        self._sums = torch.zeros(0, columns, dtype=torch.float64)

    @property
    def sums(self) -> Tensor:
        """`(tokens, columns)`, float64."""
        return self._sums[: len(self.tokens)]

    def add(self, tokens: Tensor, values: Tensor) -> None:
        """Adds rows `(count, columns)`, float64, to the sums of their tokens, `(count,)`.

        Rows of negative numbers, where no token stands, are left out.
        """
        known = tokens >= 0
        rows = self._rows(tokens[known])  # which makes room for new tokens
        self._sums.index_add_(0, rows, values[known])

    def _rows(self, tokens: Tensor) -> Tensor:
        known = len(self._row_of)
        if len(tokens) and (largest := int(tokens.max())) >= known:
            self._row_of = pad(self._row_of, (0, max(largest + 1, 2 * known) - known), value=-1)
        new = tokens[self._row_of[tokens] < 0].unique()
        if len(new):
            rows = torch.arange(len(self.tokens), len(self.tokens) + len(new))
            self._row_of[new] = rows
            self.tokens = torch.cat([self.tokens, new])
            if len(self.tokens) > len(self._sums):
                # Twice as many as are needed, so that few batches have to copy the sums.
                more = 2 * len(self.tokens) - len(self._sums)
                self._sums = pad(self._sums, (0, 0, 0, more))
        return self._row_of[tokens]
