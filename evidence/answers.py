"""What the runs that are kept say of a question: differences at each point, and their trend.

At each point a system has its difference from the baseline with a 95% interval, as in comparisons.
The trend is the difference at the last point minus that at the first. Runs at different points are
trained by themselves, so that the variances of all four means over seeds add up; the test items are
the same, and are resampled together. Where the baseline's runs are the same at both points, as with
a key of one system, the trend is the difference of that system's two means. p is corrected by
Holm's method over the systems of the question.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from evidence.claims import Quantity, Subject
from evidence.experiments import Conditions, Places
from evidence.judging import interval
from evidence.quantities import Found, find_quantity
from evidence.questions import Question
from evidence.results import Run, finite, sound
from headwise.analysis.statistics.estimates import SIGNIFICANT, Difference, corrected
from headwise.analysis.statistics.seeds_and_items import contrast
from headwise.report.formatting import NONE, signed

TrendKind = Literal[
    "grows",
    "shrinks",
    "changes its sign",
    "no change",
    "depends on collapsed runs",
    "cannot be told",
    "one seed",
    "not run",
]


class AtPoint(NamedTuple):
    """A system at one value of the key; what is not known is None."""

    found: Found | None
    value: float | None = None  # its mean minus that of the baseline
    difference: Difference | None = None  # the same with its interval, of several seeds

    def said(self, digits: int) -> str:
        """Returns the difference as text, with its interval if there is one."""
        if self.difference is not None:
            return interval(self.difference, digits)
        return NONE if self.value is None else signed(self.value, digits)


class Trend(NamedTuple):
    """The difference of a system from the baseline at the last point, against that at the first."""

    kind: TrendKind
    margin: float
    change: Difference | None = None  # with p corrected over the systems of the question
    towards: str = ""  # the system that gains

    def __str__(self) -> str:
        if self.kind == "no change":
            return f"no change larger than {self.margin:g} found"
        if self.kind == "one seed":
            return "one seed: no interval"
        if self.kind == "cannot be told" and self.change and self.change.detectable:
            return f"cannot be told (a change of {self.change.detectable:.2g} would be found)"
        return f"{self.kind}, in favour of {self.towards}" if self.towards else self.kind


class Answer(NamedTuple):
    """What is known of a question."""

    question: Question
    told: Mapping[str, list[AtPoint]]  # by system, at each point
    beside: Mapping[str, list[AtPoint]]  # the same of the loss, or of the score beside the loss
    trends: Mapping[str, Trend]  # without the baseline
    runs: int
    shared: int  # of these, with the experiment
    seeds: int  # at the least
    collapsed: int  # runs that count for nothing
    minutes: float

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
        system: [question.conditions(value, system, places) for value in question.at]
        for system in question.systems
    }
    runs: dict[tuple[str, Conditions], list[Run]] = {}
    for system, at_points in where.items():
        for conditions in dict.fromkeys(at_points):
            runs[system, conditions] = conditions.runs(system, question.dataset)

    def at_points_of(
        quantity: Quantity, kept: Callable[[Sequence[Run]], list[Run]] = sound
    ) -> dict[str, list[AtPoint]]:
        found = {
            (system, at): find_quantity(
                quantity, Subject(system=system), kept(of), at.recipe(system, question.dataset)
            )
            for (system, at), of in runs.items()
        }
        of_systems = {s: [found[s, each] for each in of] for s, of in where.items()}
        baseline = question.systems[0]
        return {
            system: [
                AtPoint(ours) if system == baseline else _apart(ours, theirs)
                for ours, theirs in zip(of, of_systems[baseline], strict=True)
            ]
            for system, of in of_systems.items()
        }

    told = at_points_of(question.quantity)
    other = Quantity(kind="score" if question.quantity.kind == "loss" else "loss")
    at_first, *_, at_last = where[question.systems[0]]
    trends = _trends(question, told, one_baseline=at_first == at_last)
    collapsed = sum(len(of) - len(sound(of)) for of in runs.values())
    if collapsed:  # as with claims, what is told counts only if these runs do not change it
        of_all = at_points_of(question.quantity, finite)
        whole = _trends(question, of_all, one_baseline=at_first == at_last)
        trends = {
            system: trend
            if (trend.kind, trend.towards) == (whole[system].kind, whole[system].towards)
            else Trend("depends on collapsed runs", question.margin, trend.change)
            for system, trend in trends.items()
        }
    kept = [(conditions, run) for (_, conditions), of in runs.items() for run in of]
    return Answer(
        question=question,
        told=told,
        beside=at_points_of(other),
        trends=trends,
        runs=len(kept),
        shared=sum(not conditions.at for conditions, _ in kept),
        seeds=min(len(sound(of)) for of in runs.values()),
        collapsed=collapsed,
        minutes=sum(run.minutes for _, run in kept),
    )


def _apart(ours: Found | None, theirs: Found | None) -> AtPoint:
    if ours is None or theirs is None:
        return AtPoint(ours)
    return AtPoint(ours, ours.mean - theirs.mean, contrast([ours.values, theirs.values]))


def _trends(
    question: Question, told: Mapping[str, list[AtPoint]], *, one_baseline: bool
) -> dict[str, Trend]:
    baseline, *others = question.systems
    trends: dict[str, Trend] = {}
    changes: dict[str, Difference | None] = {}
    for system in others:
        ends = [point.found for n in (-1, 0) for point in (told[system][n], told[baseline][n])]
        known = [found.values for found in ends if found is not None]
        if len(known) < 4:
            trends[system] = Trend("not run", question.margin)
        elif min(each.seeds for each in known) < 2:
            trends[system] = Trend("one seed", question.margin)
        else:
            ours = known[::2]
            changes[system] = contrast(ours if one_baseline else known, len(others))
    trends |= {
        system: _trend(question, system, told[system], change)
        for system, change in corrected(changes).items()
    }
    return {system: trends[system] for system in others}


def _trend(
    question: Question, system: str, points: list[AtPoint], change: Difference | None
) -> Trend:
    first, last, found = points[0].difference, points[-1].difference, points[-1].found
    if change is None or first is None or last is None or found is None:  # such as too few items
        return Trend("cannot be told", question.margin)
    kind = trend_kind(first, last, change, question.margin)
    if kind not in ("grows", "shrinks", "changes its sign"):
        return Trend(kind, question.margin, change)
    gains = (change.value > 0) == found.higher_is_better
    return Trend(kind, question.margin, change, system if gains else question.systems[0])


def trend_kind(first: Difference, last: Difference, change: Difference, margin: float) -> TrendKind:
    """Returns what is said of a change of a difference, whose size counts and not its sign."""
    if change.corrected_p_value < SIGNIFICANT:
        lower, upper = sorted((first, last), key=lambda each: each.value)
        if upper.low > 0 > lower.high:
            return "changes its sign"
        return "grows" if abs(last.value) > abs(first.value) else "shrinks"
    if -margin < change.low and change.high < margin:
        return "no change"
    return "cannot be told"
