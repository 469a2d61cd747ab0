"""What the evaluation of a model gives, whatever its task: scores, samples, pictures."""

import base64
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import Self

from headwise.tasks.significance import Rows, Statistic, bootstrap_interval

# A run that diverged has NaN among its numbers; the default would write them as null, which
# cannot be read back.
RECORD = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

Item = TypeVar("Item")


class Score(BaseModel):
    """One figure of quality on held-out data."""

    model_config = RECORD

    name: str = Field(description="as a table's header says it: BLEU")
    value: float
    low: float | None = Field(None, description="lower end of the 95% bootstrap interval")
    high: float | None = Field(None, description="upper end of it")
    higher_is_better: bool = True
    digits: int = Field(1, description="decimals that are worth printing")
    note: str = Field("", description="how it was counted, where that is not clear: a signature")
    is_perplexity: bool = Field(False, description="whether it is a perplexity of held-out text")

    @classmethod
    def of(
        cls,
        name: str,
        items: Rows,
        statistic: Statistic,
        *,
        higher_is_better: bool = True,
        digits: int = 1,
        note: str = "",
        is_perplexity: bool = False,
    ) -> Self:
        """The figure that a statistic makes of test items, with its interval.

        Args:
            name: as a table's header says it.
            items: a row of numbers per test item.
            statistic: the figure of an array of such rows, `(items, numbers)`.
            higher_is_better, digits, note, is_perplexity: as the fields.

        >>> print(Score.of("accuracy", [[1.0]] * 80 + [[0.0]] * 20, lambda rows: 100 * rows.mean()))
        accuracy 80.00 [72.97, 87.00]
        """
        value = statistic(np.asarray(items, dtype=np.float64))
        # What is no number with all items is none with any choice of them either.
        ends = (None, None) if math.isnan(value) else bootstrap_interval(items, statistic)
        return cls(
            name=name,
            value=value,
            low=ends[0],
            high=ends[1],
            higher_is_better=higher_is_better,
            digits=digits,
            note=note,
            is_perplexity=is_perplexity,
        )

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the 95% interval, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def __str__(self) -> str:
        text = f"{self.name} {self.value:.{self.digits + 1}f}"
        if self.interval is None:
            return text
        low, high = (f"{end:.{self.digits + 1}f}" for end in self.interval)
        return f"{text} [{low}, {high}]"


class Sample(BaseModel):
    """Something of the test part, as text, and what the model makes of it."""

    model_config = RECORD

    given: dict[str, str] = Field(description="label to text: Source, Reference")
    made: str = Field(description="by the model")


class Picture(BaseModel):
    """Something to look at, as a PNG."""

    model_config = RECORD

    title: str
    caption: str = Field("", description="what is to be seen, in a sentence or two")
    png: str = Field(description="base64")

    @classmethod
    def of(cls, title: str, png: bytes, caption: str = "") -> Self:
        """The picture with this PNG's bytes."""
        return cls(title=title, caption=caption, png=base64.b64encode(png).decode("ascii"))

    @property
    def bytes(self) -> bytes:
        """The PNG itself."""
        return base64.b64decode(self.png)


class Outcome(BaseModel):
    """What a model does on one part of a task's data."""

    model_config = RECORD

    scores: list[Score] = Field(min_length=1, description="systems are ranked by the first")
    items: list[list[float]] = Field(
        default=[],
        description="per test item, in their order, what the first score is computed from; what "
        "the paired bootstrap draws from",
    )
    outputs: list[str] = Field(
        default=[], description="per test item what the model wrote, where it writes"
    )
    samples: list[Sample] = []
    pictures: list[Picture] = []

    def model_post_init(self, context: Any) -> None:
        names = [score.name for score in self.scores]
        if len(set(names)) < len(names):
            raise ValueError(f"scores are named {names}, expected different names")


def spread(items: Sequence[Item], number: int) -> Sequence[Item]:
    """So many items to show, from everywhere among them; all of them where there are fewer.

    >>> spread("abcdefgh", 3), spread("abc", 5), spread("abc", 0)
    ('ace', 'abc', '')
    """
    return items[:: max(1, len(items) // max(1, number))][:number]
