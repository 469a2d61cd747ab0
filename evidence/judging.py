"""Tests what a claim says on its evidence, and returns the verdict."""

import re
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from evidence.claims import SCALES, Against, Claim, Quantity, Scale, Subject, Within
from evidence.experiments import Conditions, Places, tested_by
from evidence.quantities import Evidence, Found, within_runs
from evidence.results import Times, finite, sound
from evidence.verdicts import (
    MORE_SEEDS,
    Finding,
    Kind,
    Oriented,
    Verdict,
    judge,
    judge_range,
    together,
    what_it_takes,
)
from headwise.analysis.how_soon import curve, mean_curve
from headwise.analysis.papers import Paper, published_figures
from headwise.analysis.statistics.estimates import SIGNIFICANT, Difference
from headwise.analysis.statistics.seeds_and_items import Resampled, contrast, estimate
from headwise.report.formatting import p_value, signed


def verdict_on(claim: Claim, scale: Scale, places: Places) -> Verdict:
    """Returns what the evidence says of a claim at a scale; nothing is trained for it."""
    if claim.quantity is not None and claim.quantity.kind == "figures":
        findings = _on_figures(claim.quantity)
        return Verdict(together([f.kind for f in findings] or ["not run"]), findings=findings)
    evidence = evidence_of(claim, scale, places)
    if evidence is None:
        if claim.otherwise and scale == SCALES[0]:
            return Verdict("not testable here", because=claim.otherwise)
        return Verdict("not run")
    quantity, where = evidence.quantity, evidence.where
    if quantity.is_of_times:
        findings = [_on_times(test, evidence) for test in claim.tests]
    else:
        findings = _on_runs(claim.tests, evidence)
    entry = [_on_range(test, evidence) for test in claim.entry]
    runs = list(evidence.used.values())
    if any(len(finite(of)) > len(sound(of)) for of in runs):
        whole = Evidence(quantity, evidence.conditions, where, counted=finite)
        findings = list(map(_with_collapsed, findings, _on_runs(claim.tests, whole)))
    if any(len(finite(of)) < len(of) for of in runs):
        findings = [_with_diverged(finding) for finding in findings]
    kind = together([finding.kind for finding in findings])
    is_testable = not entry or kind == "not run" or any(of.kind == "holds here" for of in entry)
    sizes = [run.parameters for of in runs for run in of]
    return Verdict(
        kind=kind if is_testable else "not testable here",
        because="" if is_testable else claim.otherwise,
        entry=entry,
        findings=findings,
        runs=sum(len(of) for of in runs),
        seeds=min((len(sound(of)) for of in runs), default=0),
        collapsed=sum(len(of) - len(sound(of)) for of in runs),
        parameters=(min(sizes), max(sizes)) if sizes else (),
        minutes=sum(run.minutes for of in runs for run in of),
        machines=sorted({run.machine for of in runs for run in of}),
    )


def evidence_of(claim: Claim, scale: Scale, places: Places) -> Evidence | None:
    """Returns what a claim is tested by at a scale; None if no experiment tests it there."""
    quantity, where = claim.quantity, tested_by(claim, scale)
    if quantity is None or where is None:
        return None
    return Evidence(quantity, Conditions(scale, where.experiment, places), where)


def _with_collapsed(finding: Finding, whole: Finding) -> Finding:
    """What is told without collapsed runs counts only if these runs do not change it.

    That a system does not do what is claimed stays told if it is worse still with them.
    """
    if finding == whole:  # none of its runs collapsed
        return finding
    ours, theirs = finding.miss, whole.miss
    is_worse = ours is not None and theirs is not None and theirs >= ours
    figures = [whole.kind, whole.difference or whole.figures]
    remark = f"with the collapsed runs: {', '.join(filter(None, figures))}"
    if finding.kind == whole.kind or (finding.kind == "does not hold here" and is_worse):
        return finding._replace(remark="; ".join(filter(None, [finding.remark, remark])))
    return _open(finding, remark, f"without them: {finding.kind}")


def _with_diverged(finding: Finding) -> Finding:
    """Nothing holds of systems of which a run diverged."""
    if finding.kind != "holds here":
        return finding
    return _open(finding, "holds, but for the runs that diverged")


