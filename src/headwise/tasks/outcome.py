"""The result of an evaluation, for all tasks: scores, samples and pictures."""

import base64
import math
from collections.abc import Sequence
from typing import Any, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from headwise.tasks.significance import Rows, Statistic, bootstrap_interval, score_of

# The numbers of a run that diverged may be NaN. By default pydantic writes NaN as null, which it
# cannot read back.
RECORD = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

Item = TypeVar("Item")


class Record(BaseModel):
    """What is kept in a file, with its fields and no others."""

    model_config = RECORD


class Score(Record):
    """One score of a model on held-out data."""

    name: str = Field(description="Name of the score, as tables show it: BLEU.")
    value: float
    low: float | None = Field(None, description="Lower end of the 95% bootstrap interval.")
    high: float | None = Field(None, description="Upper end of the 95% bootstrap interval.")
    higher_is_better: bool = True
    digits: int = Field(1, description="Number of decimals in tables.")
    note: str = Field("", description="How the score was computed, such as a signature.")
    is_perplexity: bool = Field(False, description="Whether it is a perplexity of held-out text.")

    @classmethod
    def of(cls, name: str, items: Rows, statistic: Statistic, **others: Any) -> Self:
        """Computes a score from numbers of test items, with its interval.

        >>> from headwise.tasks.significance import of_rows
        >>> right = [[100.0]] * 80 + [[0.0]] * 20
        >>> print(Score.of("accuracy", right, of_rows(np.mean)))
        accuracy 80.00 [72.97, 87.00]
        """
        value = score_of(items, statistic)
        ends = bootstrap_interval(items, statistic)
        # There is none where a resample has no score, such as one without any speech.
        low, high = (None, None) if math.isnan(sum(ends)) else ends
        return cls(name=name, value=value, low=low, high=high, **others)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the 95% interval, or None if there is none."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def __str__(self) -> str:
        text = f"{self.name} {self.value:.{self.digits + 1}f}"
        if self.interval is None:
            return text
        low, high = (f"{end:.{self.digits + 1}f}" for end in self.interval)
        return f"{text} [{low}, {high}]"


class Sample(Record):
    """One item of the test part as text, with the output of the model."""

    given: dict[str, str] = Field(description="Label to text: Source, Reference.")
    made: str = Field(description="Output of the model.")


class Picture(Record):
    """A picture for the report, as a PNG."""

    title: str
    caption: str = Field("", description="What the picture shows, in a sentence or two.")
    png: str = Field(description="The PNG in base64.")

    @classmethod
    def of(cls, title: str, png: bytes, caption: str = "") -> Self:
        """Makes a picture from the bytes of a PNG."""
        return cls(title=title, caption=caption, png=base64.b64encode(png).decode("ascii"))

    @property
    def bytes(self) -> bytes:
        """The bytes of the PNG."""
        return base64.b64decode(self.png)


class Outcome(Record):
    """The result of a model on one part of the data."""

    scores: list[Score] = Field(min_length=1, description="The scores; the first ranks systems.")
    # Name of a score to a row of numbers for each test item, in order, from which the score is
    # computed. Scores that are not made from items are missing.
    items: dict[str, list[list[float]]] = {}
    outputs: list[str] = []  # the text that the model wrote for each test item, if it writes
    samples: list[Sample] = []
    pictures: list[Picture] = []
    digest: str = ""  # hash of the items, see `Task.digest_of`

    @classmethod
    def of(cls, scored: Sequence[tuple[Score, Rows]], **others: Any) -> Self:
        """Makes an outcome from scores, each with the items from which it was computed."""
        items = {score.name: np.asarray(rows, dtype=np.float64).tolist() for score, rows in scored}
        return cls(scores=[score for score, _ in scored], items=items, **others)


def spread(items: Sequence[Item], number: int) -> list[Item]:
    """Returns `number` items, spread evenly over the sequence; all items if there are fewer.

    >>> spread("abcdefgh", 3), spread("abc", 5), spread("abc", 0)
    (['a', 'c', 'f'], ['a', 'b', 'c'], [])
    """
    number = min(number, len(items))
    return [items[index * len(items) // number] for index in range(number)]
