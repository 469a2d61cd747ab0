"""Training, validation and test part: where each comes from, and how one that is not given is made.

Data of all tasks name their parts alike: files under `train`, `validation` and `test`, splits of a
Hugging Face dataset under `train_split` and so on, and shares that are divided off the training
data where a part is not given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")


class DividedSettings(BaseModel):
    """Data whose validation and test part may be shares of the training data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    validation_fraction: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="share of the training data that becomes the validation part, where none is "
        "given",
    )
    test_fraction: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="share of the training data that becomes the test part, where none is given",
    )

    def fractions(self, given: Container[str] = ()) -> tuple[float, float]:
        """Shares of the validation and of the test part; 0 of one that is given."""
        return (
            0.0 if "validation" in given else self.validation_fraction,
            0.0 if "test" in given else self.test_fraction,
        )


class HubSettings(BaseModel):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        description="name on the hub, or a local folder with train.jsonl, test.parquet, ..."
    )
    config: str | None = Field(None, description="configuration (subset) of the dataset")
    revision: str | None = Field(
        None, description="branch, tag or commit of the dataset, to pin its content"
    )
    train_split: str = Field(
        "train", description="split to train on; a slice such as train[:100000] takes a part"
    )
    validation_split: str | None = Field(
        "validation", description="split to validate on; null takes a share of the training split"
    )
    test_split: str | None = Field(
        "test", description="split to test on; null takes a share of the training split"
    )

    @property
    def origin(self) -> str:
        """The dataset in words."""
        return " ".join(filter(None, ("dataset", self.name, self.config)))

    def splits(self) -> dict[Part, str]:
        """The split of each part that has one."""
        found = {part: getattr(self, f"{part}_split") for part in PARTS}
        return {part: split for part, split in found.items() if split is not None}


def given_parts(settings: BaseModel) -> dict[Part, Any]:
    """What settings have under `train`, `validation` and `test`, where they have something."""
    found = {part: getattr(settings, part) for part in PARTS}
    return {part: value for part, value in found.items() if value is not None}


def divide(
    keys: Iterable[str], validation_fraction: float, test_fraction: float
) -> dict[str, Part]:
    """Divide keys, such as texts or names of files, into three parts: the rule of all tasks.

    The keys are sorted by their SHA-256. The first are the test part, the next the validation part,
    and the rest is trained on. A part has its share of the different keys, rounded to the nearest
    whole number, and at least one key; with a share of 0 it has none. So the order in which keys
    come does not matter, and one that comes twice is in one part.

    Args:
        keys: what is divided.
        validation_fraction, test_fraction: the shares.

    Returns:
        The part of each key. With fewer than three keys a part may be empty.

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


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")
