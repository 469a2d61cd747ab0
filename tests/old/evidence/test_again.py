"""Runs elsewhere beside the verdicts, against means computed from the tables of runs."""

import json
import statistics

import pytest

from evidence.again import ELSEWHERE, run_again, with_other_runs
from evidence.claims import CATALOGUE, papers
from evidence.experiments import Places
from evidence.judging import verdict_on

RESULTS = CATALOGUE.parent / "results"
PLACES = Places(RESULTS, RESULTS, RESULTS)
MAE = next(paper for paper in papers() if paper.name == "mae").claims


@pytest.fixture(scope="module")
def verdicts():
    return {name: verdict_on(claim, "laptop", PLACES) for name, claim in MAE.items()}


def mean_loss(folder, system):
    lines = (folder / "laptop" / "translation.jsonl").read_text().splitlines()
    runs = [record for record in map(json.loads, lines) if record["kind"] == "run"]
    of_system = [run for run in runs if run["system"] == system and not run["at"]]
    return statistics.mean(run["loss"] for run in of_system)


def test_the_first_difference_less_the_second(verdicts):
    again = {each.name: each for each in run_again(MAE, verdicts, "laptop", PLACES)}
    assert "M1" in again and not again.keys() & {"M5", "M10", "M7"}  # no runs, a bound, no test
    first, second = (
        mean_loss(folder, "mae-7") - mean_loss(folder, "standard")
        for folder in (RESULTS, RESULTS.with_name(ELSEWHERE))
    )
    (change,) = again["M1"].changes
    assert change.startswith(f"{first - second:+.3f}".replace("-", "\N{MINUS SIGN}"))
    assert again["M1"].differ == (float(change.rpartition(" ")[2]) < 0.05)
    assert again["M1"].second.machines != again["M1"].first.machines


def test_a_test_with_the_other_runs_of_one_system(verdicts):
    rows = {
        (each.name, each.first.partition(":")[0]): each
        for each in with_other_runs(MAE, verdicts, "laptop", PLACES)
    }
    assert not {name for name, _ in rows} & {"M1", "M10"}  # both were run again; a bound
    other = mean_loss(RESULTS, "uni-mae-7") - mean_loss(RESULTS.with_name(ELSEWHERE), "standard")
    assert rows["M3", "uni-mae-7 not worse than standard"].other.startswith(
        f"{other:+.3f}".replace("-", "\N{MINUS SIGN}")
    )
    assert (
        rows["M3", "uni-mae-7 not worse than standard"].first_kind
        == rows["M3", "uni-mae-7 not worse than standard"].other_kind
        == "holds here"
    )
