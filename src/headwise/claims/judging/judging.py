"""Tests what a claim says on its evidence, and returns the verdict."""

import math
import re
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from headwise.analysis.how_soon import (
    History,
    curve,
    difference_over_pairs,
    log_shares,
    losses_at_equal_training_loss,
    mean_curve,
    target,
)
from headwise.analysis.papers.figures import Paper
from headwise.analysis.papers.published import published_figures
from headwise.analysis.statistics.estimates import SIGNIFICANT, Difference, corrected
from headwise.analysis.statistics.seeds_and_items import (
    Resampled,
    difference,
    difference_to,
    estimate,
    samples_needed,
    within_runs,
)
from headwise.claims.catalogue.declared import Against, Claim, Quantity, Scale, Subject, Within
from headwise.claims.catalogue.experiments import Places, experiments
from headwise.claims.evidence.fingerprint import computes_alike
from headwise.claims.evidence.kept_runs import sound
from headwise.claims.evidence.of_claim import ClaimEvidence
from headwise.claims.evidence.quantities import Found, find_quantity
from headwise.claims.judging.verdicts import (
    Finding,
    Kind,
    Oriented,
    Standing,
    Verdict,
    comparable,
    judge,
    judge_range,
    together,
    what_it_takes,
)
from headwise.report.formatting import p_value, signed


def verdict_on(claim: Claim, scale: Scale, places: Places) -> Verdict:
    """Returns what the evidence says of a claim at a scale; nothing is trained for it."""
    return comparable(_verdict(claim, scale, places), claim.otherwise)


def _verdict(claim: Claim, scale: Scale, places: Places) -> Verdict:
    if claim.quantity.kind == "figures":
        return _on_figures(claim)
    where = claim.experiment_at(scale)
    if where is None or where.experiment not in experiments(scale):
        return Verdict(kind="not run")
    evidence = ClaimEvidence(claim, scale, where, places)
    if claim.quantity.is_of_times:
        findings = [_on_times(claim, test, evidence) for test in claim.tests]
    else:
        findings = _on_runs(claim, evidence)
    kinds: list[Kind] = [finding.kind for finding in findings]
    runs = list(evidence.used.values())
    return Verdict(
        kind=together(kinds),
        findings=findings,
        runs=sum(len(of) for of in runs),
        seeds=min((len(sound(of)) for of in runs), default=0),
        diverged=sum(len(of) - len(sound(of)) for of in runs),
        minutes=sum(each.run.minutes for of in runs for each in of),
        machines=sorted({each.run.machine for of in runs for each in of}),
        stale=evidence.stale(),
    )


class _Tested(NamedTuple):
    """A test with its difference, before p is corrected over the tests of a claim."""

    test: Against
    found: Difference | None
    higher_is_better: bool
    finding: Finding
    margin: float | None  # in the unit of the difference, if it is known there
    needed: str


def _on_runs(claim: Claim, evidence: ClaimEvidence) -> list[Finding]:
    against = [test for test in claim.tests if isinstance(test, Against)]
    count = len(against)
    tested: dict[int, _Tested | Finding] = {}
    for number, test in enumerate(claim.tests):
        if isinstance(test, Within):
            tested[number] = _on_range(test, evidence)
        elif claim.quantity.is_of_curves:
            tested[number] = _on_curves(claim, test, evidence, count)
        else:
            tested[number] = _on_difference(test, evidence, count)
    found = corrected({n: t.found for n, t in tested.items() if isinstance(t, _Tested)}, count)
    return [
        each if isinstance(each, Finding) else _judged(each, found[number])
        for number, each in tested.items()
    ]


def _judged(tested: _Tested, found: Difference | None) -> Finding:
    finding = tested.finding
    if found is None or finding.kind == "not run":
        return finding
    oriented = Oriented.of(found, tested.higher_is_better)
    margin = tested.margin
    test = tested.test.model_copy(update={"margin": math.inf if margin is None else margin})
    kind = judge(test, oriented)
    if finding.kind == "cannot be told" and kind in ("confirmed", "no difference"):
        kind = "cannot be told"  # the figures are bounds
    remarks = [finding.remark] if finding.remark else []
    if kind == "cannot be told" and test.holds != "better" and oriented.p < SIGNIFICANT:
        better = "better" if oriented.value > 0 else "worse"
        remarks.append(f"{better}, but whether by more than the margin is open")
    if kind == "cannot be told" and tested.needed:
        remarks.append(tested.needed)
    return finding.model_copy(
        update={
            "kind": kind,
            "difference": f"{finding.difference}, {p_value(found.corrected_p_value)}",
            "printed": _printed(tested.test, found),
            "remark": "; ".join(remarks),
            "p": oriented.p,
            "standing": None if margin is None else _standing(oriented, margin),
        }
    )


def _printed(test: Against, found: Difference) -> str:
    """The paper's difference, with a word if the interval leaves it out."""
    if test.printed is None:
        return ""
    said = f"{test.printed:+g}".replace("-", "−")
    return said if found.low <= test.printed <= found.high else f"{said}, outside the interval"


