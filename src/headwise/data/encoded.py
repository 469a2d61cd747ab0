"""Sequences of token ids: one row after another on the disk, and padded in batches."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast
from typing_extensions import Self

from headwise.data.arrays import growing, mapped
from headwise.data.rows import Rows
from headwise.data.store import stored
from headwise.ops.labels import IGNORED_LABEL

Encode = Callable[[list[str]], list[list[int]]]

_BATCH = 10_000  # texts that are encoded at once: not all lists exist at the same time
_IDS, _LENGTHS = "ids.npy", "lengths.npy"


class Ragged:
    """Rows of ids of different lengths in one array.

    As Python lists, one side of WMT14 (130 million subwords) would take 5 GB in each process. In a
    file they take a tenth of that, which all processes of a machine share.
    """

    def __init__(
        self, ids: NDArray[np.int32], lengths: NDArray[np.int32], folder: Path | None = None
    ) -> None:
        self.ids = torch.from_numpy(ids)
        self.lengths = lengths
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._folder = folder

    @classmethod
    def of(cls, encode: Encode, texts: Iterable[str]) -> Self:
        """Encodes texts in memory."""
        found = list(_encoded(encode, texts))
        return cls(_joined(ids for ids, _ in found), _joined(lengths for _, lengths in found))

    @classmethod
    def stored(
        cls, encode: Encode, texts: Callable[[], Iterable[str]], made_of: Iterable[object]
    ) -> Self:
        """Encodes texts into the cache, see `stored`, or opens what is there."""

        def make(folder: Path) -> None:
            with (
                growing(folder / _IDS, np.int32) as add_ids,
                growing(folder / _LENGTHS, np.int32) as add_lengths,
            ):
                for ids, lengths in _encoded(encode, texts()):
                    add_ids(ids)
                    add_lengths(lengths)

        return cls.load(stored("tokens", made_of, make))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Opens what `stored` has written."""
        return cls(mapped(folder / _IDS), mapped(folder / _LENGTHS), folder)

    def __reduce__(self) -> Any:
        if self._folder is None:
            return type(self), (self.ids.numpy(), self.lengths)
        return type(self).load, (self._folder,)  # a worker opens the files itself

    def __getitem__(self, index: int) -> list[int]:
        end = int(self._ends[index])
        return self.ids[end - int(self.lengths[index]) : end].tolist()


def encoded_column(
    encode: Encode,
    rows: Sequence[tuple[Any, ...]],
    column: int,
    tokenizer: PreTrainedTokenizerFast,
) -> Ragged:
    """Encodes a column of rows: into the cache where the rows stand there too, else in memory.

    Missing texts are empty ones.
    """

    def texts() -> Iterator[str]:
        found = rows.column(column) if isinstance(rows, Rows) else (row[column] for row in rows)
        return (text or "" for text in found)

    if not isinstance(rows, Rows):
        return Ragged.of(encode, texts())
    return Ragged.stored(encode, texts, [rows.digest, column, vocabulary_hash(tokenizer)])


def vocabulary_hash(tokenizer: PreTrainedTokenizerFast) -> str:
    """Returns what tells a tokenizer from others."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


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
    encode: Encode, texts: Iterable[str]
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Yields the ids and the lengths of rows, many at a time."""
    waiting = iter(texts)
    while batch := list(islice(waiting, _BATCH)):
        rows = encode(batch)
        ids = np.fromiter(chain.from_iterable(rows), np.int32)
        yield ids, np.array([len(row) for row in rows], np.int32)


def _joined(arrays: Iterable[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate([np.empty(0, np.int32), *arrays])
