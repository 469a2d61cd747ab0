"""What the numbers say of a claim.

A test of two systems has a difference with its 95% interval and p, and a margin: the smallest
difference that matters. That a system is better

- holds here if it is, with p below 0.05;
- does not hold here if the interval leaves no room for an advantage as large as the margin.

That it is not better, or not worse, holds if the interval ends before the margin, and does not if
the whole interval lies beyond it. Else it cannot be told, and the number of seeds, or of items, is
given with which a difference as large as the margin would be found with probability 0.8.

A claim holds if all of its tests do. To say so is no likelier by chance with more tests, so that p
is not corrected. One test that fails is enough against it: to fail, the interval of each of k tests
has to hold with a probability of 1 - 0.05 / k.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, NamedTuple

from scipy import stats

from evidence.claims import Against
from headwise.analysis.statistics.estimates import (
    SIGNIFICANT,
    Difference,
    Spread,
    detectable_difference,
    total,
)
from headwise.analysis.statistics.seeds_and_items import Resampled, spreads_of
from headwise.report.formatting import NONE

Kind = Literal["holds here", "does not hold here", "cannot be told", "not testable here", "not run"]
ENOUGH_SEEDS = 5  # with fewer a verdict is provisional
MORE_SEEDS = "it would take more than one seed"
_MOST_SEEDS = 1000  # what more seeds do not find, only other items can


class Oriented(NamedTuple):
    """A difference that is positive where the first system is better, with its interval."""

    value: float
    low: float
    high: float
    p: float
    # The ends of the interval that holds for all tests of the claim together.
    low_of_all: float
    high_of_all: float

    @classmethod
    def of(cls, found: Difference, higher_is_better: bool, tests: int = 1) -> "Oriented":
        """Returns a difference of two scores, with its sign turned if lower is better."""
        wider = 1.0
        if found.error and tests > 1:
            quantile = stats.t.ppf(1 - SIGNIFICANT / 2 / tests, found.freedom)
            wider = 2 * quantile * found.error / (found.high - found.low)
        sign = 1 if higher_is_better else -1
        low, value, high = sorted(sign * end for end in (found.low, found.value, found.high))
        return cls(
            *(value, low, high, found.p_value),
            low_of_all=value - wider * (value - low),
            high_of_all=value + wider * (high - value),
        )

    def over(self, unit: float) -> "Oriented":
        """Returns the difference in a unit."""
        ends = ("value", "low", "high", "low_of_all", "high_of_all")
        return self._replace(**{name: getattr(self, name) / unit for name in ends})


class Finding(NamedTuple):
    """The result of one of the tests of a claim: its verdict, with the figures behind it."""

    test: str
    kind: Kind
    figures: str = ""
    difference: str = ""
    margin: str = ""
    printed: str = ""  # the paper's own difference, and whether it is ruled out
    beside: str = ""  # the difference of the score beside that of the loss, or of the loss
    remark: str = ""
    p: float | None = None  # of a test of two systems
    standing: Oriented | None = None  # the difference in units of the margin
    miss: float | None = None  # grows with the distance from what is claimed


class Verdict(NamedTuple):
    """What is known of a claim at one scale."""

    kind: Kind
    because: str = ""  # why it is not testable here
    entry: Sequence[Finding] = ()  # of the conditions without which there is nothing to test
    findings: Sequence[Finding] = ()  # of the tests
    runs: int = 0  # those that collapsed included
    seeds: int = 0  # at the least, without those
    collapsed: int = 0  # runs that diverged included
    parameters: Sequence[int] = ()  # the smallest and the largest model
    minutes: float = 0.0
    machines: Sequence[str] = ()

    @property
    def all_findings(self) -> list[Finding]:
        """Those of the conditions, then those of the tests."""
        return [*self.entry, *self.findings]

    @property
    def is_provisional(self) -> bool:
        """Whether it rests on runs of few seeds."""
        judged = self.kind in ("holds here", "does not hold here", "cannot be told")
        return judged and 0 < self.seeds < ENOUGH_SEEDS

    @property
    def name(self) -> str:
        """What a table calls it, marked where it is provisional."""
        seeds = f"{self.seeds} seeds" + (" that did not collapse" if self.collapsed else "")
        return f"{self.kind} (provisional: {seeds})" if self.is_provisional else self.kind

    @property
    def key_figure(self) -> str:
        """The figures and the difference of the test that decided.

        >>> one = Finding("a better than b", "holds here", "2.0 against 1.0 BLEU")
        >>> other = Finding("a better than c", "does not hold here", difference="−1.0 [−1.5, −0.5]")
        >>> Verdict("holds here", findings=[one]).key_figure
        '2.0 against 1.0 BLEU'
        >>> Verdict("does not hold here", findings=[one, other]).key_figure
        'a better than c: −1.0 [−1.5, −0.5] (of 2 tests 1 does not hold here)'
        """
        found = [finding for finding in self.findings if finding.kind == self.kind]
        if not found or self.kind == "not run":
            return NONE
        said = "; ".join(part for part in (found[0].figures, found[0].difference) if part) or NONE
        if len(self.findings) == 1:
            return said
        verb: str = self.kind
        if len(found) > 1:
            verb = verb.replace("holds", "hold").replace("does", "do")
        return f"{found[0].test}: {said} (of {len(self.findings)} tests {len(found)} {verb})"


def judge(test: Against, found: Oriented) -> Kind:
    """Returns what a difference says of a test.

    >>> test = Against(of="a", holds="better", than="b", margin=1.0)
    >>> judge(test, Oriented(2.0, 1.5, 2.5, 0.001, 1.4, 2.6))
    'holds here'
    >>> judge(test, Oriented(0.2, -0.5, 0.9, 0.6, -0.5, 0.9))  # no room for as much as the margin
    'does not hold here'
    >>> judge(test, Oriented(0.5, -0.2, 1.2, 0.3, -0.2, 1.2))
    'cannot be told'
    """
    margin = test.margin
    if test.holds == "better":
        if found.p < SIGNIFICANT and found.value > 0:
            return "holds here"
        return "does not hold here" if found.high_of_all < margin else "cannot be told"
    holds, fails = found.high < margin, found.low_of_all >= margin
    if test.holds == "not worse":
        holds, fails = found.low > -margin, found.high_of_all <= -margin
    if holds:
        return "holds here"
    return "does not hold here" if fails else "cannot be told"


def judge_range(low: float, high: float, at_least: float | None, at_most: float | None) -> Kind:
    """Returns what an interval says of a number that is to lie between bounds.

    >>> judge_range(1.0, 1.1, None, 1.2), judge_range(1.1, 1.3, None, 1.2)
    ('holds here', 'cannot be told')
    """
    least = -math.inf if at_least is None else at_least
    most = math.inf if at_most is None else at_most
    if least <= low and high <= most:
        return "holds here"
    return "does not hold here" if high < least or low > most else "cannot be told"


def together(kinds: Sequence[Kind]) -> Kind:
    """Returns the verdict of a claim all of whose tests have to hold.

    >>> together(["holds here", "cannot be told"]), together(["not run", "does not hold here"])
    ('cannot be told', 'does not hold here')
    """
    order: tuple[Kind, ...] = ("does not hold here", "not run", "cannot be told")
    return next((kind for kind in order if kind in kinds), "holds here")


def what_it_takes(effect: float, systems: Sequence[Resampled]) -> str:
    """Says how many seeds, or else items, would find a true difference of a size.

    The variances are taken to be those that were seen. Of one system alone the difference is that
    to a number.

    >>> import numpy as np
    >>> what_it_takes(1.0, [Resampled(np.array([1.0, 3.0, 2.0, 4.0, 5.0]), None, 0)])
    'it would take 22 seeds'
    >>> what_it_takes(9.0, [Resampled(np.array([1.0, 3.0, 2.0, 4.0, 5.0]), None, 0)])
    '3 seeds find a true difference as large as the margin 4 times in 5'
    """
    parts = spreads_of(systems)
    if parts is None or min(each.seeds for each in systems) < 2:
        return MORE_SEEDS
    of_items = [] if any(each.resamples is None for each in systems) else parts[:1]
    of_seeds = parts[len(of_items) :]

    def detectable(seeds: int) -> float:
        expected = list(of_items)
        for spread, each in zip(of_seeds, systems, strict=True):
            doubt = spread.doubt * (each.seeds / seeds) ** 2 * (each.seeds - 1) / (seeds - 1)
            expected.append(Spread(spread.variance * each.seeds / seeds, doubt))
        spread = total(expected)
        return detectable_difference(spread) if spread.variance else 0.0

    if detectable(_MOST_SEEDS) <= effect:
        numbers = range(2, _MOST_SEEDS)
        found = bisect_left(numbers, True, key=lambda seeds: detectable(seeds) <= effect)
        if found + 2 <= min(each.seeds for each in systems):
            return f"{found + 2:,} seeds find a true difference as large as the margin 4 times in 5"
        return f"it would take {found + 2:,} seeds"
    alone = detectable_difference(of_items[0]) if of_items else 0.0
    if alone <= effect:
        return f"it would take more than {_MOST_SEEDS:,} seeds"
    times = math.ceil(10 * (alone / effect) ** 2) / 10
    return (
        f"more seeds alone are not enough; it would take at least {times:g} times as many test "
        f"items too"
    )
