"""Tests what a claim says on its evidence, and returns the verdict."""

import re
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from evidence.claims import SCALES, Against, Claim, Quantity, Scale, Within
from evidence.experiments import Conditions, Places, experiments
from evidence.fingerprint import computes_alike, fingerprint
from evidence.quantities import Evidence, Found, within_runs
from evidence.results import Times, finite, sound
from evidence.verdicts import (
    MORE_SEEDS,
    Finding,
    Oriented,
    Verdict,
    judge,
    judge_range,
    together,
    what_it_takes,
)
from headwise.analysis.how_soon import curve, mean_curve
from headwise.analysis.papers import Paper, published_figures
from headwise.analysis.statistics.estimates import SIGNIFICANT, Difference, corrected
from headwise.analysis.statistics.seeds_and_items import contrast, difference, estimate
from headwise.report.formatting import p_value, signed


def verdict_on(claim: Claim, scale: Scale, places: Places) -> Verdict:
    """Returns what the evidence says of a claim at a scale; nothing is trained for it."""
    quantity, where = claim.quantity, claim.experiment_at(scale)
    if quantity is not None and quantity.kind == "figures":
        findings = _on_figures(quantity)
        return Verdict(together([f.kind for f in findings] or ["not run"]), findings=findings)
    if quantity is None or where is None or where.experiment not in experiments(scale):
        if claim.otherwise and scale == SCALES[0]:
            return Verdict("not testable here", because=claim.otherwise)
        return Verdict("not run")
    evidence = Evidence(quantity, Conditions(scale, where.experiment, places), where)
    if quantity.is_of_times:
        findings = [_on_times(test, evidence) for test in claim.tests]
    else:
        findings = _on_runs(claim.tests, evidence)
    runs = list(evidence.used.values())
    collapsed = sum(len(of) - len(sound(of)) for of in runs)
    if collapsed:
        whole = Evidence(quantity, evidence.conditions, where, counted=finite)
        findings = list(map(_with_collapsed, findings, _on_runs(claim.tests, whole)))
    sizes = [run.parameters for of in runs for run in of]
    return Verdict(
        kind=together([finding.kind for finding in findings]),
        findings=findings,
        runs=sum(len(of) for of in runs),
        seeds=min((len(sound(of)) for of in runs), default=0),
        collapsed=collapsed,
        parameters=(min(sizes), max(sizes)) if sizes else (),
        minutes=sum(run.minutes for of in runs for run in of),
        machines=sorted({run.machine for of in runs for run in of}),
        stale=list(evidence.stale),
    )


def _with_collapsed(finding: Finding, whole: Finding) -> Finding:
    """What is told without collapsed runs counts only if these runs do not change it."""
    if finding.kind == whole.kind:
        return finding
    remark = f"with the collapsed runs: {whole.kind}, {whole.difference or whole.figures}"
    remarks = [finding.remark, f"without them: {finding.kind}", remark]
    return finding._replace(kind="cannot be told", remark="; ".join(filter(None, remarks)))


class _Tested(NamedTuple):
    """A test with its difference, before p is corrected over the tests of a claim."""

    test: Against
    found: Difference
    higher_is_better: bool
    needed: str  # what it would take to tell
    finding: Finding  # without its verdict


def _on_runs(tests: Sequence[Against | Within], evidence: Evidence) -> list[Finding]:
    count = sum(isinstance(test, Against) for test in tests)
    tested: dict[int, _Tested | Finding] = {}
    for number, test in enumerate(tests):
        if isinstance(test, Within):
            tested[number] = _on_range(test, evidence)
        else:
            tested[number] = _on_difference(test, evidence, count)
    found = corrected({n: t.found for n, t in tested.items() if isinstance(t, _Tested)}, count)
    return [
        each if isinstance(each, Finding) else _judged(each, found[number])
        for number, each in tested.items()
    ]


def _judged(tested: _Tested, found: Difference | None) -> Finding:
    assert found is not None
    test, finding = tested.test, tested.finding
    oriented = Oriented.of(found, tested.higher_is_better)
    kind = judge(test, oriented, test.margin)
    remarks = [finding.remark] if finding.remark else []
    if test.holds == "better" and found.significant:
        if oriented.value < 0:
            remarks.append("significantly worse")
        elif oriented.high < test.margin:
            remarks.append("better by less than the margin")
    if kind == "cannot be told":
        if test.holds != "better" and oriented.p < SIGNIFICANT:
            better = "better" if oriented.value > 0 else "worse"
            remarks.append(f"{better}, but whether by more than the margin is open")
        remarks.append(tested.needed)
    printed = "" if test.printed is None else f"{test.printed:+g}".replace("-", "−")
    if test.printed is not None and not found.low <= test.printed <= found.high:
        printed += ", outside the interval"
    return finding._replace(
        kind=kind,
        difference=f"{finding.difference}, {p_value(found.corrected_p_value)}",
        printed=printed,
        remark="; ".join(remarks),
        p=oriented.p,
        standing=Oriented.of(found, tested.higher_is_better, test.margin),
    )


def _on_difference(test: Against, evidence: Evidence, count: int) -> _Tested | Finding:
    ours, theirs = evidence.find(test.of), evidence.find(test.than)
    if ours is None or theirs is None:
        return Finding(str(test), "not run")
    if evidence.runs(test.of) is evidence.runs(test.than):
        systems = [within_runs(ours.values, theirs.values)]
    else:
        systems = [ours.values, theirs.values]
    found = contrast(systems, count)
    wanted = what_it_takes(test.margin, systems, count)
    finding = Finding(
        str(test),
        "cannot be told",
        figures=f"{_mean(ours)} against {_mean(theirs)} {ours.unit}",
        margin=f"{test.margin:g}",
    )
    if found is None:
        return finding._replace(remark=wanted)
    seeds = min(ours.values.seeds, theirs.values.seeds)
    finding = finding._replace(
        difference=interval(found, ours.digits),
        beside=_beside(test, evidence),
        remark=f"{seeds} seeds",
    )
    return _Tested(test, found, ours.higher_is_better, wanted, finding)


def _beside(test: Against, evidence: Evidence) -> str:
    """The difference of the score beside that of the loss, and the other way round."""
    kind = evidence.quantity.kind
    if kind not in ("score", "loss") or evidence.runs(test.of) is evidence.runs(test.than):
        return ""
    other = Quantity(kind="loss" if kind == "score" else "score")
    ours, theirs = (
        None if subject.without else evidence.find(subject, other)
        for subject in (test.of, test.than)
    )
    found = difference(ours.values, theirs.values) if ours and theirs else None
    if ours is None or found is None:
        return ""
    return f"{ours.unit} {interval(found, ours.digits)}, {p_value(found.p_value)}"


def _on_range(test: Within, evidence: Evidence) -> Finding:
    found = evidence.find(test.of)
    mean = None if found is None else estimate(found.values)
    if found is None or mean is None:
        return Finding(str(test), "not run")
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
    return Finding(str(test), kind, f"{value} [{low}, {high}] {found.unit}", remark=remark)


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
    for system in dict.fromkeys([name, baseline]):
        today = fingerprint(evidence.conditions.recipe(system, None))
        if not all(computes_alike(times.fingerprints[system], today) for times, _ in measured):
            evidence.stale[system] = None
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


def interval(found: Difference, digits: int) -> str:
    """Returns a difference with its 95% interval as text."""
    value, low, high = (signed(x, digits) for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"
