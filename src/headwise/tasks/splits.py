"""The training, validation and test part of data, and how training data are divided into parts.

The data of all tasks name their parts in the same way: files under `train`, `validation` and
`test`, splits of a Hugging Face dataset under `train_split`, `validation_split` and `test_split`.
A validation or test part that is not given is a share of the training data. Further test sets have
names of their own under `tests`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headwise.settings import Settings
from headwise.tasks.further_tests import complete_tests, dataset_in_words

Item = TypeVar("Item")

MAX_BYTES: Any = Field(
    None,
    ge=1,
    le=2**50,
    description="The most bytes that a text file may have, or that one compressed with gzip may "
    "expand to. A larger one is an error. Default: any number; with gzip 20 times the size of the "
    "file, or 256 MiB, since a small file can be made to fill the disk.",
)

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")


class SampledSettings(Settings):
    """Settings of data of which a sample may be trained on."""

    model_config = ConfigDict(frozen=True)

    train_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the training part that is used. A hash of each item (pair, example, "
        "image, passage of about 100 words, name of a recording) chooses the sample: it is the "
        "same for all systems and seeds, and a larger share has all items of a smaller one. The "
        "other parts stay whole.",
    )


class DividedSettings(SampledSettings):
    """Settings of data whose validation and test part may be shares of the training data."""

    validation_fraction: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="Share of the training data that becomes the validation part if none is given.",
    )
    test_fraction: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="Share of the training data that becomes the test part if none is given.",
    )

    # The key of a further test set that may stand for it; None if there is no such key.
    key_of_tests: ClassVar[str | None] = None

    @model_validator(mode="before")
    @classmethod
    def _complete_tests(cls, given: Any) -> Any:
        return complete_tests(cls, given, cls.key_of_tests)

    def fractions(self, given: Container[str] = ()) -> tuple[float, float]:
        """Returns the shares of the validation and the test part; 0 for a part that is given."""
        return (
            0.0 if "validation" in given else self.validation_fraction,
            0.0 if "test" in given else self.test_fraction,
        )


class HubSettings(Settings):
    """Settings of a dataset of the Hugging Face hub, or of a local folder in one of its formats."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(
        description="Name on the hub, or a local folder with train.jsonl, test.parquet, ..."
    )
    config: str | None = Field(None, description="Configuration (subset) of the dataset.")
    revision: str | None = Field(
        None, description="Tag or commit of the dataset, which pins its content."
    )
    train_split: str = Field(
        "train", description="Split to train on; a slice such as train[:100000] takes a part of it."
    )
    validation_split: str | None = Field(
        "validation",
        description="The split to validate on. With null, a share of the training split is used.",
    )
    test_split: str | None = Field(
        "test",
        description="The split to test on. With null, a share of the training split is used.",
    )

    @property
    def origin(self) -> str:
        """The dataset in words, for the notes on the data."""
        return dataset_in_words(self.name, self.config, self.revision)

    def splits(self) -> dict[Part, str]:
        """Returns the split of each part that has one."""
        found = {part: getattr(self, f"{part}_split") for part in PARTS}
        return {part: split for part, split in found.items() if split is not None}


def given_parts(settings: BaseModel) -> dict[Part, Any]:
    """Returns the values of the fields `train`, `validation` and `test` that are not None."""
    found = {part: getattr(settings, part) for part in PARTS}
    return {part: value for part, value in found.items() if value is not None}


def divide(
    keys: Iterable[str], validation_fraction: float, test_fraction: float
) -> dict[str, Part]:
    """Divides keys, such as texts or names of files, into three parts, for all tasks.

    The keys are sorted by their SHA-256. The first are the test part, the next the validation part,
    and the rest is the training part. The size of a part is its share of the different keys,
    rounded to the nearest whole number, but at least one; with a share of 0 the part is empty. The
    result does not depend on the order of the keys, and a key that occurs twice is in one part.

    Args:
        keys: the keys to divide.
        validation_fraction, test_fraction: the shares of these parts.

    Returns:
        Each key with its part. If there are fewer than three keys, a part may be empty.

    >>> divide("abcdefghij", 0.2, 0.1)["a"]
    'train'
    >>> parts = list(divide("abcdefghij", 0.2, 0.1).values())
    >>> [parts.count(part) for part in PARTS]
    [7, 2, 1]
    """
    ordered = sorted(set(keys), key=lambda key: hashlib.sha256(_bytes(key)).digest())
    tests, validations = (
        max(1, round(fraction * len(ordered))) if fraction else 0
        for fraction in (test_fraction, validation_fraction)
    )
    return {
        key: "test" if n < tests else "validation" if n < tests + validations else "train"
        for n, key in enumerate(ordered)
    }


def sample(
    items: Sequence[Item], key: Callable[[Item], str], fraction: float, unit: str
) -> tuple[list[Item], dict[str, str]]:
    """Takes a share of training items, chosen by a hash of their keys, for all tasks.

    The different keys are sorted by their SHA-256, and the first of them are taken, in number
    their share, but at least one. So a larger share has all items of a smaller one. The result
    keeps the order of the items.

    Args:
        items: the items of the training part.
        key: returns the content of an item; items with one key stay together.
        fraction: the share of the keys.
        unit: what the items are, in the plural.

    Returns:
        The sample, and a note on it for the notes of a corpus: none if all items are taken.

    >>> sample("abcdefghij", str, 0.3, "letters")
    (['c', 'd', 'e'], {'sample': '3 of 10 training letters, chosen by a hash of each'})
    """
    if fraction == 1.0:
        return list(items), {}
    keys = [key(item) for item in items]
    # Not the hash that divides the parts, of which the training part has the largest only.
    ordered = sorted(set(keys), key=lambda key: hashlib.sha256(b"sample " + _bytes(key)).digest())
    chosen = set(ordered[: max(1, round(fraction * len(ordered)))])
    found = [item for item, key in zip(items, keys, strict=True) if key in chosen]
    note = f"{len(found):,} of {len(items):,} training {unit}, chosen by a hash of each"
    return found, {"sample": note}


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")
