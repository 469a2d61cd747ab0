"""States which system is best, whether its lead may be chance, what it costs, and how others do."""

import math
from collections.abc import Iterable
from statistics import fmean, median, stdev

from headwise.analysis.formatting import count, in_words, listed, p_value, signed
from headwise.analysis.results import Centre, Comparison, PairedTest, RunResult, SystemSummary
from headwise.tasks.outcome import Score

SIGNIFICANT = 0.05  # a smaller p-value marks a significant difference


def diverged(run: RunResult) -> bool:
    """Whether the validation loss of a run is not finite."""
    return not math.isfinite(run.validation_loss)


def sound_runs(system: SystemSummary) -> list[RunResult]:
    """Returns the runs that count in means: those that did not diverge."""
    return [run for run in system.runs if not diverged(run)]


def first_score(comparison: Comparison) -> Score:
    """Returns the score that ranks systems.

    Its name, digits and `higher_is_better` are those of all runs; its value is that of one run.
    """
    return comparison.systems[0].runs[0].scores[0]


def middle(values: Iterable[float], centre: Centre) -> tuple[float, float]:
    """Returns the mean or median of the finite values, and their standard deviation.

    Either is NaN if there are too few values to compute it.

    >>> middle([1.0, 2.0, 6.0], "median")[0], middle([1.0, 2.0, 6.0, math.nan], "mean")[0]
    (2.0, 3.0)
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return math.nan, math.nan
    deviation = stdev(finite) if len(finite) > 1 else math.nan
    return (median(finite) if centre == "median" else fmean(finite)), deviation


def standing(comparison: Comparison, system: SystemSummary) -> float:
    """Returns the mean or median of the first score over the runs that did not diverge.

    It is NaN if no run has a finite score.
    """
    return middle((run.scores[0].value for run in sound_runs(system)), comparison.centre)[0]


def valid_test(comparison: Comparison, system: SystemSummary) -> PairedTest | None:
    """Returns a system's paired test, or None if it has no finite result.

    The test compares the first seeds of system and baseline. It says nothing if one has diverged.
    """
    baseline, test = find_baseline(comparison), system.paired_test
    if baseline is None or diverged(baseline.runs[0]) or diverged(system.runs[0]):
        return None
    if test is None or not math.isfinite(test.difference + test.p_value):
        return None
    return test


def find_baseline(comparison: Comparison) -> SystemSummary | None:
    """Returns the system that others are compared with, or None if it is not in the comparison."""
    return next((s for s in comparison.systems if s.name == comparison.baseline), None)


def verdict(comparison: Comparison) -> str:
    """Returns a sentence or two for the top of the report, made from the numbers alone."""
    ranked = [s for s in comparison.systems if math.isfinite(standing(comparison, s))]
    if not ranked:
        return _nothing(comparison)
    baseline = find_baseline(comparison)
    # In a tie the baseline comes first: a system that is no better is not worth a change.
    ranked.sort(key=lambda s: (-_goodness(comparison, s), s is not baseline))
    best = ranked[0]
    reached = _reached(comparison, best)
    if len(comparison.systems) == 1:
        return f"{best.name} reaches {reached} with {count(best.runs[0].parameters)} parameters."
    if len(ranked) == 1:
        lost = not any(sound_runs(s) for s in comparison.systems if s is not best)
        others = "the other systems diverged" if lost else "the other systems gave none"
        return f"Only {best.name} gave a result, {reached}: {others}."
    if best is baseline:
        return _baseline_wins(comparison, best, ranked[1]) + _others(comparison, ranked[1])
    return _challenger_wins(comparison, best, baseline) + _others(comparison, best)


def _nothing(comparison: Comparison) -> str:
    alone = len(comparison.systems) == 1
    if any(map(sound_runs, comparison.systems)):
        who = comparison.systems[0].name if alone else "No system"
        return f"{who} has {'no' if alone else 'a'} {in_words(first_score(comparison).name)}."
    if alone:
        return f"{comparison.systems[0].name} diverged: there is no result."
    return "Every system diverged: there is nothing to compare."


def _goodness(comparison: Comparison, system: SystemSummary) -> float:
    """The first score, with its sign turned if lower is better."""
    value = standing(comparison, system)
    return value if first_score(comparison).higher_is_better else -value


def _baseline_wins(comparison: Comparison, best: SystemSummary, second: SystemSummary) -> str:
    score = first_score(comparison)
    gap = _goodness(comparison, best) - _goodness(comparison, second)
    side = "below" if score.higher_is_better else "above"
    distance = "level with it"
    if gap >= _visible(score):
        distance = f"{gap:.{score.digits}f} {side}, {_judge(comparison, second)}"
    return (
        f"No system beats the baseline {best.name}, {_reached(comparison, best)}: the closest, "
        f"{second.name}, is {distance}{_cost(second, best)}."
    )


def _challenger_wins(
    comparison: Comparison, best: SystemSummary, baseline: SystemSummary | None
) -> str:
    opening = f"{best.name} is best, {_reached(comparison, best)}"
    if baseline is None:
        return f"{opening}; there is no baseline to compare it with."
    if not sound_runs(baseline):
        return f"{opening}; the baseline {baseline.name} diverged."
    lead = _goodness(comparison, best) - _goodness(comparison, baseline)
    if math.isnan(lead):
        return f"{opening}; the baseline {baseline.name} gave no result."
    score = first_score(comparison)
    distance = f"{lead:.{score.digits}f}"
    if lead < _visible(score):
        distance = f"less than {10**-score.digits:.{score.digits}f}"
    return (
        f"{opening}: {distance} {'above' if score.higher_is_better else 'below'} the baseline "
        f"{baseline.name}, {_judge(comparison, best)}{_cost(best, baseline)}."
    )


def _visible(score: Score) -> float:
    """The smallest difference that is not printed as 0."""
    return 0.5 * 10**-score.digits


def _others(comparison: Comparison, told: SystemSummary) -> str:
    """Returns a sentence on the tests of the systems that the first sentence does not name."""
    sign = 1 if first_score(comparison).higher_is_better else -1
    groups: dict[str, list[str]] = {"better": [], "open": [], "worse": [], "lost": []}
    for system in comparison.systems:
        if system is told or system.name == comparison.baseline:
            continue
        test = valid_test(comparison, system)
        if not sound_runs(system):
            groups["lost"].append(system.name)
        elif test is not None and test.p_value >= SIGNIFICANT:
            groups["open"].append(system.name)
        elif test is not None:
            groups["better" if sign * test.difference > 0 else "worse"].append(system.name)
    parts = [
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} significantly {group} than"
        for group in ("better", "worse")
        if (names := groups[group])
    ]
    if names := groups["open"]:
        shows = "shows" if len(names) == 1 else "show"
        parts.append(f"{listed(names)} {shows} no significant difference from")
    # The first part names the baseline; the others say "it".
    parts = [f"{part} {'it' if number else 'the baseline'}" for number, part in enumerate(parts)]
    if parts and any(len(system.runs) > 1 for system in comparison.systems):
        parts[-1] += " (tests of the first seed)"
    if names := groups["lost"]:
        parts.append(f"{listed(names)} diverged")
    if not parts:
        return ""
    opening = "Of the others, " if sum(map(len, groups.values())) > 1 else ""
    return f" {opening}{'; '.join(parts)}."


def _judge(comparison: Comparison, system: SystemSummary) -> str:
    """What the paired test says about a system's difference to the baseline."""
    test = valid_test(comparison, system)
    if test is None:
        return "a difference that no test has judged"
    sure = test.p_value < SIGNIFICANT
    if len(system.runs) == 1:
        quality = "a significant difference" if sure else "a difference that may be chance"
        return f"{quality} (paired bootstrap, {p_value(test.p_value)})"
    # The means are over all seeds, but the test uses the first alone. The two may disagree.
    change = signed(test.difference, first_score(comparison).digits)
    figures = f"{change} in the first seed, {p_value(test.p_value)}"
    baseline = find_baseline(comparison)
    assert baseline is not None
    lead = standing(comparison, system) - standing(comparison, baseline)
    if sure and lead * test.difference < 0:
        return f"though the first seed alone says significantly the opposite ({figures})"
    quality = "a significant difference" if sure else "a difference that may be chance"
    return f"{quality} by the paired bootstrap ({figures})"


