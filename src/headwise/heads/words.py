"""What a system's decisions are called, and how a report explains them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Words(BaseModel):
    """How a report speaks of what a system decides.

    Every system has an object of this class as its attribute `words`. It is stored with the
    results of a run, so that a report needs nothing else to explain them.

    Example:
        >>> Words(unit="branch", units="branches", measure="weight").units
        'branches'
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: str = Field("expert", description="What the weights of a decision belong to.")
    units: str = Field("experts", description="Several of these.")
    decision: str = Field("weights", description="What is decided, as it stands in a sentence.")
    measure: Literal["lead", "choice", "weight"] = Field(
        "weight",
        description="What a unit's share of the work is: how often its weight is the largest "
        "(lead), how often it is among the chosen (choice), or its mean weight (weight).",
    )
    entropy: str = Field(
        "says how evenly the weights are spread: on the dashed line all count alike, near 0 a "
        "single one decides.",
        description="What the entropy of the weights means; the sentence begins with it.",
    )
    share: str = Field(
        "is the mean weight.",
        description="What a unit's share means; the sentence begins with it.",
    )
    part: str = Field(
        "", description="The part of the output that listens to units of its own; empty for none."
    )
    shows_lowest: bool = Field(
        False,
        description="Whether the lowest percentile of the entropy is drawn too, which shows "
        "whether the system is certain at least somewhere.",
    )
    recorded: dict[str, str] = Field(
        {}, description="What the rule of training records: its name, and a symbol for it."
    )
    recorded_meaning: str = Field(
        "", description="What is recorded, in words: the sentence says that it moved in training."
    )
