"""What an analysis of ablations finds: records, and the tests that compare them."""

import math
from collections.abc import Sequence

from pydantic import BaseModel, Field

from headwise.analysis.ablations.declared import Level
from headwise.analysis.decisions.observing import Where
from headwise.analysis.statistics.estimates import (
    SIGNIFICANT,
    Spread,
    detectable_difference,
    holm,
    student_interval,
)
from headwise.tasks.outcome import RECORD


class Measured(BaseModel):
    """A number under an ablation, and how it differs from that without it."""

    model_config = RECORD

    value: float = Field(description="The number; with random draws, the mean over these.")
    difference: float = Field(description="The number minus that without ablation.")
    variance: float | None = Field(
        None, description="Of the difference, over items and random draws; None if unknown."
    )
    doubt: float = Field(0.0, description="Half of the variance's own variance.")
    items: int = Field(0, description="Number of items, over which the difference is paired.")


class Change(BaseModel):
    """How a number changes under an ablation, and whether that may be chance of the items."""

    model_config = RECORD

    value: float = Field(description="The number; with random draws, the mean over these.")
    difference: float = Field(description="The number minus that without ablation.")
    cost: float = Field(
        description="How much worse the number is than without ablation: the difference, or its "
        "negative where higher is better. Negative if the model is better with the ablation."
    )
    low: float | None = Field(None, description="Lower end of the difference's 95% interval.")
    high: float | None = Field(None, description="Upper end of the difference's 95% interval.")
    p_value: float | None = Field(
        None, description="Two-sided, paired over the items, for this model: not of other seeds."
    )
    corrected_p_value: float | None = Field(
        None, description="By Holm's method, over all ablations of the table."
    )
    detectable: float | None = Field(
        None,
        description="The smallest true difference that the corrected test finds with probability "
        "0.8.",
    )

    @property
    def significant(self) -> bool:
        """Whether the difference is more than chance of the items, by the corrected p."""
        return self.corrected_p_value is not None and self.corrected_p_value < SIGNIFICANT


class AblationResult(BaseModel):
    """The quality of a model under one ablation."""

    model_config = RECORD

    system: str = Field(description="The system's name in plans, a key of `RunAnalysis.words`.")
    ablation: str = Field(description="The ablation's name, as the system declares it.")
    options: dict[str, int] = Field(description="The ablation's options.")
    meaning: str = Field(description="What the ablation does, in a sentence.")
    where: Where | None = Field(description="The system; None if all of its kind are changed.")
    unit: str | None = Field(
        description="What is removed, or left alone in force; None if all units are changed."
    )
    alone: bool = Field(description="Whether that unit is left alone, rather than removed.")
    draws: int = Field(description="How many random draws were made; 0 if nothing is drawn.")
    score: Change
    loss: Change | None = Field(description="Of the mean loss; None if it was not computed.")

    @property
    def number(self) -> int | None:
        """The number of the unit."""
        return None if self.unit is None else self.options[self.unit]


class AblationAnalysis(BaseModel):
    """What it costs a model to do without parts of its systems."""

    model_config = RECORD

    level: Level = Field(description="Which ablations were made; see `declared_ablations`.")
    score: str = Field(description="The name of the score: BLEU.")
    higher_is_better: bool
    digits: int = Field(description="Number of decimals of the score in tables.")
    item_name: str = Field(description="What the items are: sentences.")
    items: int = Field(description="Number of items; 0 of a score that is not made from items.")
    value: float = Field(description="The score without ablation.")
    loss_name: str = Field(description="The unit of the loss; empty if it was not computed.")
    loss: float | None = Field(description="The loss without ablation; None if not computed.")
    results: list[AblationResult] = Field(description="The costliest ablation first.")


def changes(measured: Sequence[Measured | None], higher_is_better: bool) -> list[Change | None]:
    """Returns the changes of a table, with intervals and corrected p-values.

    The p-value is that of Student's t. Where the difference is the same on all resamples of the
    items, every item changed alike, and it is that of the sign test.

    >>> removed = Measured(value=20.0, difference=-5.0, variance=1.0, doubt=0.02, items=51)
    >>> (change, ) = changes([removed], higher_is_better=True)
    >>> change.cost, round(change.low, 2), round(change.high, 2), change.significant
    (5.0, -7.01, -2.99, True)
    """
    p_values = [None if each is None else _p_value(each) for each in measured]
    known = [p for p in p_values if p is not None]
    corrected = iter(holm(known))
    found: list[Change | None] = []
    for each, p_value in zip(measured, p_values, strict=True):
        if each is None:
            found.append(None)
            continue
        cost = -each.difference if higher_is_better else each.difference
        change = Change(value=each.value, difference=each.difference, cost=cost + 0.0)
        if p_value is not None and each.variance is not None:
            spread = Spread(each.variance, each.doubt)
            low, high = student_interval(each.difference, spread)
            change.low, change.high = low, high
            change.p_value, change.corrected_p_value = p_value, next(corrected)
            if each.variance:
                change.detectable = detectable_difference(spread, len(known))
        found.append(change)
    return found


def _p_value(measured: Measured) -> float | None:
    from scipy.stats import t  # imported here: it takes a second

    if measured.variance is None or not math.isfinite(measured.difference):
        return None
    if not measured.variance:
        return 2 * 0.5**measured.items if measured.difference else 1.0
    error = math.sqrt(measured.variance)
    freedom = Spread(measured.variance, measured.doubt).freedom
    return float(2 * t.sf(abs(measured.difference) / error, freedom))
