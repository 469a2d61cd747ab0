"""States which system is best, whether its lead may be chance, what it costs, and how others do."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from headwise.analysis.results import (
    Comparison,
    SystemSummary,
    find_baseline,
    first_score,
    sound_runs,
)
from headwise.analysis.statistics.estimates import POWER, Difference, Estimate
from headwise.report.formatting import count, in_words, listed, p_value, signed
from headwise.tasks.outcome import Score


def mean_and_deviation(values: Iterable[float]) -> tuple[float, float]:
    """Returns the mean of the finite values, and their standard deviation.

    Either is NaN if there are too few values to compute it.

    >>> mean_and_deviation([1.0, 2.0, 3.0, math.nan])
    (2.0, 1.0)
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return math.nan, math.nan
    return fmean(finite), stdev(finite) if len(finite) > 1 else math.nan


def standing(comparison: Comparison, system: SystemSummary) -> float:
    """Returns the mean of the first score over the seeds that did not diverge, or NaN."""
    estimate = system.estimates.get(first_score(comparison).name)
    return math.nan if estimate is None else estimate.value


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
        f"No system is ahead of the baseline {best.name}, {_reached(comparison, best)}: the "
        f"closest, {second.name}, is {distance}{_cost(second, best)}."
    )


def _challenger_wins(
    comparison: Comparison, best: SystemSummary, baseline: SystemSummary | None
) -> str:
    opening = f"{best.name} is ahead, {_reached(comparison, best)}"
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
    groups: dict[str, list[SystemSummary]] = {"better": [], "worse": [], "open": [], "lost": []}
    for system in comparison.systems:
        if system is told or system.name == comparison.baseline:
            continue
        found = system.difference
        if not sound_runs(system):
            groups["lost"].append(system)
        elif found is not None and found.significant:
            groups["better" if sign * found.value > 0 else "worse"].append(system)
        elif found is not None and found.detectable is not None:
            groups["open"].append(system)
    named = {group: listed([s.name for s in of]) for group, of in groups.items() if of}
    parts = [
        f"{named[group]} {_verb(groups[group], 'is', 'are')} significantly {group} than"
        for group in ("better", "worse")
        if group in named
    ]
    if "open" in named:
        shows = _verb(groups["open"], "shows", "show")
        parts.append(f"{named['open']} {shows} no significant difference from")
    # The first part names the baseline; the others say "it".
    parts = [f"{part} {'it' if number else 'the baseline'}" for number, part in enumerate(parts)]
    if "open" in named:
        parts[-1] += f" ({_detectable(comparison, groups['open'])})"
    if "lost" in named:
        parts.append(f"{named['lost']} diverged")
    if not parts:
        return ""
    opening = "Of the others, " if sum(map(len, groups.values())) > 1 else ""
    return f" {opening}{'; '.join(parts)}."


def _verb(systems: list[SystemSummary], one: str, several: str) -> str:
    return one if len(systems) == 1 else several


def _judge(comparison: Comparison, system: SystemSummary) -> str:
    """What the test says about a system's difference to the baseline."""
    if system.difference is None:
        return "a difference that no test has judged"
    over = f" over test {comparison.item_name} alone"
    return judged(system.difference, first_score(comparison).digits, over=over)


def judged(found: Difference, digits: int, of: str = "", over: str = "") -> str:
    """Says whether a difference may be chance."""
    interval = f"95% interval {of}{signed(found.low, digits)} to {signed(found.high, digits)}"
    if found.source == "items":
        told = "a difference that single runs cannot tell from the chance of training"
        return f"{told} ({interval}{over})"
    figures = f"{interval}, {p_value(found.corrected_p_value)}"
    if found.significant:
        return f"a significant difference ({figures})"
    if found.detectable is not None:
        figures += f"; {would_be_found([found.detectable], digits)}"
    return f"a difference that may be chance ({figures})"


def _detectable(comparison: Comparison, systems: list[SystemSummary]) -> str:
    """Says how large a difference is mostly found."""
    found = [s.difference.detectable for s in systems if s.difference is not None]
    sizes = [size for size in found if size is not None]
    return would_be_found(sizes, first_score(comparison).digits)


def would_be_found(sizes: Sequence[float], digits: int) -> str:
    """Says how large a difference is mostly found.

    >>> would_be_found([0.52, 1.38], 1)
    'true differences of 0.5 to 1.4, by system, would be found in 80% of such comparisons'
    """
    texts = list(dict.fromkeys(f"{size:.{digits}f}" for size in (min(sizes), max(sizes))))
    said = f"a true difference of {texts[0]}"
    if len(texts) > 1:
        said = f"true differences of {texts[0]} to {texts[1]}, by system,"
    return f"{said} would be found in {POWER:.0%} of such comparisons"


def _cost(system: SystemSummary, baseline: SystemSummary) -> str:
    parameters = system.runs[0].parameters / baseline.runs[0].parameters
    size = f"{parameters:.2f}× the parameters"
    ratio = system.relative_step_time
    if ratio is None:
        return f", at {size}"
    return f", at {ratio.value:.2f}× the time per step and {size}"


def _reached(comparison: Comparison, system: SystemSummary) -> str:
    score = first_score(comparison)
    estimate = system.estimates[score.name]
    said = f"{estimate.value:.{score.digits}f} {in_words(score.name)}"
    lost = len(system.runs) - len(sound_runs(system))
    seeds = f"mean of {estimate.seeds} seed{'s' if estimate.seeds > 1 else ''}"
    remarks = [seeds] * (len(system.runs) > 1) + [f"{lost} diverged"] * bool(lost)
    if ends := interval_of(estimate):
        low, high = (f"{end:.{score.digits}f}" for end in ends)
        alone = f" over test {comparison.item_name} alone" * (estimate.source == "items")
        remarks.append(f"95% interval {low} to {high}{alone}")
    return f"{said} ({', '.join(remarks)})" if remarks else said


def interval_of(estimate: Estimate | None) -> tuple[float, float] | None:
    """Returns both ends of the interval of a mean, or None if one is missing or not finite."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    ends = (estimate.low, estimate.high)
    return ends if all(map(math.isfinite, ends)) else None
