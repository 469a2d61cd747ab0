"""Divides data into parts, and tells what they share.

One rule divides what has a key, such as a text or a file's name: the hash of the key alone decides.
So a text stays in its part in every release, order and size of the data, and what is there twice
is in one part. Running text is cut: its end is held out.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
from numpy.typing import NDArray

from headwise.data.encode import column_of, digest, encoded, fingerprint
from headwise.data.load import Columns, DataError, Names, load, names_of, picked
from headwise.data.settings import PARTS, Data
from headwise.data.stream import Shards

if TYPE_CHECKING:
    from headwise.tasks.task import Task

KEY = "_key"  # the column with the hashes of keys
Hashes = NDArray[np.uint64]  # (rows,)
Parts = dict[str, datasets.Dataset]
Facts = dict[str, dict[str, int | str]]
_PASSAGE = 64  # rows of running text that are sampled together


def parts_of(data: Data, task: "type[Task]") -> tuple[dict[str, Any], Facts]:
    """Returns the rows of each part and of each further test set, cleaned, and facts about them.

    Args:
        data: where the rows are, and how they are divided.
        task: says which columns it needs, and what it leaves out.

    Returns:
        The rows of `train`, `validation`, `test` and the further test sets by name, of which
        `train` may be the shards of a stream; and a table: for each of them its number of rows,
        how many were left out, and so on.

    Raises:
        DataError: data that cannot be read, or of which a part has no rows.
    """
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    stream = Shards(data, task) if data.streaming else None
    read = read_parts(data, task, PARTS[1:] if stream else PARTS)
    if stream is not None:
        read |= {part: stream.part(part) for part in stream.held_out}
    parts: dict[str, Any] = {name: cleaned(rows, data, name, task) for name, rows in read.items()}
    for name in data.tests:
        own = data.test_set(name)
        try:
            read[name] = read_parts(own, task, ("test",))["test"]
        except DataError as error:
            raise DataError(f"data.tests.{name}: {error}") from error
        parts[name] = cleaned(read[name], own, name, task)
    facts: Facts = {name: {"rows": 0} for name in (*PARTS, *data.tests)}
    for name, rows in parts.items():
        if (left_out := len(read[name]) - len(rows)) > 0:  # a row of text may become several
            facts[name]["left out"] = left_out
    if stream is None:
        parts |= _divided(parts, data)
    if data.train_fraction < 1.0:
        facts["train"]["sampled from"] = len(parts["train"])
        parts["train"] = sample(parts["train"], data.train_fraction)
    train = parts.get("train")
    for name, rows in parts.items():
        if not len(rows):
            raise DataError(
                f"{data.called}: the {name} part has no rows, of "
                f"{len(read.get(name, read['train'])):,} that were read: give more data, files or "
                f"a split of its own for the part, or larger shares (data.validation_fraction, "
                f"data.test_fraction)"
            )
        facts[name] |= {"rows": len(rows), **shared(rows, train)}
        parts[name] = rows.remove_columns(KEY) if KEY in rows.column_names else rows
        facts[name]["SHA-256"] = digest(parts[name])[:12]
    if stream is not None:
        parts["train"] = stream
        facts["train"] = {"files or shards": stream.number, "SHA-256": stream.digest[:12]}
    return {name: parts[name] for name in facts}, facts


def _divided(parts: Parts, data: Data) -> Parts:
    """Returns the parts that are shares of the training part, and what is left of that."""
    fractions = {"test": data.test_fraction, "validation": data.validation_fraction}
    shares = {name: share for name, share in fractions.items() if name not in parts}
    if not shares:
        return {}
    train = parts["train"]
    return by_hash(train, shares) if KEY in train.column_names else cut(train, shares)


def read_parts(data: Data, task: "type[Task]", parts: Iterable[str]) -> Parts:
    """Returns the rows of those parts that are given; the others are shares of the training part.

    Of data that are no parts themselves, a further test set is the whole.
    """
    if data.path is not None and data.path in task.built_in:
        built_in = task.built_in[data.path](**data.options)
        if "test" not in built_in and "train" not in parts:
            built_in = {"test": built_in["train"]}
        own = {part: load(data, part, task) for part in parts if part in data.files}
        return {part: rows for part, rows in built_in.items() if part in parts} | own
    given = {*data.files, "train"} & {*parts}
    if data.path is not None:
        given |= {part for part in parts if data.split.get(part, part) is not None}
    return {part: load(data, part, task) for part in parts if part in given}


def cleaned(rows: datasets.Dataset, data: Data, part: str, task: "type[Task]") -> datasets.Dataset:
    """Returns the rows that a task takes, with the hash of the key of each, if they have one."""
    settings = data.model_dump(include=task.clean_keys, exclude={"tests", "window", "held_out"})
    names = names_of(data, part if part in PARTS else "test", task)
    function = partial(_clean, names=names, kinds=rows.features, task=task, data=data, part=part)
    features = task.clean_features
    if features is not None and task.key is not None:
        features = datasets.Features({**features, KEY: datasets.Value("uint64")})
    made_of = [f"{task.name}: reading {part}", settings, names]
    return encoded(rows, function, made_of, batch_size=task.rows_at_once, features=features)


def _clean(
    columns: Columns, *, names: Names, kinds: Any, task: "type[Task]", data: Data, part: str
) -> Columns:
    columns = task.clean(picked(columns, names, kinds) if names else columns, data, part)
    if task.key is not None:
        columns[KEY] = hashes(columns[task.key])
    if task.clean_features is not None:  # a key need not be kept
        columns = {name: columns[name] for name in columns if name in (*task.clean_features, KEY)}
    return columns


def hashes(keys: Iterable[Any]) -> Hashes:
    """Returns the hash of each key, a text or bytes: the first 8 bytes of its SHA-256."""

    def hashed(key: Any) -> int:
        content = key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")

    return np.fromiter(map(hashed, keys), np.uint64)


def by_hash(rows: datasets.Dataset, shares: Mapping[str, float]) -> Parts:
    """Divides rows into parts by the hashes of their keys; the rest is the training part."""
    place = column_of(rows, KEY) / 2**64
    begins = np.cumsum([0.0, *shares.values()])
    parts = {
        part: _chosen(rows, (place >= begin) & (place < begin + share), part, begin, share)
        for (part, share), begin in zip(shares.items(), begins, strict=False)
    }
    parts["train"] = _chosen(rows, place >= begins[-1], "train", float(begins[-1]))
    return parts


def cut(rows: datasets.Dataset, shares: Mapping[str, float]) -> Parts:
    """Cuts parts off the end of running text, each at least one row."""
    parts, end = {}, len(rows)
    for part, share in shares.items():
        begin = max(0, end - max(1, round(share * len(rows))))
        parts[part] = _between(rows, begin, end)
        end = begin
    return {**parts, "train": _between(rows, 0, end)}


def sample(rows: datasets.Dataset, fraction: float) -> datasets.Dataset:
    """Returns a share of rows, and at least one, which another hash of their keys chooses.

    Of running text, passages of 64 rows are chosen by their place.
    """
    if KEY in rows.column_names:
        keys = column_of(rows, KEY)
    else:
        keys = (np.arange(len(rows)) // _PASSAGE).astype(np.uint64)
    mixed = _mixed(keys)
    ordered = np.unique(mixed)
    last = ordered[max(1, round(fraction * len(ordered))) - 1] if len(ordered) else 0
    return _chosen(rows, mixed <= last, "sample", fraction)


def shared(rows: datasets.Dataset, train: datasets.Dataset | None) -> dict[str, int]:
    """Returns how many rows are there more than once, and how many are also trained on."""
    if KEY not in rows.column_names:
        return {}
    keys = column_of(rows, KEY)
    found = {"repeated": len(keys) - len(np.unique(keys))}
    if train is not None and train is not rows:
        found["also in training"] = int(np.isin(keys, column_of(train, KEY)).sum())
    return {name: number for name, number in found.items() if number}


def _chosen(rows: datasets.Dataset, is_in: NDArray[np.bool_], *made_of: object) -> datasets.Dataset:
    return rows.select(np.flatnonzero(is_in), new_fingerprint=fingerprint(rows, "chosen", *made_of))


def _between(rows: datasets.Dataset, begin: int, end: int) -> datasets.Dataset:
    return rows.select(range(begin, end), new_fingerprint=fingerprint(rows, "cut", begin, end))


def _mixed(keys: Hashes) -> Hashes:
    """Returns other hashes of hashes (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        x = keys + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def lines_of(facts: Facts) -> list[str]:
    """Returns facts about data as lines of text.

    >>> lines_of({"train": {"rows": 1200, "SHA-256": "52ab"}})
    ['train: rows 1,200, SHA-256 52ab']
    """
    found = []
    for part, of_part in facts.items():
        told = (
            f"{name} {x:,}" if isinstance(x, int) else f"{name} {x}" for name, x in of_part.items()
        )
        found.append(f"{part}: {', '.join(told)}")
    return found
