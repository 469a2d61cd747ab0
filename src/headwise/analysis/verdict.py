"""Which system is best, whether that is more than chance, at what cost, and where others stand."""

import math
from statistics import fmean

from headwise.analysis.results import Comparison, PairedTest, RunResult, SystemSummary

SIGNIFICANT = 0.05


def diverged(run: RunResult) -> bool:
    """Whether training left the run without a finite validation loss."""
    return not math.isfinite(run.validation_loss)


def sound_runs(system: SystemSummary) -> list[RunResult]:
    """The runs that means are taken over: all that did not diverge."""
    return [run for run in system.runs if not diverged(run)]


def mean_bleu(system: SystemSummary) -> float:
    """Mean over the runs that did not diverge; NaN if none did."""
    values = [run.score.bleu for run in sound_runs(system) if math.isfinite(run.score.bleu)]
    return fmean(values) if values else math.nan


def valid_test(comparison: Comparison, system: SystemSummary) -> PairedTest | None:
    """The paired test, unless one of the two first seeds it compares has diverged."""
    baseline = find_baseline(comparison)
    if baseline is None or diverged(baseline.runs[0]) or diverged(system.runs[0]):
        return None
    return system.paired_test


def find_baseline(comparison: Comparison) -> SystemSummary | None:
    """The system that others are compared with, if it is among them."""
    return next((s for s in comparison.systems if s.name == comparison.baseline), None)


def verdict(comparison: Comparison) -> str:
    """A sentence or two for the top of the report, computed from the numbers alone."""
    ranked = [s for s in comparison.systems if math.isfinite(mean_bleu(s))]
    if not ranked:
        if len(comparison.systems) == 1:
            return f"{comparison.systems[0].name} diverged: there is no result."
        return "Every system diverged: there is nothing to compare."
    baseline = find_baseline(comparison)
    # The baseline first, so that it wins a tie: what is no better is not worth a change.
    ranked.sort(key=lambda s: (-mean_bleu(s), s is not baseline))
    best = ranked[0]
    if len(comparison.systems) == 1:
        return (
            f"{best.name} reaches {_bleu(best)} with {count(best.runs[0].parameters)} parameters."
        )
    if len(ranked) == 1:
        return f"Only {best.name} gave a result, {_bleu(best)}: the other systems diverged."
    if best is baseline:
        return _baseline_wins(comparison, best, ranked[1]) + _others(comparison, ranked[1])
    return _challenger_wins(comparison, best, baseline) + _others(comparison, best)


def _baseline_wins(comparison: Comparison, best: SystemSummary, second: SystemSummary) -> str:
    gap = mean_bleu(best) - mean_bleu(second)
    distance = f"{gap:.1f} below, {_judge(comparison, second)}" if gap >= 0.05 else "level with it"
    return (
        f"No system beats the baseline {best.name}, {_bleu(best)}: the closest, {second.name}, "
        f"is {distance}{_cost(comparison, second, best)}."
    )


def _challenger_wins(
    comparison: Comparison, best: SystemSummary, baseline: SystemSummary | None
) -> str:
    opening = f"{best.name} is best, {_bleu(best)}"
    if baseline is None:
        return f"{opening}; there is no baseline to compare it with."
    if not math.isfinite(mean_bleu(baseline)):
        return f"{opening}; the baseline {baseline.name} diverged."
    lead = mean_bleu(best) - mean_bleu(baseline)
    distance = f"{lead:.1f}" if lead >= 0.05 else "less than 0.1"
    return (
        f"{opening}: {distance} above the baseline {baseline.name}, "
        f"{_judge(comparison, best)}{_cost(comparison, best, baseline)}."
    )


def _others(comparison: Comparison, told: SystemSummary) -> str:
    """What the tests say of the systems that the first sentence does not tell of."""
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
            groups["better" if test.bleu_difference > 0 else "worse"].append(system.name)
    parts = [
        f"{_listed(names)} {'is' if len(names) == 1 else 'are'} significantly {group} than"
        for group in ("better", "worse")
        if (names := groups[group])
    ]
    if names := groups["open"]:
        shows = "shows" if len(names) == 1 else "show"
        parts.append(f"{_listed(names)} {shows} no significant difference from")
    # The baseline is named once.
    parts = [f"{part} {'it' if number else 'the baseline'}" for number, part in enumerate(parts)]
    if parts and any(len(system.runs) > 1 for system in comparison.systems):
        parts[-1] += " (tests of the first seed)"
    if names := groups["lost"]:
        parts.append(f"{_listed(names)} diverged")
    if not parts:
        return ""
    opening = "Of the others, " if sum(map(len, groups.values())) > 1 else ""
    return f" {opening}{'; '.join(parts)}."


def _listed(names: list[str]) -> str:
    """As in a sentence.

    >>> _listed(["mae"]), _listed(["mae", "moa"]), _listed(["mae", "moa", "tim"])
    ('mae', 'mae and moa', 'mae, moa and tim')
    """
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
    figures = f"{signed(test.bleu_difference)} in the first seed, {p_value(test.p_value)}"
    baseline = find_baseline(comparison)
    assert baseline is not None
    lead = mean_bleu(system) - mean_bleu(baseline)
    if sure and lead * test.bleu_difference < 0:
        return f"though the first seed alone says significantly the opposite ({figures})"
    quality = "a significant difference" if sure else "a difference that may be chance"
    return f"{quality} by the paired bootstrap ({figures})"


def _cost(comparison: Comparison, system: SystemSummary, baseline: SystemSummary) -> str:
    parameters = system.runs[0].parameters / baseline.runs[0].parameters
    size = f"{parameters:.2f}× the parameters"
    if system.relative_step_time is None:
        return f", at {size}"
    return f", at {system.relative_step_time:.2f}× the time per step and {size}"


def _bleu(system: SystemSummary) -> str:
    sound = sound_runs(system)
    if len(system.runs) == 1:
        low, high = sound[0].score.bleu_low, sound[0].score.bleu_high
        return f"{mean_bleu(system):.1f} BLEU (95% interval {low:.1f} to {high:.1f})"
    lost = len(system.runs) - len(sound)
    seeds = f"mean of {len(sound)} seed{'s' if len(sound) > 1 else ''}"
    return f"{mean_bleu(system):.1f} BLEU ({seeds}{f'; {lost} diverged' if lost else ''})"


def signed(value: float) -> str:
    """With its sign, always, and a true minus.

    >>> signed(-0.25), signed(1.0), signed(-0.04)
    ('−0.2', '+1.0', '0.0')
    """
    text = f"{value:+.1f}".replace("-", "−")
    return text[1:] if text[1:] == "0.0" else text


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