def _open(finding: Finding, *why: str) -> Finding:
    """The finding as one that cannot be told, with the reasons behind its remark."""
    remark = "; ".join(filter(None, [finding.remark, *why]))
    return finding._replace(kind="cannot be told", remark=remark)


def _on_runs(tests: Sequence[Against | Within], evidence: Evidence) -> list[Finding]:
    count = sum(isinstance(test, Against) for test in tests)
    return [
        _on_range(test, evidence)
        if isinstance(test, Within)
        else _on_difference(test, evidence, count)
        for test in tests
    ]


def _remarks(test: Against, found: Oriented, kind: Kind) -> list[str]:
    """What a reader should know beside the verdict of a test."""
    if test.holds == "better" and found.p < SIGNIFICANT and found.value < 0:
        return ["significantly worse"]
    if kind == "holds here" and test.holds == "better" and found.high < test.margin:
        return ["better by less than the margin"]
    if kind == "cannot be told" and test.holds != "better" and found.p < SIGNIFICANT:
        better = "better" if found.value > 0 else "worse"
        return [f"{better}, but whether by more than the margin is open"]
    return []


class Compared(NamedTuple):
    """The two figures of a test, and what its difference is computed from."""

    ours: Found
    theirs: Found
    systems: list[Resampled]  # the two systems, or one of differences within the same runs


def compared(
    test: Against, evidence: Evidence, quantity: Quantity | None = None
) -> Compared | None:
    """Returns what a test compares, by default of its own quantity; None if runs do not have it."""
    ours, theirs = (evidence.find(subject, quantity) for subject in (test.of, test.than))
    if ours is None or theirs is None:
        return None
    if evidence.runs(test.of) is evidence.runs(test.than):
        return Compared(ours, theirs, [within_runs(ours.values, theirs.values)])
    return Compared(ours, theirs, [ours.values, theirs.values])


def _on_difference(test: Against, evidence: Evidence, count: int) -> Finding:
    both = compared(test, evidence)
    if both is None:
        return _not_found(test, evidence, test.of, test.than)
    ours, theirs, systems = both
    difference = contrast(systems)
    needed = what_it_takes(test.margin, systems)
    finding = Finding(
        str(test),
        "cannot be told",
        figures=f"{_mean(ours)} against {_mean(theirs)} {ours.unit}",
        margin=f"{test.margin:g}",
    )
    if difference is None:
        return finding._replace(remark=needed)
    if not np.isfinite([*ours.values.scores, *theirs.values.scores]).all():
        return finding._replace(remark="not all figures are finite")
    found = Oriented.of(difference, ours.higher_is_better, count)
    kind = judge(test, found)
    remarks = [f"{min(ours.values.seeds, theirs.values.seeds)} seeds", *_remarks(test, found, kind)]
    remarks += [needed] * (kind == "cannot be told")
    printed = "" if test.printed is None else f"{test.printed:+g}".replace("-", "−")
    if test.printed is not None:
        ahead = test.printed if ours.higher_is_better else -test.printed
        printed += "; our interval excludes it" if ahead > found.high else ""
    return finding._replace(
        kind=kind,
        difference=told(difference, ours.digits),
        beside=_beside(test, evidence),
        remark="; ".join(remarks),
        printed=printed,
        p=found.p,
        standing=found.over(test.margin),
        miss=found.value if test.holds == "not better" else -found.value,
    )


def _not_found(test: Against | Within, evidence: Evidence, *subjects: Subject) -> Finding:
    """What is said of a test that has no figures: the runs are missing, or all have diverged."""
    for subject in subjects:
        if (runs := evidence.runs(subject)) and not finite(runs):
            return Finding(str(test), "cannot be told", remark=f"all runs of {subject} diverged")
    return Finding(str(test), "not run")


def _beside(test: Against, evidence: Evidence) -> str:
    """The difference of the score beside that of the loss, and the other way round."""
    kind = evidence.quantity.kind
    if kind not in ("score", "loss") or test.of.without or test.than.without:
        return ""
    both = compared(test, evidence, Quantity(kind="loss" if kind == "score" else "score"))
    found = contrast(both.systems) if both else None
    return f"{both.ours.unit} {told(found, both.ours.digits)}" if both and found else ""


