"""What the numbers say of a claim.

A test of two systems has a difference with its 95% interval and p, which is corrected by Holm's
method over the tests of the claim, and a margin: the smallest difference that matters. A system is

- better, or worse, than another if the corrected p is below 0.05;
- not better, or not worse, by more than the margin, if the interval ends before the margin; and the
  opposite, if the whole interval lies beyond it;
- else it cannot be told, and the number of seeds, or of items, is given with which a difference as
  large as the margin would be found with probability 0.8.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel, Field

from headwise.analysis.statistics.estimates import SIGNIFICANT, Difference
from headwise.analysis.statistics.seeds_and_items import SamplesNeeded
from headwise.claims.catalogue.declared import Against
from headwise.tasks.outcome import RECORD

Kind = Literal[
    "confirmed", "contradicted", "not comparable", "no difference", "cannot be told", "not run"
]


class Standing(BaseModel):
    """A difference in units of its margin, positive where the first system is better."""

    model_config = RECORD

    value: float
    low: float = Field(description="Lower end of the 95% interval.")
    high: float = Field(description="Upper end of the 95% interval.")
    p: float = Field(description="Corrected over the tests of the claim.")


class Finding(BaseModel):
    """The result of one of the tests of a claim: its verdict, with the figures behind it."""

    model_config = RECORD

    test: str = Field(description="The test in words.")
    kind: Kind
    figures: str = Field("", description="The figures of the systems.")
    difference: str = Field("", description="The difference with its interval and p.")
    margin: str = Field("", description="The smallest difference that matters.")
    printed: str = Field("", description="The paper's own difference, and whether it is ruled out.")
    loss: str = Field(
        "", description="Of a score: the difference of the test loss, which the verdict is not of."
    )
    remark: str = Field("", description="What else the verdict says, such as how many seeds.")
    p: float | None = Field(
        None, description="Of a test of two systems, corrected over the tests of the claim."
    )
    standing: Standing | None = Field(
        None, description="Of a test of two systems, once there is a difference with an interval."
    )


class Verdict(BaseModel):
    """What is known of a claim at one scale."""

    model_config = RECORD

    kind: Kind
    because: str = Field(
        "", description="Of what is not comparable: what is otherwise here than in the paper."
    )
    findings: list[Finding] = []
    runs: int = Field(0, description="How many runs it rests on.")
    seeds: int = Field(
        0, description="How many seeds each system has at the least, without those that diverged."
    )
    diverged: int = Field(0, description="How many runs diverged, and count for nothing.")
    minutes: float = Field(0.0, description="How long they were trained, all together.")
    machines: list[str] = []
    stale: list[str] = Field([], description="Systems for which the code computes otherwise today.")

    @property
    def name(self) -> str:
        """What it is called: the reason, where the figures are not comparable."""
        return self.because or self.kind

    @property
    def name_with_mark(self) -> str:
        """The same, marked where the code computes otherwise today."""
        return f"{self.name} (stale)" if self.stale else self.name


class Oriented(NamedTuple):
    """A difference that is positive where the first system is better.

    Attributes:
        value, low, high: the difference and its 95% interval.
        p: corrected over the tests of the claim.
    """

    value: float
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, found: Difference, higher_is_better: bool) -> "Oriented":
        """Returns a difference of two scores, with its sign turned if lower is better."""
        ends = (found.value, found.low, found.high)
        if not higher_is_better:
            ends = (-found.value, -found.high, -found.low)
        return cls(*ends, found.corrected_p_value)


def judge(test: Against, found: Oriented) -> Kind:
    """Returns what a difference says of a test.

    >>> test = Against(of="a", holds="better", than="b", margin=1.0)
    >>> judge(test, Oriented(2.0, 1.5, 2.5, 0.001)), judge(test, Oriented(0.0, -0.5, 0.5, 1.0))
    ('confirmed', 'no difference')
    >>> judge(test, Oriented(0.5, -2.0, 3.0, 0.6)), judge(test, Oriented(-2.0, -2.5, -1.5, 0.001))
    ('cannot be told', 'contradicted')
    >>> judge(test, Oriented(-0.5, -1.2, 0.2, 0.3))  # it may be worse by more than the margin
    'cannot be told'
    """
    significant = found.p < SIGNIFICANT
    better, worse = significant and found.value > 0, significant and found.value < 0
    no_better, no_worse = found.high < test.margin, found.low > -test.margin
    much_better, much_worse = found.low >= test.margin, found.high <= -test.margin
    if test.holds == "better":
        if better or worse:
            return "confirmed" if better else "contradicted"
        return "no difference" if no_better and no_worse else "cannot be told"
    holds, fails = no_better, much_better
    if test.holds == "not worse":
        holds, fails = no_worse, much_worse
    if holds:
        return "confirmed"
    return "contradicted" if fails else "cannot be told"


def comparable(verdict: Verdict, otherwise: str) -> Verdict:
    """Returns a verdict that contradicts nothing where something is otherwise than in the paper.

    >>> comparable(Verdict(kind="contradicted"), "another machine").kind
    'not comparable'
    >>> comparable(Verdict(kind="confirmed"), "another machine").kind
    'confirmed'
    """
    if verdict.kind != "contradicted" or not otherwise:
        return verdict
    return verdict.model_copy(update={"kind": "not comparable", "because": otherwise})


def judge_range(low: float, high: float, at_least: float | None, at_most: float | None) -> Kind:
    """Returns what an interval says of a number that is to lie between bounds.

    >>> judge_range(1.0, 1.1, None, 1.2), judge_range(1.1, 1.3, None, 1.2)
    ('confirmed', 'cannot be told')
    """
    least = -math.inf if at_least is None else at_least
    most = math.inf if at_most is None else at_most
    if least <= low and high <= most:
        return "confirmed"
    return "contradicted" if high < least or low > most else "cannot be told"


def together(kinds: Sequence[Kind]) -> Kind:
    """Returns the verdict of a claim all of whose tests have to hold.

    >>> together(["confirmed", "no difference"]), together(["not run", "contradicted"])
    ('no difference', 'contradicted')
    """
    order: tuple[Kind, ...] = ("contradicted", "not run", "cannot be told", "no difference")
    return next((kind for kind in order if kind in kinds), "confirmed")


def what_it_takes(needed: SamplesNeeded | None) -> str:
    """Says how many seeds or items would find what cannot be told.

    >>> what_it_takes(SamplesNeeded(seeds=12, times_items=None))
    'it would take 12 seeds'
    >>> what_it_takes(SamplesNeeded(seeds=None, times_items=1.108))
    'more seeds alone are not enough; it would take at least 1.2 times as many test items too'
    """
    if needed is None:
        return "it would take more than one seed"
    if needed.seeds is not None:
        return f"it would take {needed.seeds:,} seeds"
    if needed.times_items is not None:
        times = math.ceil(10 * needed.times_items) / 10
        return (
            f"more seeds alone are not enough; it would take at least {times:g} times as many "
            f"test items too"
        )
    return "it would take more than 1,000 seeds"
