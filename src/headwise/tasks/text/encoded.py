"""Sequences of token ids: compact in memory, and padded in batches."""

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch.nn.utils.rnn import pad_sequence


class Ragged:
    """Rows of ids of different lengths in one tensor.

    As Python lists, one side of WMT14 (130 million subwords) would take 5 GB, and every worker of
    a data loader would get a copy of it. A tensor takes a tenth of that and is shared.

    Args:
        encode: function from texts to their ids.
        texts: texts to encode; row `i` holds the ids of text `i`.

    Attributes:
        lengths: number of ids of each row.
        ids: the ids of all rows, one row after the other, of shape `(ids,)`.
    """

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], texts: list[str]) -> None:
        ids = array("i")
        self.lengths: list[int] = []
        for start in range(0, len(texts), 10_000):  # in pieces: not all lists exist at once
            for row in encode(texts[start : start + 10_000]):
                ids.extend(row)
                self.lengths.append(len(row))
        # Shares the memory of the array; torch.tensor would first make a list of Python numbers.
        self.ids = torch.frombuffer(ids, dtype=torch.int32) if ids else torch.empty(0).int()
        self._ends = torch.tensor(list(accumulate(self.lengths)))

    def __getitem__(self, index: int) -> list[int]:
        if not -len(self._ends) <= index < len(self._ends):
            raise IndexError(f"index is {index}, expected that of one of {len(self._ends)} texts")
        index %= len(self._ends)
        start = self._ends[index - 1] if index else 0
        return self.ids[start : self._ends[index]].tolist()


def pad(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """Joins rows of different lengths into one tensor, padded on the right.

    Args:
        rows: rows of ids or labels, at least one.
        value: value of the padding.

    Returns:
        A tensor of int64, of shape `(rows, longest)`.

    >>> pad([[5, 6, 7], [8]], 0)
    tensor([[5, 6, 7],
            [8, 0, 0]])
    """
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value)


def token_mask(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Returns the mask of rows that `pad` joins: 1 for their tokens, 0 for padding.

    >>> token_mask([[5, 6, 7], [8]])
    tensor([[1, 1, 1],
            [1, 0, 0]])
    """
    return pad([[1] * len(row) for row in rows], 0)
