"""What the page says of all claims at a scale together: how many, by how much work, and chance."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headwise.analysis.statistics.estimates import SIGNIFICANT
from headwise.claims.catalogue.declared import Against, Claim, Scale, Subject
from headwise.claims.judging.verdicts import Verdict
from headwise.claims.page.experiment_results import ExperimentResult
from headwise.report.formatting import count

MANY_SEEDS = 5
BASELINE = "standard"


class Totals(NamedTuple):
    """All claims at one scale.

    Attributes:
        scale: the scale.
        trained: how many claims have results of runs.
        with_many_seeds: how many of these have five seeds of every system.
        timed, counted: how many are measured without training, and how many are counted.
        stale: how many rest on what the code computes otherwise today.
        runs, systems: how many there are; systems of different experiments count each.
        hours: of training of all runs, on all machines together.
        machines: on which they were trained.
        smallest, largest: parameters of the systems.
        tested: how many claims say that a system is better, and rest on tests of significance.
        significant: how many of these have a significant difference.
        in_favour: how many of those are confirmed.
        held_by_training: how many claims are confirmed by training.
        over_baseline: how many claims that results of runs are known of say that a system is better
            than the baseline.
        over_baseline_confirmed, over_baseline_contradicted: how many of these are.
        systems_contradicted: of how many systems the contradicted ones are: several claims may be
            about the same runs.
    """

    scale: Scale
    trained: int
    with_many_seeds: int
    timed: int
    counted: int
    stale: int
    runs: int
    systems: int
    hours: float
    machines: Sequence[str]
    smallest: str
    largest: str
    tested: int
    significant: int
    in_favour: int
    held_by_training: int
    over_baseline: int
    over_baseline_confirmed: int
    over_baseline_contradicted: int
    systems_contradicted: int

    @property
    def by_chance(self) -> float:
        """How many claims would have a significant difference if no system differed at all."""
        return SIGNIFICANT * self.tested


def totals(
    claims: Mapping[str, Claim],
    verdicts: Mapping[tuple[str, Scale], Verdict],
    results: Sequence[Sequence[ExperimentResult]],
    scale: Scale,
) -> Totals:
    """Returns what is known of all claims at a scale together.

    Args:
        claims: the claims by their ids.
        verdicts: what is known of each at each scale.
        results: the experiments with runs, each on its data sets.
        scale: the scale.
    """
    known = {
        name: verdicts[name, scale] for name in claims if verdicts[name, scale].kind != "not run"
    }
    trained = [name for name in known if known[name].runs]
    tests = {name: _p_values(claims[name], of) for name, of in known.items()}
    different = [name for name, each in tests.items() if any(p < SIGNIFICANT for p in each)]
    over = [name for name in trained if _is_over(claims[name], BASELINE)]
    contradicted = [name for name in over if known[name].kind == "contradicted"]
    held = [name for name in known if known[name].kind == "confirmed"]
    here = [result for of in results for result in of if result.scale == scale]
    runs = [each.run for result in here for system in result.systems for each in system.runs]
    sizes = [run.parameters for run in runs]
    return Totals(
        scale=scale,
        trained=len(trained),
        with_many_seeds=sum(known[name].seeds >= MANY_SEEDS for name in trained),
        timed=sum(claims[name].quantity.is_of_times for name in known),
        counted=sum(claims[name].quantity.kind == "figures" for name in known),
        stale=sum(bool(of.stale) for of in known.values()),
        runs=len(runs),
        systems=len({(result.name, system.name) for result in here for system in result.systems}),
        hours=sum(run.minutes for run in runs) / 60,
        machines=sorted({run.machine for run in runs}),
        smallest=count(min(sizes, default=0)),
        largest=count(max(sizes, default=0)),
        tested=sum(bool(each) for each in tests.values()),
        significant=len(different),
        in_favour=sum(name in held for name in different),
        held_by_training=sum(name in held for name in trained),
        over_baseline=len(over),
        over_baseline_confirmed=sum(name in held for name in over),
        over_baseline_contradicted=len(contradicted),
        systems_contradicted=len(
            {of for name in contradicted for of in _contradicted(claims[name], known[name])}
        ),
    )


def _contradicted(claim: Claim, verdict: Verdict) -> list[Subject]:
    """The systems of those tests that contradict the claim."""
    found = zip(claim.tests, verdict.findings, strict=False)
    return [test.of for test, finding in found if finding.kind == "contradicted"]


def _p_values(claim: Claim, verdict: Verdict) -> list[float]:
    """The p-values of those tests that they decide."""
    return [
        finding.p
        for test, finding in zip(claim.tests, verdict.findings, strict=False)
        if finding.p is not None and isinstance(test, Against) and test.holds == "better"
    ]


def _is_over(claim: Claim, baseline: str) -> bool:
    """Whether a claim says that a system, as it was trained, is better than the baseline."""
    against = [test for test in claim.tests if isinstance(test, Against)]
    return any(
        test.holds == "better" and str(test.than) == baseline for test in against
    ) and not any(test.holds == "not better" for test in against)
