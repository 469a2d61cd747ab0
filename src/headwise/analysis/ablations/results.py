"""What an analysis of ablations finds: records, and the tests that compare them."""

import math
from collections.abc import Sequence

from headwise.analysis.ablations.declared import Level
from headwise.analysis.decisions.observing import Where
from headwise.analysis.statistics.estimates import (
    SIGNIFICANT,
    Spread,
    detectable_difference,
    holm,
    judged,
)
from headwise.tasks.scores import Record


class Measured(Record):
    """A number under an ablation, and how it differs from that without it."""

    value: float  # the number; with random draws, the mean over these
    difference: float  # the number minus that without ablation
    # The variance of the difference, over items and random draws; None if unknown.
    spread: Spread | None = None
    items: int = 0  # number of items, over which the difference is paired


class Change(Record):
    """How a number changes under an ablation, and whether that may be chance of the items."""

    value: float  # the number; with random draws, the mean over these
    difference: float  # the number minus that without ablation
    # How much worse the number is than without ablation: the difference, or its negative where
    # higher is better. Negative if the model is better with the ablation.
    cost: float
    low: float | None = None  # lower end of the difference's 95% interval
    high: float | None = None  # upper end of the difference's 95% interval
    # Two-sided, paired over the items, for this model: not of other seeds.
    p_value: float | None = None
    corrected_p_value: float | None = None  # by Holm's method, over all ablations of the table
    # The smallest true difference that the corrected test finds with probability 0.8.
    detectable: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the difference is more than chance of the items, by the corrected p."""
        return self.corrected_p_value is not None and self.corrected_p_value < SIGNIFICANT


class AblationResult(Record):
    """The quality of a model under one ablation."""

    system: str  # the system's name in plans, a key of `RunAnalysis.words`
    ablation: str  # the ablation's name, as the system declares it
    options: dict[str, int]  # the ablation's options
    meaning: str  # what the ablation does, in a sentence
    where: Where | None  # the system; None if all of its kind are changed
    unit: str | None  # what is removed, or left alone in force; None if all units are changed
    alone: bool  # whether that unit is left alone, rather than removed
    draws: int  # how many random draws were made; 0 if nothing is drawn
    score: Change
    loss: Change | None  # of the mean loss; None if it was not computed

    @property
    def number(self) -> int | None:
        """The number of the unit."""
        return None if self.unit is None else self.options[self.unit]


class AblationAnalysis(Record):
    """What it costs a model to do without parts of its systems."""

    level: Level  # which ablations were made; see `declared_ablations`
    score: str  # the name of the score: BLEU
    higher_is_better: bool
    digits: int  # number of decimals of the score in tables
    item_name: str  # what the items are: sentences
    items: int  # number of items; 0 of a score that is not made from items
    value: float  # the score without ablation
    loss_name: str  # the unit of the loss; empty if it was not computed
    loss: float | None  # the loss without ablation; None if not computed
    results: list[AblationResult]  # the costliest ablation first


def changes(measured: Sequence[Measured | None], higher_is_better: bool) -> list[Change | None]:
    """Returns the changes of a table, with intervals and corrected p-values.

    The p-value is that of Student's t. Where the difference is the same on all resamples of the
    items, every item changed alike, and it is that of the sign test.
    """
    tests = [None if each is None else _test(each) for each in measured]
    known = [test[-1] for test in tests if test is not None]
    corrected = iter(holm(known))
    found: list[Change | None] = []
    for each, test in zip(measured, tests, strict=True):
        if each is None:
            found.append(None)
            continue
        cost = -each.difference if higher_is_better else each.difference
        change = Change(value=each.value, difference=each.difference, cost=cost + 0.0)
        if test is not None:
            change.low, change.high, change.p_value = test
            change.corrected_p_value = next(corrected)
            if each.spread is not None and each.spread.variance:
                change.detectable = detectable_difference(each.spread, len(known))
        found.append(change)
    return found


def _test(measured: Measured) -> tuple[float, float, float] | None:
    """Both ends of the interval, and p."""
    if measured.spread is None or not math.isfinite(measured.difference):
        return None
    found = judged(measured.difference, measured.spread, "items")
    if found is None:  # nothing varies
        return measured.difference, measured.difference, 2 * 0.5**measured.items
    return found.low, found.high, found.p_value
