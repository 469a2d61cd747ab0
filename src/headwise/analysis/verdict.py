"""Which system is best, whether that is more than chance, at what cost, and where others stand."""

import math
from collections.abc import Iterable
from statistics import fmean, median, stdev

from headwise.analysis.results import Centre, Comparison, PairedTest, RunResult, SystemSummary
from headwise.tasks.outcome import Score

SIGNIFICANT = 0.05
# Correlations are named after people.
_PEOPLE = ("Pearson", "Spearman", "Matthews")


def diverged(run: RunResult) -> bool:
    """Whether training left the run without a finite validation loss."""
    return not math.isfinite(run.validation_loss)


def sound_runs(system: SystemSummary) -> list[RunResult]:
    """The runs that means are taken over: all that did not diverge."""
    return [run for run in system.runs if not diverged(run)]


def first_score(comparison: Comparison) -> Score:
    """The score that systems are ranked by; its name, digits and direction hold for all runs."""
    return comparison.systems[0].runs[0].scores[0]


def middle(values: Iterable[float], centre: Centre) -> tuple[float, float]:
    """The mean or the median, and the standard deviation, of the finite ones; NaN where undefined.

    >>> middle([1.0, 2.0, 6.0], "median")[0], middle([1.0, 2.0, 6.0, math.nan], "mean")[0]
    (2.0, 3.0)
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return math.nan, math.nan
    deviation = stdev(finite) if len(finite) > 1 else math.nan
    return (median(finite) if centre == "median" else fmean(finite)), deviation


def standing(comparison: Comparison, system: SystemSummary) -> float:
    """The first score over the seeds that did not diverge; NaN if there is none."""
    return middle((run.scores[0].value for run in sound_runs(system)), comparison.centre)[0]


def valid_test(comparison: Comparison, system: SystemSummary) -> PairedTest | None:
    """The paired test, unless one of the two first seeds it compares has diverged."""
    baseline, test = find_baseline(comparison), system.paired_test
    if baseline is None or diverged(baseline.runs[0]) or diverged(system.runs[0]):
        return None
    if test is None or not math.isfinite(test.difference + test.p_value):
        return None
    return test


def find_baseline(comparison: Comparison) -> SystemSummary | None:
    """The system that others are compared with, if it is among them."""
    return next((s for s in comparison.systems if s.name == comparison.baseline), None)


def verdict(comparison: Comparison) -> str:
    """A sentence or two for the top of the report, computed from the numbers alone."""
    ranked = [s for s in comparison.systems if math.isfinite(standing(comparison, s))]
    if not ranked:
        return _nothing(comparison)
    baseline = find_baseline(comparison)
    # The baseline first, so that it wins a tie: what is no better is not worth a change.
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
    """The larger, the better, whatever the score's own direction."""
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
    """The least difference that is not 0 when it is printed."""
    return 0.5 * 10**-score.digits


def _others(comparison: Comparison, told: SystemSummary) -> str:
    """What the tests say of the systems that the first sentence does not tell of."""
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
    # The baseline is named once.
    parts = [f"{part} {'it' if number else 'the baseline'}" for number, part in enumerate(parts)]
    if parts and any(len(system.runs) > 1 for system in comparison.systems):
        parts[-1] += " (tests of the first seed)"
    if names := groups["lost"]:
        parts.append(f"{listed(names)} diverged")
    if not parts:
        return ""
    opening = "Of the others, " if sum(map(len, groups.values())) > 1 else ""
    return f" {opening}{'; '.join(parts)}."


def listed(names: list[str]) -> str:
    """As in a sentence.

    >>> listed(["mae"]), listed(["mae", "moa"]), listed(["mae", "moa", "tim"])
    ('mae', 'mae and moa', 'mae, moa and tim')
    >>> listed(["accuracy, matched", "accuracy, mismatched"])
    'accuracy, matched; accuracy, mismatched'
    """
    if any("," in name for name in names):
        return "; ".join(names)
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def _judge(comparison: Comparison, system: SystemSummary) -> str:
    """What the paired test says of a system's difference to the baseline."""
    test = valid_test(comparison, system)
    if test is None:
        return "a difference that no test has judged"
    sure = test.p_value < SIGNIFICANT
    if len(system.runs) == 1:
        quality = "a significant difference" if sure else "a difference that may be chance"
        return f"{quality} (paired bootstrap, {p_value(test.p_value)})"
    # The means are over all seeds, the test of the first alone: the two need not agree.
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
    """Both ends of the interval, or None where one is missing or not a number."""
    ends = score.interval
    return ends if ends is not None and all(map(math.isfinite, ends)) else None


def heading(name: str) -> str:
    """A name as a header says it, or the start of a sentence; abbreviations stay as they are.

    >>> heading("word perplexity"), heading("chrF"), heading("half_share")
    ('Word perplexity', 'chrF', 'Half share')
    """
    words = name.replace("_", " ")
    first = words.split(maxsplit=1)[0] if words.split() else ""
    return words[0].upper() + words[1:] if first.islower() else words


def in_words(name: str) -> str:
    """A score's name within a sentence.

    >>> in_words("Bits per dimension"), in_words("BLEU"), in_words("chrF"), in_words("Pearson")
    ('bits per dimension', 'BLEU', 'chrF', 'Pearson')
    """
    first = name.split(maxsplit=1)[0].rstrip(",") if name.split() else ""
    is_word = first[1:].islower() and first not in _PEOPLE
    return name[0].lower() + name[1:] if is_word else name


def signed(value: float, digits: int = 1) -> str:
    """With its sign, always, and a true minus.

    >>> signed(-0.25), signed(1.0), signed(-0.04), signed(0.004, digits=2)
    ('−0.2', '+1.0', '0.0', '0.00')
    """
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text if text.strip("+−0.") else text[1:]


def p_value(value: float) -> str:
    """As it is written in a text.

    >>> p_value(0.0123), p_value(0.0001)
    ('p = 0.012', 'p < 0.001')
    """
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def count(value: float) -> str:
    """A large number with three digits and a unit.

    >>> count(1_534_208), count(930), count(61_200_000_000), count(999_999)
    ('1.53M', '930', '61.2G', '1.00M')
    """
    for unit in ("", "k", "M", "G", "T"):
        text = f"{value:.3g}" if unit == "" else f"{value:#.3g}".rstrip(".")
        if float(text) < 1000:
            return text + unit
        value /= 1000
    return f"{value:.0f}P"
