"""What runs elsewhere, with other seeds, say beside the verdicts: they count for none of them.

A claim that was tested twice has two differences. Whether these differ is tested with all runs of
both and the items that they share. And where one of two systems alone was trained elsewhere too,
its other runs tell how much a verdict owes to the first ones.
"""

from collections.abc import Mapping
from typing import NamedTuple

from evidence.claims import Against, Claim, Scale
from evidence.experiments import Places
from evidence.judging import compared, evidence_of, interval, told, verdict_on
from evidence.verdicts import ENOUGH_SEEDS, Kind, Oriented, Verdict, judge
from headwise.analysis.statistics.estimates import Difference, corrected
from headwise.analysis.statistics.seeds_and_items import contrast
from headwise.report.formatting import p_value

ELSEWHERE = "elsewhere"  # the folder beside the results


class RunAgain(NamedTuple):
    """A claim that was tested twice; of each test, the first difference less the second."""

    name: str
    first: Verdict
    second: Verdict
    changes: list[str]
    differ: bool  # whether one of them is significant, corrected over all of them


class WithOtherRuns(NamedTuple):
    """A test, and what it would say with the other runs of one of its two systems."""

    name: str
    first: str
    first_kind: Kind
    other: str
    other_kind: Kind


def run_again(
    claims: Mapping[str, Claim], verdicts: Mapping[str, Verdict], scale: Scale, places: Places
) -> list[RunAgain]:
    """Returns the claims that compare systems and have been tested elsewhere too."""
    changes: dict[tuple[str, int], Difference | None] = {}
    digits: dict[tuple[str, int], int] = {}
    for name, claim in claims.items():
        here, there = (evidence_of(claim, scale, of) for of in (places, _elsewhere(places)))
        if here is None or there is None:
            continue
        pairs = [
            (first, second)
            for test in claim.tests
            if isinstance(test, Against)
            if (second := compared(test, there)) and (first := compared(test, here))
        ]
        if len(pairs) < len(claim.tests):
            continue
        for number, (first, second) in enumerate(pairs):
            changes[name, number] = contrast([*first.systems, *second.systems])
            digits[name, number] = first.ours.digits
    found = corrected(changes)
    again = []
    for name in dict.fromkeys(name for name, _ in found):
        of_tests = {key: of for key, of in found.items() if key[0] == name and of is not None}
        if not of_tests:  # too few seeds or items to tell
            continue
        said = [
            f"{interval(of, digits[key])}, {p_value(of.corrected_p_value)}"
            for key, of in of_tests.items()
        ]
        verdict = verdict_on(claims[name], scale, _elsewhere(places))
        differ = any(of.significant for of in of_tests.values())
        again.append(RunAgain(name, verdicts[name], verdict, said, differ))
    return again


def with_other_runs(
    claims: Mapping[str, Claim], verdicts: Mapping[str, Verdict], scale: Scale, places: Places
) -> list[WithOtherRuns]:
    """Returns the tests of two systems of which one alone was trained elsewhere too."""
    found = []
    for name, claim in claims.items():
        here, there = (evidence_of(claim, scale, of) for of in (places, _elsewhere(places)))
        if here is None or there is None:
            continue
        findings = verdicts[name].findings
        tests = sum(isinstance(test, Against) for test in claim.tests)
        for test, finding in zip(claim.tests, findings, strict=False):
            if not isinstance(test, Against) or not finding.difference:
                continue
            sides = [there if there.runs(of) else here for of in (test.of, test.than)]
            if sides[0] is sides[1]:
                continue  # both were trained elsewhere, or neither
            ours, theirs = sides[0].find(test.of), sides[1].find(test.than)
            if ours is None or theirs is None:
                continue
            if difference := contrast([ours.values, theirs.values]):
                kind = judge(test, Oriented.of(difference, ours.higher_is_better, tests))
                first = f"{finding.test}: {finding.difference}"
                seeds = min(ours.values.seeds, theirs.values.seeds)
                other = told(difference, ours.digits)
                other += f" ({seeds} seeds)" if seeds < ENOUGH_SEEDS else ""
                found.append(WithOtherRuns(name, first, finding.kind, other, kind))
    return found


def _elsewhere(places: Places) -> Places:
    return places._replace(results=places.results.with_name(ELSEWHERE))
