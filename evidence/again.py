"""What runs elsewhere, with other seeds, say beside the verdicts: they count for none of them.

A claim that was tested twice has two differences. Whether these differ is tested with all runs of
both and the items that they share. And where only the baseline was trained elsewhere too, its other
runs tell how much a verdict owes to the first ones.
"""

from collections.abc import Mapping
from typing import NamedTuple

from evidence.claims import Against, Claim, Scale
from evidence.experiments import Conditions, Places, experiments
from evidence.judging import compared, interval, verdict_on
from evidence.quantities import Evidence
from evidence.verdicts import Kind, Oriented, Verdict, judge
from headwise.analysis.statistics.estimates import Difference
from headwise.analysis.statistics.seeds_and_items import contrast
from headwise.report.formatting import p_value

ELSEWHERE = "elsewhere"  # the folder beside the results


class RunAgain(NamedTuple):
    """A claim that was tested twice; of each test, the first difference less the second."""

    name: str
    first: Verdict
    second: Verdict
    changes: list[str]
    differ: bool  # whether one of them is significant


class WithOtherBaseline(NamedTuple):
    """A test against the baseline, with that of here and with that of elsewhere."""

    name: str
    first: str
    first_kind: Kind
    other: str
    other_kind: Kind


def run_again(
    claims: Mapping[str, Claim], verdicts: Mapping[str, Verdict], scale: Scale, places: Places
) -> list[RunAgain]:
    """Returns the claims that compare systems and have been tested elsewhere too."""
    found = []
    for name, claim in claims.items():
        if not all(isinstance(test, Against) for test in claim.tests):
            continue
        first, second = verdicts[name], verdict_on(claim, scale, _elsewhere(places))
        here, there = (_evidence(claim, scale, where) for where in (places, _elsewhere(places)))
        if here is None or there is None or not second.runs:
            continue
        changes: list[tuple[Difference, int]] = []
        for test in claim.tests:
            pairs = [compared(test, of) for of in (here, there) if isinstance(test, Against)]
            if all(pairs) and (change := contrast([x for pair in pairs for x in pair or ()])):
                digits = here.find(test.of)
                changes.append((change, digits.digits if digits else 3))
        if len(changes) == len(claim.tests) > 0:
            said = [f"{interval(of, digits)}, {p_value(of.p_value)}" for of, digits in changes]
            differ = any(of.significant for of, _ in changes)
            found.append(RunAgain(name, first, second, said, differ))
    return found


def with_other_baseline(
    claims: Mapping[str, Claim], verdicts: Mapping[str, Verdict], scale: Scale, places: Places
) -> list[WithOtherBaseline]:
    """Returns the tests against a baseline that alone of the two was trained elsewhere too."""
    found = []
    for name, claim in claims.items():
        here, there = (_evidence(claim, scale, where) for where in (places, _elsewhere(places)))
        for test, finding in zip(claim.tests, verdicts[name].findings, strict=False):
            if here is None or there is None or not isinstance(test, Against):
                continue
            ours, theirs = here.find(test.of), there.find(test.than)
            if ours is None or theirs is None or there.runs(test.of) or test.than.ablated:
                continue
            if not (difference := contrast([ours.values, theirs.values])):
                continue
            tests = sum(isinstance(each, Against) for each in claim.tests)
            kind = judge(test, Oriented.of(difference, ours.higher_is_better, tests))
            said = f"{interval(difference, ours.digits)}, {p_value(difference.p_value)}"
            first = f"{finding.test}: {finding.difference}"
            found.append(WithOtherBaseline(name, first, finding.kind, said, kind))
    return found


def _elsewhere(places: Places) -> Places:
    return places._replace(results=places.results.with_name(ELSEWHERE))


def _evidence(claim: Claim, scale: Scale, places: Places) -> Evidence | None:
    """The runs of a claim; None if it needs none, or times."""
    quantity, where = claim.quantity, claim.experiment_at(scale)
    if quantity is None or quantity.is_of_times or where is None:
        return None
    if where.experiment not in experiments(scale):
        return None
    return Evidence(quantity, Conditions(scale, where.experiment, places), where)
