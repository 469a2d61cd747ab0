"""Splits data into train, validation and test, and counts the rows that splits share.

The hash of a row's key, such as its text, decides its split. So a text is in the same split in
every release, order and size of the data, and all copies of it are in one split. Running text has
no keys: its end is held out.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from headwise.data.encode import content_hash, encode_rows, fingerprint, numeric_column
from headwise.data.load import (
    Columns,
    DataError,
    Names,
    TaskData,
    clean_settings,
    column_names,
    load,
    pick_columns,
)
from headwise.data.settings import SPLITS, Data
from headwise.data.stream import Stream

KEY = "_key"  # the column with the hashes of the keys
Hashes = NDArray[np.uint64]  # (rows,)
Splits = dict[str, datasets.Dataset]
Facts = dict[str, dict[str, int | str]]
_PASSAGE = 64  # consecutive rows of running text that are sampled together


def load_splits(data: Data, task: type[TaskData]) -> tuple[dict[str, Any], Facts]:
    """Returns the cleaned rows of each split and of each further test set, and facts about them.

    Args:
        data: the source of the rows, and the sizes of the splits.
        task: says which columns it needs, and which rows it leaves out.

    Returns:
        The rows by the name of the split; `train` may be a stream. And a table with
        the number of rows of each split, the number of rows that were left out, and so on.

    Raises:
        DataError: the data cannot be read, or a split has no rows.
    """
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    stream = Stream(data, task) if data.streaming else None
    raw = read_splits(data, task, SPLITS[1:] if stream else SPLITS)
    if stream is not None:
        raw |= {split: stream.held_out_rows(split) for split in stream.held_out}
    splits: dict[str, Any] = {split: clean_rows(raw[split], data, split, task) for split in raw}
    for name in data.tests:
        test_data = data.test_set(name)
        if test_data.has_rows_of(data):
            continue  # with other noise
        try:
            read = read_splits(test_data, task, ("test",))
            if "test" not in read:
                raise DataError("it has no test split, expected one: set files.test or split.test")
        except DataError as error:
            raise DataError(f"data.tests.{name}: {error}") from error
        raw[name] = read["test"]
        splits[name] = clean_rows(raw[name], test_data, name, task)
    facts: Facts = {name: {"rows": 0} for name in (*SPLITS, *data.tests)}
    for name, rows in splits.items():
        if (left_out := len(raw[name]) - len(rows)) > 0:  # a row of text may become several
            facts[name]["left out"] = left_out
    fractions = {"test": data.test_fraction, "validation": data.validation_fraction}
    shares = {name: share for name, share in fractions.items() if name not in splits}
    if stream is None and shares:
        has_keys = KEY in splits["train"].column_names
        splits |= (hash_split if has_keys else tail_split)(splits["train"], shares)
    if data.train_fraction < 1.0:
        facts["train"]["sampled from"] = len(splits["train"])
        splits["train"] = sample(splits["train"], data.train_fraction)
    # The rows of the test split, which may be a share of the training data.
    splits |= {name: splits["test"] for name in data.tests if name not in splits}
    train = splits.get("train")
    for name, rows in splits.items():
        if not len(rows):
            number = len(raw[name if name in raw else "train"])  # a stream has no "train"
            raise DataError(
                f"{data.display_name}: the {name} split has no rows, of {number:,} that were read: "
                f"give more data, files or a split of its own, or larger shares "
                f"(data.validation_fraction, data.test_fraction)"
            )
        facts[name] |= {"rows": len(rows), **count_repeated(rows, train)}
        splits[name] = rows.remove_columns(KEY) if KEY in rows.column_names else rows
        facts[name]["SHA-256"] = content_hash(splits[name])[:12]
    if stream is not None:
        splits["train"] = stream
        facts["train"] = {"files or shards": stream.num_shards, "SHA-256": stream.content_hash[:12]}
    return {name: splits[name] for name in facts}, facts


def read_splits(data: Data, task: type[TaskData], splits: Iterable[str]) -> Splits:
    """Returns the rows of those splits that the data have.

    A further test set whose installed data have only a training split is all of that split.
    """
    if data.path is not None and data.path in task.built_in:
        built_in = task.built_in[data.path](**data.options)
        if "test" not in built_in and "train" not in splits:
            built_in = {"test": built_in["train"]}
        from_files = {split: load(data, split, task) for split in splits if split in data.files}
        return {split: rows for split, rows in built_in.items() if split in splits} | from_files
    available = {*data.files, "train"}
    if data.path is not None:
        available |= {split for split in splits if data.split.get(split, split) is not None}
    return {split: load(data, split, task) for split in splits if split in available}


def clean_rows(
    rows: datasets.Dataset, data: Data, split: str, task: type[TaskData]
) -> datasets.Dataset:
    """Returns the rows that a task keeps, with the hashes of their keys if it has a key."""
    settings = clean_settings(data, task)
    names = column_names(data, split if split in SPLITS else "test", task)
    clean = partial(_clean, names=names, features=rows.features, task=task, data=data, split=split)
    features = task.clean_features
    if features is not None and task.key is not None:
        features = datasets.Features({**features, KEY: datasets.Value("uint64")})
    cache_key = [f"{task.name}: reading {split}", settings, names]
    return encode_rows(rows, clean, cache_key, batch_size=task.rows_at_once, features=features)


def _clean(
    columns: Columns, *, names: Names, features: Any, task: type[TaskData], data: Data, split: str
) -> Columns:
    if names:
        columns = pick_columns(columns, names, features, task.column_types)
    columns = task.clean(columns, data, split)
    if task.key is not None:
        columns[KEY] = hash_keys(columns[task.key])
    if task.clean_features is not None:  # the key itself need not be kept
        columns = {name: columns[name] for name in columns if name in (*task.clean_features, KEY)}
    return columns


def hash_keys(keys: Iterable[Any]) -> Hashes:
    """Returns the first 8 bytes of the SHA-256 of each key, which is a text or bytes."""

    def hash_key(key: Any) -> int:
        content = key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")

    return np.fromiter(map(hash_key, keys), np.uint64)


def hash_split(rows: datasets.Dataset, shares: Mapping[str, float]) -> Splits:
    """Splits rows by the hashes of their keys; the rows of no share are the training split."""
    uniform = numeric_column(rows, KEY) / 2**64  # in [0, 1]
    bounds = np.cumsum([0.0, *shares.values()])
    splits = {
        split: _select(rows, (uniform >= begin) & (uniform < begin + share), split, begin, share)
        for (split, share), begin in zip(shares.items(), bounds, strict=False)
    }
    splits["train"] = _select(rows, uniform >= bounds[-1], "train", float(bounds[-1]))
    return splits


def tail_split(rows: datasets.Dataset, shares: Mapping[str, float]) -> Splits:
    """Splits running text: each share is taken from the end, and has at least one row."""
    splits = {}
    end, numbers = len(rows), np.arange(len(rows))
    for split, share in shares.items():
        begin = max(0, end - max(1, round(share * len(rows))))
        splits[split] = _select(rows, (numbers >= begin) & (numbers < end), "tail", begin, end)
        end = begin
    return {**splits, "train": _select(rows, numbers < end, "tail", 0, end)}


def sample(rows: datasets.Dataset, fraction: float) -> datasets.Dataset:
    """Returns a share of rows, and at least one row, by a second hash of the keys.

    Of running text, passages of 64 rows are sampled by the hash of their number.
    """
    if KEY in rows.column_names:
        keys = numeric_column(rows, KEY)
    else:
        keys = (np.arange(len(rows)) // _PASSAGE).astype(np.uint64)
    hashes = _split_mix(keys)
    ordered = np.unique(hashes)
    limit = ordered[max(1, round(fraction * len(ordered))) - 1] if len(ordered) else 0
    return _select(rows, hashes <= limit, "sample", fraction)


def count_repeated(rows: datasets.Dataset, train: datasets.Dataset | None) -> dict[str, int]:
    """Returns the number of repeated rows, and of rows that the training split has too."""
    if KEY not in rows.column_names:
        return {}
    keys = numeric_column(rows, KEY)
    counts = {"repeated": len(keys) - len(np.unique(keys))}
    if train is not None and train is not rows:
        counts["also in training"] = int(np.isin(keys, numeric_column(train, KEY)).sum())
    return {name: number for name, number in counts.items() if number}


def _select(rows: datasets.Dataset, mask: np.ndarray, *cache_key: object) -> datasets.Dataset:
    name = fingerprint(rows, "selected", *cache_key)
    return rows.select(np.flatnonzero(mask), new_fingerprint=name)


def _split_mix(keys: Hashes) -> Hashes:
    """Hashes numbers by the finalizer of SplitMix64."""
    with np.errstate(over="ignore"):
        x = keys + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def format_facts(facts: Facts) -> list[str]:
    """Returns a line of text for each split.

    >>> format_facts({"train": {"rows": 1200, "SHA-256": "52ab"}})
    ['train: rows 1,200, SHA-256 52ab']
    """

    def number(value: int | str) -> str:
        return f"{value:,}" if isinstance(value, int) else value

    return [
        f"{split}: {', '.join(f'{name} {number(value)}' for name, value in values.items())}"
        for split, values in facts.items()
    ]
