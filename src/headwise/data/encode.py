"""Encodes rows once for all runs, and serves them as the datasets of a training.

Encoded rows are kept in the cache of `datasets` (`HF_DATASETS_CACHE`), under a fingerprint of the
source rows, the settings and a format number. When several processes need the same rows at once,
one of them encodes, and the others wait.
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
from headwise.files import clear_leftovers, written_whole

Item = dict[str, Any]
# Returns an item with its random part: a mask, noise, an excerpt.
Augment = Callable[[Item, np.random.Generator], Item]


def encode_rows(
    rows: datasets.Dataset,
    function: Callable[[Columns], Columns],
    cache_key: Sequence[object],
    *,
    batch_size: int = 1000,
    features: datasets.Features | None = None,
) -> datasets.Dataset:
    """Returns the rows that a function makes of rows, possibly more or fewer, from the cache.

    Args:
        rows: the source rows.
        function: takes and returns the columns of `batch_size` rows.
        cache_key: a name of the function, and all on which its result depends beside the rows.
        features: the types of the columns that the function returns.
    """
    name = fingerprint(rows, *cache_key, features)
    with _lock(name):
        return rows.map(
            lambda columns: function(dict(columns)),  # `datasets` reads its columns lazily
            batched=True,
            batch_size=batch_size,
            remove_columns=rows.column_names,
            features=features,
            new_fingerprint=name,
            desc=str(cache_key[0]),
        )


def fingerprint(rows: datasets.Dataset, *cache_key: object) -> str:
    """Returns the fingerprint under which `datasets` caches rows that are made of other rows."""
    return hash_of(rows._fingerprint, FORMAT, *cache_key)[:32]


def hash_of(*values: object) -> str:
    """Returns the SHA-256 of values by their `repr`, such as numbers and settings."""
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


def cached_folder(kind: str, cache_key: Sequence[object], write: Callable[[Path], None]) -> Path:
    """Returns a folder of the cache; `write` fills it if it does not exist yet.

    Args:
        kind: the name of the folder in the cache that holds such folders.
        cache_key: all on which the content depends.
        write: writes the files into an empty folder, whose path it is given.
    """
    name = hash_of(FORMAT, *cache_key)[:32]
    folder = _cache_folder(kind) / name
    with _lock(name):
        if not folder.is_dir():
            clear_leftovers(folder.parent.glob(f".*-{name}"))  # of a killed process
            with written_whole(folder) as partial_folder:
                partial_folder.mkdir()
                write(partial_folder)
    return folder


def content_hash(rows: datasets.Dataset) -> str:
    """Returns the SHA-256 of the content of rows, however they are stored.

    It is computed once and cached, since reading a large corpus takes minutes.
    """

    def write(folder: Path) -> None:
        digest = hashlib.sha256()
        for column in sorted(rows.column_names):
            column_digest = hashlib.sha256(column.encode())
            for batch in rows.select_columns([column]).iter(100):
                for value in batch[column]:
                    content = value if isinstance(value, bytes) and value else repr(value).encode()
                    column_digest.update(len(content).to_bytes(8, "big") + content)
            digest.update(column_digest.digest())
        (folder / "sha256").write_text(digest.hexdigest(), encoding="utf-8")

    folder = cached_folder("digests", [rows._fingerprint], write)
    return (folder / "sha256").read_text(encoding="utf-8")


def lengths(rows: datasets.Dataset, *columns: str) -> np.ndarray:
    """Returns the length of each list in columns of rows, of shape `(rows, columns)`."""
    table = rows.select_columns(list(columns)).with_format("arrow")[:]
    sizes = [pc.list_value_length(table[column]).to_numpy() for column in columns]
    return np.stack(sizes, axis=1).astype(np.int32)


def numeric_column(rows: datasets.Dataset, name: str) -> np.ndarray:
    """Returns a column of numbers as an array."""
    values = rows.data.column(name).to_numpy()
    # Of selected rows, `datasets` would gather the values one by one.
    indices = rows._indices
    return values if indices is None else values[indices.column(0).to_numpy()]


class EncodedDataset(torch.utils.data.Dataset[Item]):
    """The encoded rows of one split, as a dataset of PyTorch.

    The random part of an item depends on seed, epoch and index alone. So all systems see the same
    items, and a resumed run sees the items that it would have seen.

    Args:
        rows: the encoded rows.
        lengths: the length of each item, `(items,)`, or of its sides, `(items, sides)`, in tokens,
            frames or pixels.
        augment: adds the random part to an item; by default there is none.
        seed: the seeds of the random parts; each split has its own.
        resample_each_epoch: whether the random parts differ between epochs.
    """

    def __init__(
        self,
        rows: datasets.Dataset,
        lengths: np.ndarray,
        augment: Augment | None = None,
        seed: Sequence[int] = (0,),
        *,
        resample_each_epoch: bool = False,
    ) -> None:
        self.rows, self.lengths, self.augment = rows, lengths, augment
        self.seed, self.resample_each_epoch, self.epoch = tuple(seed), resample_each_epoch, 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that decides the random parts, if they differ between epochs."""
        self.epoch = epoch if self.resample_each_epoch else 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Item:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        indices = [range(len(self))[index] for index in indices]
        columns = self.rows[indices]
        rows = zip(*columns.values(), strict=True)
        items = [dict(zip(columns, row, strict=True)) for row in rows]
        if self.augment is None:
            return items
        seeds = ((*self.seed, self.epoch, index) for index in indices)
        return list(map(self.augment, items, map(np.random.default_rng, seeds)))


def pad(items: Sequence[Mapping[str, Any]], fill: Mapping[str, float]) -> dict[str, Tensor]:
    """Joins items into a batch.

    Args:
        items: each has a number or a sequence for each name; a sequence may be one of vectors.
        fill: the padding value for each name of a sequence.

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


def _cache_folder(kind: str) -> Path:
    return Path(datasets.config.HF_DATASETS_CACHE) / "headwise" / kind


def _lock(name: str) -> FileLock:
    _cache_folder("locks").mkdir(parents=True, exist_ok=True)
    return FileLock(_cache_folder("locks") / f"{name}.lock")
