"""Sequences of ids in memory, and as padded batches."""

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch


class Ragged:
    """Lists of ids of any length in one tensor.

    As Python lists, one side of WMT14 (130 million subwords) would take 5 GB, and every worker of
    a data loader would end up with a copy; a tensor takes a tenth of that and is shared.
    """

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], texts: list[str]) -> None:
        ids = array("i")
        self.lengths: list[int] = []
        for start in range(0, len(texts), 10_000):  # in pieces, so the lists never all exist
            for row in encode(texts[start : start + 10_000]):
                ids.extend(row)
                self.lengths.append(len(row))
        # From the array's own memory: torch.tensor would first make a list of Python numbers.
        self.ids = torch.frombuffer(ids, dtype=torch.int32) if ids else torch.empty(0).int()
        self.ends = torch.tensor(list(accumulate(self.lengths)))

    def __getitem__(self, index: int) -> list[int]:
        if not -len(self.ends) <= index < len(self.ends):
            raise IndexError(f"index {index} is out of range for {len(self.ends)} texts")
        index %= len(self.ends)
        start = self.ends[index - 1] if index else 0
        return self.ids[start : self.ends[index]].tolist()


def pad(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """Rows of different lengths as one tensor, filled up on the right.

    >>> pad([[5, 6, 7], [8]], 0)
    tensor([[5, 6, 7],
            [8, 0, 0]])
    """
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def token_mask(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """1 at the tokens of rows that `pad` fills up, 0 at padding.

    >>> token_mask([[5, 6, 7], [8]])
    tensor([[1, 1, 1],
            [1, 0, 0]])
    """
    return pad([[1] * len(row) for row in rows], 0)
