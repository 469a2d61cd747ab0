"""What the runs that are kept say of a question: differences at each point, and their trend.

At each point a system has its difference from the baseline with a 95% interval, as in comparisons.
The trend is the difference at the last point minus that at the first. Runs at different points are
trained by themselves, so that the variances of all four means over seeds add up; the test items are
the same, and are resampled together. Where the baseline's runs are the same at both points, as with
a key of one system, the trend is the difference of that system's two means. p is corrected by
Holm's method over the systems of the question.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from headwise.analysis.statistics.estimates import Difference, corrected
from headwise.analysis.statistics.seeds_and_items import Resampled, change_of_difference, difference
from headwise.claims.catalogue.declared import Quantity, Subject
from headwise.claims.catalogue.experiments import Places
from headwise.claims.evidence.conditions import Conditions
from headwise.claims.evidence.kept_runs import is_stale, kept_runs, sound
from headwise.claims.evidence.quantities import Found, Kept, find_quantity
from headwise.claims.why.questions import Question, Value
from headwise.claims.why.trends import Trend, trend_kind
from headwise.report.formatting import NONE, signed

_Trained = tuple[str, Conditions]  # a system, and under what conditions


class AtPoint(NamedTuple):
    """A system at one value of the key.

    Attributes:
        found: the quantity of its seeds; None without runs.
        value: its mean minus that of the baseline; None if one of the two has no runs.
        difference: the same with its interval; None also if one of the two has a single run.
    """

    found: Found | None
    value: float | None
    difference: Difference | None

    def said(self, digits: int) -> str:
        """Returns the difference as text, with its interval if there is one."""
        if self.difference is not None:
            return interval(self.difference, digits)
        return NONE if self.value is None else signed(self.value, digits)


class Answer(NamedTuple):
    """What is known of a question.

    Attributes:
        question: the question.
        told: by system what is found at each point, of the quantity that the question is about.
        beside: the same of the loss, or of the score where `told` is of the loss; nothing is said
            of it.
        trends: by system, without the baseline.
        runs: how many runs it rests on.
        shared: how many of these are runs of the experiment.
        seeds: how many seeds each system has at each point, at the least.
        diverged: how many runs diverged, and count for nothing.
        minutes: how long the runs were trained, all together.
        stale: systems for which the code computes something else today.
    """

    question: Question
    told: Mapping[str, list[AtPoint]]
    beside: Mapping[str, list[AtPoint]]
    trends: Mapping[str, Trend]
    runs: int
    shared: int
    seeds: int
    diverged: int
    minutes: float
    stale: list[str]

    @property
    def is_known(self) -> bool:
        """Whether something is known of one of the systems at both ends."""
        return any(trend.kind != "not run" for trend in self.trends.values())

    def briefly(self) -> str:
        """Returns what the difference of each system does along the key, in a few words."""
        if not self.is_known:
            return "not run"
        return "; ".join(f"{system}: {trend}" for system, trend in self.trends.items())

    def lines(self) -> list[str]:
        """Returns the answer as text: what is varied, and a line for each system."""
        question = self.question
        values = ", ".join(str(value) for value in question.at)
        said = f"{question.over} at {values}; experiment {question.experiment}"
        if self.stale:
            said += f"; stale: {', '.join(self.stale)}"
        return [said, *(self._line(system) for system in self.trends)]

    def _line(self, system: str) -> str:
        points = self.told[system]
        found = next((point.found for point in points if point.found is not None), None)
        if found is None:
            return f"{system}: {self.trends[system]}"
        apart = ", ".join(
            f"{point.said(found.digits)} at {value}"
            for value, point in zip(self.question.at, points, strict=True)
        )
        baseline = self.question.systems[0]
        return f"{system}: {self.trends[system]}; {found.unit} − {baseline}'s {apart}"


def answer(question: Question, places: Places) -> Answer:
    """Returns what is known of a question; nothing is trained for it."""
    where = {
        (system, value): question.conditions(value, system, places)
        for system in question.systems
        for value in question.at
    }
    runs: dict[_Trained, list[Kept]] = {}
    stale: dict[str, None] = {}
    for system, conditions in dict.fromkeys((name, of) for (name, _), of in where.items()):
        recipe = conditions.recipe(system, question.dataset)
        here = Subject(system=system, dataset=question.dataset)
        found = runs[system, conditions] = kept_runs(conditions.own.evidence, here, recipe)
        if is_stale(found, recipe):
            stale[system] = None
    other = Quantity(kind="score" if question.quantity.kind == "loss" else "loss")
    told, beside = (
        _at_points(question, where, _quantities(question, quantity, runs))
        for quantity in (question.quantity, other)
    )
    baseline = question.systems[0]
    one_baseline = where[baseline, question.at[0]] == where[baseline, question.at[-1]]
    kept = [(conditions, each) for (_, conditions), of in runs.items() for each in of]
    return Answer(
        question=question,
        told=told,
        beside=beside,
        trends=_trends(question, told, one_baseline=one_baseline),
        runs=len(kept),
        shared=sum(not conditions.folder for conditions, _ in kept),
        seeds=min(len(sound(of)) for of in runs.values()),
        diverged=sum(len(of) - len(sound(of)) for of in runs.values()),
        minutes=sum(each.run.minutes for _, each in kept),
        stale=list(stale),
    )


def _quantities(
    question: Question, quantity: Quantity, runs: Mapping[_Trained, list[Kept]]
) -> dict[_Trained, Found | None]:
    return {
        (system, conditions): find_quantity(
            quantity,
            Subject(system=system),
            sound(of),
            conditions.recipe(system, question.dataset),
        )
        for (system, conditions), of in runs.items()
    }


def _at_points(
    question: Question,
    where: Mapping[tuple[str, Value], Conditions],
    quantities: Mapping[_Trained, Found | None],
) -> dict[str, list[AtPoint]]:
    found: dict[str, list[AtPoint]] = {system: [] for system in question.systems}
    baseline = question.systems[0]
    for (system, value), conditions in where.items():
        ours = quantities[system, conditions]
        theirs = quantities[baseline, where[baseline, value]]
        if ours is None or theirs is None or system == baseline:
            found[system].append(AtPoint(ours, None, None))
            continue
        apart = float(ours.values.scores.mean() - theirs.values.scores.mean())
        judged = difference(ours.values, theirs.values)
        if judged is not None and judged.source == "items":
            judged = None  # single runs say nothing of other seeds
        found[system].append(AtPoint(ours, apart, judged))
    return found


def _trends(
    question: Question, told: Mapping[str, list[AtPoint]], *, one_baseline: bool
) -> dict[str, Trend]:
    baseline, *others = question.systems
    changes = {
        system: _change(told[system], told[baseline], len(others), one_baseline=one_baseline)
        for system in others
    }
    return {
        system: _trend(question, told[system], told[baseline], change)
        for system, change in corrected(changes).items()
    }


def _at_ends(ours: list[AtPoint], theirs: list[AtPoint]) -> list[Resampled]:
    """Of the last and of the first point the system's values and the baseline's, if known."""
    ends = [points[n].found for n in (-1, 0) for points in (ours, theirs)]
    return [found.values for found in ends if found is not None]


def _change(
    ours: list[AtPoint], theirs: list[AtPoint], comparisons: int, *, one_baseline: bool
) -> Difference | None:
    """The difference at the last point minus that at the first; None of single runs."""
    values = _at_ends(ours, theirs)
    if len(values) < 4 or min(each.seeds for each in values) < 2:
        return None
    last, their_last, first, their_first = values
    if one_baseline:
        return difference(last, first, comparisons)
    return change_of_difference((last, their_last), (first, their_first), comparisons)


def _trend(
    question: Question,
    ours: list[AtPoint],
    theirs: list[AtPoint],
    change: Difference | None,
) -> Trend:
    values, found = _at_ends(ours, theirs), ours[-1].found
    if len(values) < 4 or found is None:
        return Trend("not run", question.margin)
    if min(each.seeds for each in values) < 2:
        return Trend("one seed", question.margin)
    first, last = ours[0].difference, ours[-1].difference
    if change is None or first is None or last is None:  # such as too few test items
        return Trend("cannot be told", question.margin)
    kind = trend_kind(first, last, change, question.margin)
    if kind not in ("grows", "shrinks", "changes its sign"):
        return Trend(kind, question.margin, change)
    gains = (change.value > 0) == found.higher_is_better
    towards: Literal["the system", "the baseline"] = "the system" if gains else "the baseline"
    return Trend(kind, question.margin, change, towards)


def interval(found: Difference, digits: int) -> str:
    """Returns a difference with its 95% interval as text."""
    value, low, high = (signed(x, digits) for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"
