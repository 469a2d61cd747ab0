"""The verdict on each claim of the papers follows from the recorded runs, by one rule."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from scipy import stats
from support.tiny_tasks import write_recipe

from evidence.__main__ import results_page
from evidence.verdicts import Claim, judged, read_catalogue, read_lines, verdict
from evidence.verdicts import Test as OneTest
from headwise.analysis.statistics import Estimate
from headwise.recipes.recipe import load_recipe

ROOT = Path(__file__).parents[2]
LAPTOP = ROOT / "evidence" / "results" / "laptop"
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"

# --- one test: six intervals, of an advantage in units of the margin ------------------------------

INTERVALS = {
    # name: ends, and what is said of better, not better, not worse
    "far ahead": (1.2, 2.0, [HOLDS, FAILS, HOLDS]),
    "ahead": (0.2, 1.2, [HOLDS, OPEN, HOLDS]),
    "around zero": (-0.5, 0.5, [FAILS, HOLDS, HOLDS]),
    "wide": (-1.5, 1.5, [OPEN, OPEN, OPEN]),
    "behind": (-1.2, -0.2, [FAILS, HOLDS, OPEN]),
    "far behind": (-2.0, -1.2, [FAILS, HOLDS, FAILS]),
}


def interval(low: float, high: float, over: str = "seeds") -> Estimate:
    value, freedom = (low + high) / 2, 8.0
    error = (high - low) / 2 / stats.t.ppf(0.975, freedom)
    p = 2 * stats.t.sf(abs(value) / error, freedom)
    return Estimate(value, low, high, error, freedom, p, variance_source=over)


@pytest.mark.parametrize("holds", ["better", "not better", "not worse"])
@pytest.mark.parametrize("name", INTERVALS)
def test_what_an_interval_says_of_a_test(name, holds):
    low, high, expected = INTERVALS[name]
    test = OneTest(of="a", holds=holds, than="b", margin=1.0)
    said = dict(zip(["better", "not better", "not worse"], expected, strict=True))[holds]
    assert judged(test, interval(low, high)) == said
    assert judged(test, interval(low, high, over="items")) == OPEN  # a single run says nothing


def test_a_test_of_several_fails_by_a_wider_interval():
    test = OneTest(of="a", holds="better", than="b", margin=1.0)
    assert judged(test, interval(-0.9, 0.9), tests=1) == FAILS
    assert judged(test, interval(-0.9, 0.9), tests=2) == OPEN


@pytest.mark.parametrize(
    ("low", "high", "said"), [(1.1, 1.4, HOLDS), (0.9, 1.1, OPEN), (0.5, 0.9, FAILS)]
)
def test_what_an_interval_says_of_a_number_in_bounds(low, high, said):
    assert judged(OneTest(of="a", at_least=1.0, at_most=1.5), interval(low, high)) == said


# --- a claim: runs that collapse, diverge, are on other data, or are missing ----------------------

BEST, WORSE = [2.50, 2.51, 2.52, 2.51], [2.60, 2.61, 2.62, 2.61]
FAR, LOST = 3.0, math.nan  # a twentieth above the best seed is collapsed
BETTER = {"of": "mae-7", "holds": "better", "than": "standard", "margin": 0.02}
CLAIMS = {
    "holds": ([BETTER], BEST, WORSE, HOLDS),
    "fails": ([BETTER], WORSE, BEST, FAILS),
    "without the other": ([BETTER], BEST, [], "not run"),
    "single seeds": ([BETTER], BEST[:1], WORSE[:1], OPEN),
    "one test of two fails": ([BETTER, {**BETTER, "holds": "not better"}], BEST, WORSE, FAILS),
    "collapsed, and so would not hold": ([BETTER], WORSE, [*BEST, FAR], OPEN),
    "collapsed, and is worse with it": ([BETTER], [*WORSE, FAR], BEST, FAILS),
    "diverged": ([BETTER], [*BEST, LOST], WORSE, OPEN),
    "bounds": ([{"of": "mae-7", "at_most": 2.6}], BEST, [], HOLDS),
}


def line(system: str, seed: int, loss: float, data: str = "one") -> dict:
    said = {"kind": "run", "at": "", "system": system, "seed": seed, "data": data}
    score = {"name": "PESQ", "value": -loss, "statistic": "ratio"}
    said |= {"history": [], "validation_loss": loss, "scores": [score], "attention": []}
    return said | {"rows": {"loss": [[loss, 1]] * 10, "PESQ": [[-loss, 1]] * 10}}


def write(folder: Path, lines: list[dict]) -> Path:
    (folder / "translation.jsonl").write_text("".join(json.dumps(of) + "\n" for of in lines))
    return folder


def claim(tests: list[dict], **others) -> Claim:
    said = dict.fromkeys(("short", "says", "where", "printed"), "-")
    return Claim(**said, experiment="translation", tests=tests, **others)


@pytest.mark.parametrize("name", CLAIMS)
def test_what_runs_say_of_a_claim(tmp_path, name):
    tests, ours, theirs, said = CLAIMS[name]
    lines = [line("mae-7", seed, loss) for seed, loss in enumerate(ours)]
    lines += [line("standard", seed, loss) for seed, loss in enumerate(theirs)]
    lines += [line("standard", 9, 1.0, data="another")]  # is compared with none of them
    lines += [{**line("standard", 8, 1.0), "at": "norms/post"}]
    assert verdict(claim(tests), read_lines(write(tmp_path, lines))).kind == said


def test_of_a_score_larger_may_be_better_and_a_claim_may_have_a_condition(tmp_path):
    lines = [line("mae-7", seed, loss) for seed, loss in enumerate(BEST)]
    lines += [line("standard", seed, loss) for seed, loss in enumerate(WORSE)]
    read = read_lines(write(tmp_path, lines))
    pesq = {"kind": "score", "rows": "PESQ", "higher_is_better": True}
    (found,) = verdict(claim([BETTER], quantity=pesq), read).findings
    assert found.kind == HOLDS and found.said.startswith("+0.100 [") and "PESQ" in found.said
    for most, said in ((2.6, HOLDS), (2.4, "not testable")):
        condition = [{"of": "mae-7", "at_most": most}]
        assert verdict(claim([BETTER], only_if=condition), read).kind == said


# --- the committed claims, results and page ------------------------------------------------------


def test_the_page_of_results_follows_from_the_recorded_runs():
    lines, claims = read_lines(LAPTOP), read_catalogue().claims()
    verdicts = {name: verdict(of, lines) for name, of in claims.items()}
    page, made = (ROOT / "docs" / "results.md").read_text("utf-8"), results_page(verdicts)
    assert made in page
    run, left = r"^\| [A-Z]\d+[A-Z]? \|", r"(?:: |; )\*\*[A-Z]\d+[A-Z]?\*\* "
    assert len(re.findall(f"{run}|{left}", made, re.MULTILINE)) == 57
    assert not [n for n, of in verdicts.items() if of.kind == FAILS and not claims[n].cause]


def test_the_recipe_of_each_experiment_has_the_systems_of_its_claims():
    for of in read_catalogue().claims().values():
        if of.experiment:
            file = load_recipe(str(ROOT / "evidence" / "recipes" / f"{of.experiment}.yaml"))
            for subject in of.subjects:
                dataset, _, system = subject.system.rpartition("/")
                file.system(system, dataset or None)


# --- a claim is run ------------------------------------------------------------------------------


def tiny(folder: Path) -> None:
    """A copy of evidence with claims and a recipe of its own, that runs in seconds."""
    package = folder / "evidence"
    (package / "recipes").mkdir(parents=True)
    for file in (ROOT / "evidence").glob("*.py"):
        shutil.copy(file, package)
    shutil.copy(write_recipe("translation", folder), package / "recipes" / "tiny.yaml")
    said = dict.fromkeys(("short", "says", "where", "printed"), "-") | {"experiment": "tiny"}
    alone = [{"system": "mae", "ablated": [f"mae={name}"]} for name in ("largest", "random-expert")]
    loss = {"of": alone[0], "holds": "better", "than": alone[1], "margin": 0.1}
    share = {"kind": "recorded", "rows": "attention", "key": "load", "over": "min"}
    claims = {
        "L": {**said, "quantity": {"kind": "rise"}, "tests": [loss]},
        "S": {**said, "quantity": share, "tests": [{"of": "mae", "at_most": 1}]},
    }
    paper = {"paper": "-", "link": "-", "system": "MAE", "claims": claims}
    document = {"tune": {}, "papers": [paper]}
    (package / "claims.yaml").write_text(yaml.safe_dump(document))


@pytest.mark.nightly
def test_a_claim_whose_run_is_killed_goes_on_and_has_each_line_once(tmp_path):
    tiny(tmp_path)
    results = tmp_path / "evidence" / "results" / "laptop" / "tiny.jsonl"
    command = [sys.executable, "-m", "evidence", "run", "L", "S", "--seeds", "1,2"]
    how = {"cwd": tmp_path, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    begun = subprocess.Popen(command, start_new_session=True, **how)
    finished = tmp_path / "runs" / "claims" / "tiny" / "mae-seed1" / "result.json"
    while not finished.exists() and begun.poll() is None:
        time.sleep(0.05)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    trained = finished.stat().st_mtime_ns
    subprocess.run(command, check=True, **how)
    kept = results.read_text()
    runs = [json.loads(text) for text in kept.splitlines()]
    assert sorted((run["system"], run["seed"]) for run in runs) == [("mae", 1), ("mae", 2)]
    assert finished.stat().st_mtime_ns == trained
    under = {"loss", "loss with mae=largest", "loss with mae=random-expert"}
    assert all(under <= run["rows"].keys() for run in runs)
    modules = [module for run in runs for module in run["attention"]]
    assert modules and all(sum(module["load"]) == pytest.approx(1) for module in modules)
    assert all(module["start_entropy"] > 0 for module in modules)
    again = subprocess.run(command, capture_output=True, text=True, check=True, **how)
    assert results.read_text() == kept and "S: holds (2 seeds)" in again.stdout