def _standing(found: Oriented, margin: float) -> Standing:
    ends = (found.value / margin, found.low / margin, found.high / margin)
    return Standing(value=ends[0], low=ends[1], high=ends[2], p=found.p)


def _on_difference(test: Against, evidence: ClaimEvidence, count: int) -> _Tested | Finding:
    ours, theirs = evidence.quantity_of(test.of), evidence.quantity_of(test.than)
    words = f"{test.of} {test.holds} than {test.than}"
    if ours is None or theirs is None:
        return Finding(test=words, kind="not run")
    same = evidence.runs(test.of) is evidence.runs(test.than)
    if same:
        change = within_runs(ours.values, theirs.values)
        found = difference_to(0.0, change, count)
        wanted = samples_needed(test.margin, change, None, count)
    else:
        found = difference(ours.values, theirs.values, count)
        wanted = samples_needed(test.margin, ours.values, theirs.values, count)
        if found is not None and found.source == "items":
            found = None  # single runs say nothing of other seeds
    figures = f"{_mean(ours)} against {_mean(theirs)} {ours.unit}"
    margin = f"{test.margin:g}"
    if found is None:
        return Finding(
            test=words,
            kind="cannot be told",
            figures=figures,
            margin=margin,
            remark=what_it_takes(wanted),
        )
    least = min(ours.values.seeds, theirs.values.seeds)
    finding = Finding(
        test=words,
        kind="confirmed",
        figures=figures,
        difference=_interval(found.value, found.low, found.high, ours.digits),
        margin=margin,
        loss=_loss_beside(test, evidence),
        remark=f"{least} seeds",
    )
    return _Tested(test, found, ours.higher_is_better, finding, test.margin, what_it_takes(wanted))


def _loss_beside(test: Against, evidence: ClaimEvidence) -> str:
    """The difference of the test loss beside that of a score: few test items tell more by it."""
    if evidence.quantity.kind != "score" or test.of.on or test.than.on:
        return ""
    if evidence.runs(test.of) is evidence.runs(test.than):
        return ""
    ours, theirs = (
        find_quantity(Quantity(kind="loss"), s, evidence.sound_runs(s), evidence.recipe(s))
        for s in (test.of, test.than)
    )
    found = difference(ours.values, theirs.values) if ours and theirs else None
    if found is None:
        return ""
    return f"{_interval(found.value, found.low, found.high, 3)}, {p_value(found.p_value)}"


def _on_curves(
    claim: Claim, test: Against, evidence: ClaimEvidence, count: int
) -> _Tested | Finding:
    words = f"{test.of} {test.holds} than {test.than}"
    of_steps = claim.quantity.kind == "steps to the baseline's loss"
    ours, theirs = (
        [each.run.history for each in evidence.sound_runs(subject)]
        for subject in (test.of, test.than)
    )
    if not ours or not theirs:
        return Finding(test=words, kind="not run")
    bounds = ""
    if of_steps:
        pairs: np.ndarray | None
        pairs, known = log_shares(ours, theirs)
        if not known:
            return _on_lowest_losses(test, words, ours, theirs, count)
        if known < pairs.size:
            bounds = f"{pairs.size - known} of {pairs.size} pairs do not get there in their budget"
    else:
        pairs = losses_at_equal_training_loss(ours, theirs)
    found = None if pairs is None else difference_over_pairs(pairs)
    if found is None or pairs is None:
        return Finding(test=words, kind="cannot be told", remark=what_it_takes(None))
    rows, columns = pairs.mean(1), pairs.mean() - pairs.mean(0)
    margin = -math.log(1 - test.margin) if of_steps else test.margin
    wanted = samples_needed(margin, Resampled(rows, None, 0), Resampled(columns, None, 0), count)
    if of_steps:
        value, low, high = (math.exp(x) for x in (found.value, found.low, found.high))
        at_least = "≥ " if bounds else ""
        shown = f"{at_least}{value:.2f} [{low:.2f}, {high:.2f}] of the baseline's steps"
    else:
        shown = f"{_interval(found.value, found.low, found.high, 3)} at equal training loss"
    least = min(len(ours), len(theirs))
    finding = Finding(
        test=words,
        kind="cannot be told" if bounds else "confirmed",
        difference=shown,
        margin=f"{test.margin:.0%} of the steps" if of_steps else f"{test.margin:g}",
        remark="; ".join([f"{least} seeds", *([bounds] if bounds else [])]),
    )
    return _Tested(test, found, False, finding, margin, what_it_takes(wanted))


def _on_lowest_losses(
    test: Against, words: str, ours: Sequence[History], theirs: Sequence[History], count: int
) -> _Tested | Finding:
    """Compares the lowest losses: where no run gets down to the baseline's, no steps are known."""
    found = difference(_lowest_losses(ours), _lowest_losses(theirs), count)
    never = "no run gets down to the baseline's lowest loss"
    if found is None:
        remark = f"{never}; {what_it_takes(None)}"
        return Finding(test=words, kind="cannot be told", remark=remark)
    finding = Finding(
        test=words,
        kind="cannot be told",
        difference=f"lowest losses {_interval(found.value, found.low, found.high, 3)}",
        remark=f"{min(len(ours), len(theirs))} seeds; {never}",
    )
    return _Tested(test, found, False, finding, None, "")