def _on_range(test: Within, evidence: Evidence) -> Finding:
    found = evidence.find(test.of)
    mean = None if found is None else estimate(found.values)
    if found is None or mean is None:
        return _not_found(test, evidence, test.of)
    if mean.low is None or mean.high is None or found.values.seeds < 2:
        figures = f"{_mean(found)} {found.unit}"
        return Finding(str(test), "cannot be told", figures, remark=MORE_SEEDS)
    kind = judge_range(mean.low, mean.high, test.at_least, test.at_most)
    value, low, high, *each = (
        f"{x:.{found.digits}f}" for x in (mean.value, mean.low, mean.high, *found.values.scores)
    )
    remark = f"{found.values.seeds} seeds: {', '.join(each)}{_course(test, evidence, found.digits)}"
    bounds = [bound for bound in (test.at_least, test.at_most) if bound is not None]
    nearest = min(abs(mean.value - bound) for bound in bounds)
    if kind == "cannot be told" and nearest:
        remark += f"; {what_it_takes(nearest, [found.values])}"
    figures = f"{value} [{low}, {high}] {found.unit}"
    ends = (test.at_least, mean.value), (mean.value, test.at_most)
    miss = max(more - less for more, less in ends if more is not None and less is not None)
    return Finding(str(test), kind, figures, remark=remark, miss=miss)


def _course(test: Within, evidence: Evidence, digits: int) -> str:
    """Where the number stood early and half way: whether more steps would have changed it."""
    if evidence.quantity.kind != "recorded" or evidence.quantity.name is None:
        return ""
    runs = evidence.counted(evidence.runs(test.of))
    mean = mean_curve([curve(run.history, evidence.quantity.name) for run in runs])
    if len(mean) < 3:
        return ""
    steps = list(mean)
    shown = [steps[0], steps[len(steps) // 2], steps[-1]]
    said = ", ".join(f"{mean[step]:.{digits}f} at step {step:,}" for step in shown)
    return f"; their mean in training: {said}"


def _on_times(test: Against | Within, evidence: Evidence) -> Finding:
    of_steps = evidence.quantity.kind == "time of a step"
    name = evidence.where.named(test.of).system
    measured = [
        (times, of[name])
        for times in evidence.conditions.table.find(Times)
        if name in (of := times.step if of_steps else times.token)
    ]
    if not isinstance(test, Within) or not measured:
        return Finding(str(test), "not run")
    baseline = measured[0][0].baseline
    # Measurements differ by more than the rounds within one, so that theirs is the larger chance.
    found = [each for _, each in measured]
    low, high = min(each.low for each in found), max(each.high for each in found)
    middle = statistics.median(each.value for each in found)
    remark = f"{found[0].rounds} rounds on " + " and ".join(
        dict.fromkeys(times.machine for times, _ in measured)
    )
    if len(found) > 1:
        values = ", ".join(f"{each.value:.2f}" for each in found)
        remark = f"{len(found)} measurements of {remark}: {values}"
    return Finding(
        str(test),
        judge_range(low, high, test.at_least, test.at_most),
        figures=f"{middle:.2f}× [{low:.2f}, {high:.2f}] that of {baseline}",
        remark=remark,
    )


@cache
def _figures() -> list[Paper]:
    return published_figures()


def _on_figures(quantity: Quantity) -> list[Finding]:
    """Counted anew each time: it takes no training, and cannot be out of date."""
    return [
        Finding(
            f"{figure.model}, {figure.what}",
            "holds here" if figure.agrees else "does not hold here",
            f"{figure.printed} printed, {figure.shown} counted",
            remark=figure.remark,
        )
        for paper in _figures()
        if paper.title.startswith(quantity.name or "")
        for figure in paper.figures
        if figure.agrees is not None
        and quantity.what in (None, figure.what)
        and re.match(quantity.models, figure.model)
    ]


def _mean(found: Found) -> str:
    return f"{found.mean:.{found.digits}f}"


def told(found: Difference, digits: int) -> str:
    """Returns a difference with its 95% interval and p as text."""
    return f"{interval(found, digits)}, {p_value(found.p_value)}"


def interval(found: Difference, digits: int) -> str:
    """Returns a difference with its 95% interval as text."""
    value, low, high = (signed(x, digits) for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"
