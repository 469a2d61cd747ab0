"""Estimates of scores and of differences between them, as a comparison records them."""

from typing import Literal

from pydantic import BaseModel, Field

from headwise.tasks.outcome import RECORD

SIGNIFICANT = 0.05  # a smaller p-value, corrected for the number of comparisons, is significant
POWER = 0.8  # probability with which a difference as large as the detectable one is found

# The sources of chance that an interval or a test takes into account.
Source = Literal["seeds and items", "items", "seeds"]


class Estimate(BaseModel):
    """The mean score of a system over its seeds, with its 95% interval."""

    model_config = RECORD

    value: float = Field(description="The mean over seeds.")
    low: float | None = Field(None, description="Lower end of the 95% interval.")
    high: float | None = Field(None, description="Upper end of the 95% interval.")
    error: float | None = Field(None, description="Standard error of the mean.")
    freedom: float | None = Field(None, description="Degrees of freedom of the standard error.")
    source: Source = Field(
        description="Whose chance the interval holds; with one seed only that of the items."
    )
    seeds: int = Field(description="Number of seeds that count.")


class Difference(BaseModel):
    """The difference of a system's mean score to the baseline's, and whether it may be chance."""

    model_config = RECORD

    value: float = Field(description="The system's mean minus the baseline's.")
    low: float = Field(description="Lower end of the 95% interval.")
    high: float = Field(description="Upper end of the 95% interval.")
    error: float = Field(description="Standard error of the difference.")
    freedom: float = Field(description="Degrees of freedom of the standard error.")
    source: Source = Field(
        description="Whose chance interval and p hold. With `items` they are about the runs at "
        "hand: other seeds may give another difference."
    )
    p_value: float = Field(
        description="Two-sided: the probability of a difference this large without a true one."
    )
    corrected_p_value: float = Field(
        description="By Holm's method, over all comparisons of the table."
    )
    detectable: float | None = Field(
        description="The smallest true difference that so many seeds and items find with "
        "probability 0.8; None with one seed, which finds none, and where no score varies."
    )

    @property
    def significant(self) -> bool:
        """Whether the systems differ, by the corrected p-value; never said of single runs."""
        return self.source != "items" and self.corrected_p_value < SIGNIFICANT
