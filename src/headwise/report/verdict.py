"""States which system is best, whether its lead may be chance, what it costs, and how others do."""

import math
from typing import Any

from headwise.analysis.results import (
    Comparison,
    SystemSummary,
    find_baseline,
    first_score,
    sound_runs,
)
from headwise.report.rendering import said


def verdict(comparison: Comparison) -> str:
    """Returns a sentence or two for the top of the report, made from the numbers alone."""
    score = first_score(comparison)
    sign = 1 if score.higher_is_better else -1
    baseline = find_baseline(comparison)
    goodness = {
        system.name: sign * system.estimates[score.name].value
        for system in comparison.systems
        if score.name in system.estimates
    }
    ranked = [s for s in comparison.systems if math.isfinite(goodness.get(s.name, math.nan))]
    # In a tie the baseline comes first: a system that is no better is not worth a change.
    ranked.sort(key=lambda s: (-goodness[s.name], s is not baseline))
    given: dict[str, Any] = {"comparison": comparison, "score": score}
    if not ranked:
        return said("of_none", **given, any_sound=any(map(sound_runs, comparison.systems)))
    best, *others = ranked
    given |= {"best": best, "sound": len(sound_runs(best))}
    if not others:
        sound = any(sound_runs(s) for s in comparison.systems if s is not best)
        return said("of_one", **given, others_sound=sound)
    if best is baseline:
        gap = goodness[best.name] - goodness[others[0].name]
        groups = _others(comparison, others[0])
        return said("of_baseline", **given, second=others[0], gap=gap, groups=groups)
    lost, lead = "", math.nan
    if baseline is not None and baseline in others:
        lead = goodness[best.name] - goodness[baseline.name]
    elif baseline is not None:
        lost = "gave no result" if sound_runs(baseline) else "diverged"
    groups = _others(comparison, best)
    return said("of_challenger", **given, baseline=baseline, lead=lead, lost=lost, groups=groups)


def _others(comparison: Comparison, told: SystemSummary) -> dict[str, list[SystemSummary]]:
    """What the tests say of the systems that the first sentence does not name."""
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
    return groups
