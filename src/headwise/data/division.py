"""How data are divided into parts and sampled: by hashes of their content, for all tasks.

A hash is the first eight bytes of a SHA-256 as a number. The result depends neither on the order
of the data nor on repetitions: what has one key stands in one part.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
Item = TypeVar("Item")
Hashes = NDArray[np.uint64]  # (items,)


def hash_of(key: str, salt: bytes = b"") -> int:
    """Returns the hash of a key, such as a text or the name of a file."""
    content = salt + key.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")


def hashes(keys: Iterable[str], salt: bytes = b"") -> Hashes:
    """Returns the hash of each key, of shape `(keys,)`."""
    return np.fromiter((hash_of(key, salt) for key in keys), np.uint64)


def parts_of(found: Hashes, validation_fraction: float, test_fraction: float) -> NDArray[np.int8]:
    """Divides items into three parts by the hashes of their keys; returns numbers of `PARTS`.

    The keys of smallest hash are the test part, the next the validation part, and the rest is the
    training part. The size of a part is its share of the different keys, rounded to the nearest
    whole number, but at least one; with a share of 0 the part is empty.

    >>> parts_of(hashes("abcdefghij"), 0.2, 0.1)
    array([0, 0, 0, 1, 0, 1, 0, 0, 0, 2], dtype=int8)
    """
    ordered = np.unique(found)
    tests, validations = (
        max(1, round(fraction * len(ordered))) if fraction else 0
        for fraction in (test_fraction, validation_fraction)
    )
    place = np.searchsorted(ordered, found)
    return np.where(place < tests, 2, np.where(place < tests + validations, 1, 0)).astype(np.int8)


def fixed_parts_of(
    found: Hashes, validation_fraction: float, test_fraction: float
) -> NDArray[np.int8]:
    """Divides items so that the hash of a key alone decides, whatever other keys there are.

    The hash is taken as a number in [0, 1). Numbers below `test_fraction` are the test part, the
    next `validation_fraction` of them the validation part, and the rest is trained on. So a part
    has its share only approximately.

    >>> fixed_parts_of(hashes(["Save", "Open File", "Undo"]), 0.1, 0.1)
    array([2, 1, 0], dtype=int8)
    """
    position = found / 2**64
    ends = (test_fraction, test_fraction + validation_fraction)
    return np.where(position < ends[0], 2, np.where(position < ends[1], 1, 0)).astype(np.int8)


def sampled(found: Hashes, fraction: float) -> NDArray[np.bool_]:
    """Chooses as many keys of smallest hash as the share has, but at least one.

    The hashes are those with the salt `SAMPLE`: of the others, the training part has the largest.

    >>> sampled(hashes("abcdefghij", SAMPLE), 0.3).nonzero()[0]
    array([2, 3, 4])
    """
    ordered = np.unique(found)
    return found <= ordered[max(1, round(fraction * len(ordered))) - 1]


SAMPLE = b"sample "


def sample_in_words(kept: int, number: int, unit: str) -> dict[str, str]:
    """Returns what the notes say of a sample."""
    return {"sample": f"{kept:,} of {number:,} training {unit}, chosen by a hash of each"}


def divide(
    keys: Iterable[str], validation_fraction: float, test_fraction: float
) -> dict[str, Part]:
    """Divides keys, such as names of files, as `parts_of` does; returns them in order of hash.

    >>> divide("abcdefghij", 0.2, 0.1)["a"]
    'train'
    """
    different = list(dict.fromkeys(keys))
    found = hashes(different)
    parts = parts_of(found, validation_fraction, test_fraction)
    return {different[i]: PARTS[parts[i]] for i in np.argsort(found)}


def sample(
    items: Sequence[Item], key: Callable[[Item], str], fraction: float, unit: str
) -> tuple[list[Item], dict[str, str]]:
    """Takes a share of training items by `sampled`, in their order, with a note on it.

    >>> sample("abcdefghij", str, 0.3, "letters")
    (['c', 'd', 'e'], {'sample': '3 of 10 training letters, chosen by a hash of each'})
    """
    if fraction == 1.0:
        return list(items), {}
    kept = sampled(hashes(map(key, items), SAMPLE), fraction)
    found = list(compress(items, kept))
    return found, sample_in_words(len(found), len(items), unit)
