"""Encodes rows once for all runs, and gives them out as the items of a training.

What is made of rows stands in the cache of `datasets` (`HF_DATASETS_CACHE`). It is found by a
fingerprint of the rows, of the settings, and of a format number. Of several processes that need it
at once one makes it, and the others wait.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from filelock import FileLock
from torch import Tensor

from headwise.data.load import FORMAT, Columns
from headwise.files import written_whole

Item = dict[str, Any]
# Draws what is random of an item: masks, noise, excerpts.
Draw = Callable[[Item, np.random.Generator], Item]


def encoded(
    rows: datasets.Dataset,
    function: Callable[[Columns], Columns],
    made_of: Sequence[object],
    *,
    batch_size: int = 1000,
    features: datasets.Features | None = None,
) -> datasets.Dataset:
    """Returns what a function makes of rows, which may be more or fewer rows.

    Args:
        rows: the rows.
        function: takes and returns columns, of `batch_size` rows at a time.
        made_of: all on which its result depends beside the rows, with a name for the function.
        features: types of the columns that it returns.
    """
    mark = fingerprint(rows, *made_of, features)
    with _locked(mark):
        return rows.map(
            lambda columns: function(dict(columns)),  # of `datasets` they are read only when needed
            batched=True,
            batch_size=batch_size,
            remove_columns=rows.column_names,
            features=features,
            new_fingerprint=mark,
            desc=str(made_of[0]),
        )


def fingerprint(rows: datasets.Dataset, *made_of: object) -> str:
    """Returns what tells what is made of rows from all else: 32 hexadecimal digits."""
    return digest_of(rows._fingerprint, FORMAT, *made_of)[:32]


def digest_of(*made_of: object) -> str:
    """Returns the SHA-256 of values that have a plain text, such as numbers and settings."""
    return hashlib.sha256(repr(made_of).encode("utf-8", "surrogatepass")).hexdigest()


def cached(kind: str, made_of: Sequence[object], make: Callable[[Path], None]) -> Path:
    """Returns a folder of the cache; if it is not there, `make` fills it first.

    Args:
        kind: what it holds, the name of a folder in the cache.
        made_of: all that its content depends on.
        make: writes the files into an empty folder, whose path it is given.
    """
    mark = digest_of(FORMAT, *made_of)[:32]
    folder = _cache(kind) / mark
    with _locked(mark):
        if not folder.is_dir():
            with written_whole(folder) as partial_folder:
                partial_folder.mkdir()
                make(partial_folder)
    return folder


def digest(rows: datasets.Dataset) -> str:
    """Returns the SHA-256 of the content of rows, which does not depend on how they are stored.

    It is computed once and kept in the cache, since to read a large corpus takes minutes.
    """

    def make(folder: Path) -> None:
        found = hashlib.sha256()
        for column in sorted(rows.column_names):
            of_column = hashlib.sha256(column.encode())
            for batch in rows.select_columns([column]).iter(100):
                for value in batch[column]:
                    content = value if isinstance(value, bytes) and value else repr(value).encode()
                    of_column.update(len(content).to_bytes(8, "big") + content)
            found.update(of_column.digest())
        (folder / "sha256").write_text(found.hexdigest(), encoding="utf-8")

    return (cached("digests", [rows._fingerprint], make) / "sha256").read_text(encoding="utf-8")


def lengths(rows: datasets.Dataset, *columns: str) -> np.ndarray:
    """Returns the length of each list in columns of rows, of shape `(rows, columns)`."""
    table = rows.select_columns(list(columns)).with_format("arrow")[:]
    found = [pc.list_value_length(table[column]).to_numpy() for column in columns]
    return np.stack(found, axis=1).astype(np.int32)


def column_of(rows: datasets.Dataset, name: str) -> np.ndarray:
    """Returns a column of numbers as an array."""
    values = rows.data.column(name).to_numpy()
    # Of chosen rows, `datasets` would gather the values one by one.
    chosen = rows._indices
    return values if chosen is None else values[chosen.column(0).to_numpy()]


class Items(torch.utils.data.Dataset[Item]):
    """The encoded rows of one part as the items of a training.

    What is random of an item depends on seed, epoch and index alone, so that all systems see the
    same, and a run that goes on sees what it would have seen.

    Args:
        rows: the encoded rows.
        lengths: the length of each item, `(items,)`, or of its sides, `(items, sides)`, in tokens,
            frames or pixels.
        draw: what is random of an item; by default nothing.
        seed: seeds of the draws; parts that are drawn alike have different ones.
        fresh: whether an item is drawn anew in each epoch.
    """

    def __init__(
        self,
        rows: datasets.Dataset,
        lengths: np.ndarray,
        draw: Draw | None = None,
        seed: Sequence[int] = (0,),
        *,
        fresh: bool = False,
    ) -> None:
        self.rows, self.lengths, self.draw = rows, lengths, draw
        self.seed, self.fresh, self.epoch = tuple(seed), fresh, 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch whose items are drawn next; items that are not fresh stay as they are."""
        self.epoch = epoch if self.fresh else 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Item:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        indices = [range(len(self))[index] for index in indices]
        columns = self.rows[indices]
        items = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        if self.draw is None:
            return items
        seeds = ((*self.seed, self.epoch, index) for index in indices)
        return list(map(self.draw, items, map(np.random.default_rng, seeds)))


def pad(items: Sequence[Mapping[str, Any]], fill: Mapping[str, float]) -> dict[str, Tensor]:
    """Joins items into a batch.

    Args:
        items: each a value for each name: a number, or a sequence, also one of vectors.
        fill: what stands behind the end of a shorter sequence, for each name of a sequence.

    Returns:
        A tensor for each name: `(batch,)` of numbers, `(batch, time, ...)` of sequences.

    >>> pad([{"ids": [5, 6], "label": 1}, {"ids": [7], "label": 0}], {"ids": 0})
    {'ids': tensor([[5, 6],
            [7, 0]]), 'label': tensor([1, 0])}
    """
    batch = {}
    for name in items[0]:
        values = [np.asarray(item[name]) for item in items]
        if name not in fill:
            batch[name] = torch.as_tensor(np.stack(values))
            continue
        longest = max(len(value) for value in values)
        joined = np.full((len(values), longest, *values[0].shape[1:]), fill[name])
        joined = joined.astype(np.int64 if values[0].dtype.kind in "iu" else np.float32)
        for row, value in zip(joined, values, strict=True):
            row[: len(value)] = value
        batch[name] = torch.from_numpy(joined)
    return batch


def _cache(kind: str) -> Path:
    return Path(datasets.config.HF_DATASETS_CACHE) / "headwise" / kind


def _locked(mark: str) -> FileLock:
    _cache("locks").mkdir(parents=True, exist_ok=True)
    return FileLock(_cache("locks") / f"{mark}.lock")