def _lowest_losses(runs: Sequence[History]) -> Resampled:
    return Resampled(np.array([best.loss for own in runs if (best := target(own))]), None, 0)


def _on_range(test: Within, evidence: ClaimEvidence) -> Finding:
    words = f"{test.of} {_bounds(test)}"
    found = evidence.quantity_of(test.of)
    mean = None if found is None else estimate(found.values)
    if found is None or mean is None:
        return Finding(test=words, kind="not run")
    if mean.low is None or mean.high is None or found.values.seeds < 2:
        return Finding(
            test=words,
            kind="cannot be told",
            figures=f"{_mean(found)} {found.unit}",
            remark=what_it_takes(None),
        )
    kind = judge_range(mean.low, mean.high, test.at_least, test.at_most)
    each = ", ".join(f"{value:.{found.digits}f}" for value in found.values.scores)
    remark = f"{found.values.seeds} seeds: {each}{_course(test, evidence, found.digits)}"
    bounds = [bound for bound in (test.at_least, test.at_most) if bound is not None]
    nearest = min(abs(mean.value - bound) for bound in bounds)
    if kind == "cannot be told" and nearest:
        remark += f"; {what_it_takes(samples_needed(nearest, found.values))}"
    return Finding(
        test=words,
        kind=kind,
        figures=f"{mean.value:.{found.digits}f} [{mean.low:.{found.digits}f}, "
        f"{mean.high:.{found.digits}f}] {found.unit}",
        remark=remark,
    )


def _course(test: Within, evidence: ClaimEvidence, digits: int) -> str:
    """Where the number stood early and half way: whether more steps would have changed it."""
    if evidence.quantity.kind != "recorded" or evidence.quantity.name is None:
        return ""
    runs = evidence.sound_runs(test.of)
    mean = mean_curve([curve(each.run.history, evidence.quantity.name) for each in runs])
    if len(mean) < 3:
        return ""
    steps = list(mean)
    shown = [steps[0], steps[len(steps) // 2], steps[-1]]
    said = ", ".join(f"{mean[step]:.{digits}f} at step {step:,}" for step in shown)
    return f"; their mean in training: {said}"


def _on_times(claim: Claim, test: Against | Within, evidence: ClaimEvidence) -> Finding:
    words = f"{test.of} {_bounds(test)}" if isinstance(test, Within) else str(test.of)
    name = evidence.where.named(test.of).system
    measured = [times for times in evidence.times() if name in times.of(claim.quantity.kind)]
    if not isinstance(test, Within) or not measured:
        return Finding(test=words, kind="not run")
    baseline = measured[0].baseline
    for system in dict.fromkeys([name, baseline]):
        today = evidence.fingerprint_today(Subject(system=system))
        if not all(computes_alike(of.fingerprints.get(system, []), today) for of in measured):
            evidence.note_stale_times(system)
    found = [times.of(claim.quantity.kind)[name] for times in measured]
    # Measurements differ by more than the rounds within one, so that theirs is the larger chance.
    low, high = min(each.low for each in found), max(each.high for each in found)
    middle = statistics.median(each.value for each in found)
    values = ", ".join(f"{each.value:.2f}" for each in found)
    machines = " and ".join(dict.fromkeys(times.machine for times in measured))
    many = "" if len(found) == 1 else f"{len(found)} measurements of "
    return Finding(
        test=words,
        kind=judge_range(low, high, test.at_least, test.at_most),
        figures=f"{middle:.2f}× [{low:.2f}, {high:.2f}] that of {baseline}",
        remark=f"{many}{found[0].rounds} rounds on {machines}{': ' + values if many else ''}",
    )


@cache
def _figures() -> list[Paper]:
    return published_figures()


def _on_figures(claim: Claim) -> Verdict:
    """Counted anew each time: it takes no training, and cannot be out of date."""
    quantity = claim.quantity
    findings = []
    for paper in _figures():
        if not paper.title.startswith(quantity.name or ""):
            continue
        for figure in paper.figures:
            if quantity.what is not None and figure.what != quantity.what:
                continue
            if not re.match(quantity.models, figure.model):
                continue
            if figure.agrees is not None:
                findings.append(
                    Finding(
                        test=f"{figure.model}, {figure.what}",
                        kind="confirmed" if figure.agrees else "contradicted",
                        figures=f"{figure.printed} printed, {figure.shown} counted",
                        remark=figure.remark,
                    )
                )
    return Verdict(kind=together([f.kind for f in findings] or ["not run"]), findings=findings)


def _mean(found: Found) -> str:
    return f"{found.values.scores.mean():.{found.digits}f}"


def _interval(value: float, low: float, high: float, digits: int) -> str:
    return f"{signed(value, digits)} [{signed(low, digits)}, {signed(high, digits)}]"


def _bounds(test: Within) -> str:
    parts = [f"at least {test.at_least:g}"] if test.at_least is not None else []
    parts += [f"at most {test.at_most:g}"] if test.at_most is not None else []
    return " and ".join(parts)