def _cost(system: SystemSummary, baseline: SystemSummary) -> str:
    parameters = system.runs[0].parameters / baseline.runs[0].parameters
    size = f"{parameters:.2f}× the parameters"
    ratio = system.relative_step_time
    if ratio is None or not math.isfinite(ratio):
        return f", at {size}"
    return f", at {ratio:.2f}× the time per step and {size}"


def _reached(comparison: Comparison, system: SystemSummary) -> str:
    sound = sound_runs(system)
    score = first_score(comparison)
    said = f"{standing(comparison, system):.{score.digits}f} {in_words(score.name)}"
    if len(system.runs) == 1:
        ends = finite_interval(sound[0].scores[0])
        if ends is None:
            return said
        low, high = (f"{end:.{score.digits}f}" for end in ends)
        return f"{said} (95% interval {low} to {high})"
    lost = len(system.runs) - len(sound)
    seeds = f"{comparison.centre} of {len(sound)} seed{'s' if len(sound) > 1 else ''}"
    return f"{said} ({seeds}{f'; {lost} diverged' if lost else ''})"


def finite_interval(score: Score) -> tuple[float, float] | None:
    """Returns both ends of a score's interval, or None if one is missing or not finite."""
    ends = score.interval
    return ends if ends is not None and all(map(math.isfinite, ends)) else None
