"""Sequences of token ids: one row after another on the disk, and padded in batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from headwise.data.rows import Rows, growing, mapped
from headwise.data.store import stored
from headwise.data.tokenizers.tokenization import TextTokenizer
from headwise.ops.labels import IGNORED_LABEL

_BATCH = 10_000  # texts that are encoded at once: not all lists exist at the same time
_IDS, _ENDS = "ids.npy", "ends.npy"


class Ragged:
    """Rows of ids of different lengths in one array.

    As Python lists, one side of WMT14 (130 million subwords) would take 5 GB in each process. In a
    file they take a twentieth of that, which all processes of a machine share.

    Args:
        ids: the ids of all rows, one row after another, of shape `(ids,)`. PyTorch computes little
            with uint16, which the files of most vocabularies have.
        ends: where each row ends among them, of shape `(rows,)`.
        folder: where both are stored, if they are.
    """

    def __init__(
        self, ids: NDArray[np.integer], ends: NDArray[np.int64], folder: Path | None = None
    ) -> None:
        self.ids = torch.from_numpy(ids)
        self._ends = ends
        self._folder = folder

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The number of ids of each row, computed anew at each call, of shape `(rows,)`."""
        return np.diff(self._ends, prepend=0).astype(np.int32)

    @classmethod
    def of(
        cls,
        tokenizer: TextTokenizer,
        texts: Callable[[], Iterable[str]],
        made_of: Iterable[object] | None = None,
    ) -> Self:
        """Encodes texts: into the cache, or in memory.

        Args:
            tokenizer: encodes the texts.
            texts: returns them; it is not called if they are in the cache already.
            made_of: what tells the texts from others, see `stored`. None encodes in memory.
        """
        if made_of is None:
            ids, ends = zip(*_encoded(tokenizer, texts()), strict=True)
            return cls(np.concatenate(ids), np.concatenate(ends))

        def make(folder: Path) -> None:
            narrow = tokenizer.vocab_size <= 2**16
            with (
                growing(folder / _IDS, np.uint16 if narrow else np.int32) as add_ids,
                growing(folder / _ENDS, np.int64) as add_ends,
            ):
                for ids, ends in _encoded(tokenizer, texts()):
                    add_ids(ids)
                    add_ends(ends)

        return cls.load(stored("tokens", [*made_of, tokenizer.state], make))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Opens what `of` has written into the cache."""
        return cls(mapped(folder / _IDS), mapped(folder / _ENDS), folder)

    def __reduce__(self) -> Any:
        if self._folder is None:
            return type(self), (self.ids.numpy(), self._ends)
        return type(self).load, (self._folder,)  # a worker opens the files itself

    def __getitem__(self, index: int) -> list[int]:
        index = range(len(self._ends))[index]
        begin = int(self._ends[index - 1]) if index else 0
        return self.ids[begin : int(self._ends[index])].tolist()


def encoded_column(
    tokenizer: TextTokenizer, rows: Sequence[tuple[Any, ...]], column: int
) -> Ragged:
    """Encodes a column of rows: into the cache where the rows stand there too, else in memory.

    Missing texts are empty ones.
    """

    def texts() -> Iterator[str]:
        found = rows.column(column) if isinstance(rows, Rows) else (row[column] for row in rows)
        return (text or "" for text in found)

    made_of = [rows.digest, column] if isinstance(rows, Rows) else None
    return Ragged.of(tokenizer, texts, made_of)


class TokenItem(TypedDict):
    """One encoded item: the ids that the model reads, and those that it predicts."""

    input_ids: list[int]
    labels: list[int]


def collate_tokens(items: Sequence[TokenItem], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Joins encoded items into a batch, padded on the right to the longest of them.

    Returns:
        `input_ids` and `attention_mask` of shape `(batch, time)`, where the mask is 1 for text and
        0 for padding, and `labels` of shape `(batch, label_time)`, which are -100 for padding. All
        are int64.
    """
    read = [item["input_ids"] for item in items]
    return {
        "input_ids": pad(read, pad_token_id),
        "attention_mask": token_mask(read),
        "labels": pad([item["labels"] for item in items], IGNORED_LABEL),
    }


def pad(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """Joins rows of different lengths into a tensor of int64, padded on the right.

    >>> pad([[5, 6, 7], [8]], 0)
    tensor([[5, 6, 7],
            [8, 0, 0]])
    """
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value)


def token_mask(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Returns the mask of rows that `pad` joins: 1 for their tokens, 0 for padding."""
    return pad([[1] * len(row) for row in rows], 0)


def _encoded(
    tokenizer: TextTokenizer, texts: Iterable[str]
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    """Yields the ids of rows and where these end among all ids, many rows at a time."""
    yield np.empty(0, np.int32), np.empty(0, np.int64)  # there may be no rows
    waiting, end = iter(texts), 0
    while batch := list(islice(waiting, _BATCH)):
        rows = tokenizer.encode(batch)
        ids = np.fromiter(chain.from_iterable(rows), np.int32)
        yield ids, end + np.cumsum([len(row) for row in rows], dtype=np.int64)
        end += len(ids)
