"""Running sums for each token that occurs."""

import torch
from torch import Tensor
from torch.nn.functional import pad


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
        """Adds to the sums of tokens.

        Args:
            tokens: `(count,)`, numbers from 0 on.
            values: `(count, columns)`, float64.
        """
        rows = self._rows(tokens)  # which makes room for new tokens
        self._sums.index_add_(0, rows, values)

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
