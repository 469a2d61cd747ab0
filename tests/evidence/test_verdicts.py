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
from evidence.verdicts import Claim, judge, judge_interval, read_catalogue, read_lines
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
    value, dof = (low + high) / 2, 8.0
    error = (high - low) / 2 / stats.t.ppf(0.975, dof)
    p = 2 * stats.t.sf(abs(value) / error, dof)
    return Estimate(value, low, high, error, dof, p, variance_source=over)


@pytest.mark.parametrize("holds", ["better", "not better", "not worse"])
@pytest.mark.parametrize("name", INTERVALS)
def test_what_an_interval_says_of_a_test(name, holds):
    low, high, kinds = INTERVALS[name]
    test = OneTest(of="a", holds=holds, than="b", margin=1.0)
    expected = dict(zip(["better", "not better", "not worse"], kinds, strict=True))[holds]
    assert judge_interval(test, interval(low, high)) == expected
    from_items = interval(low, high, over="items")
    assert judge_interval(test, from_items) == OPEN  # a single run says nothing


def test_a_test_of_several_fails_by_a_wider_interval():
    test = OneTest(of="a", holds="better", than="b", margin=1.0)
    assert judge_interval(test, interval(-0.9, 0.9), tests=1) == FAILS
    assert judge_interval(test, interval(-0.9, 0.9), tests=2) == OPEN


@pytest.mark.parametrize(
    ("low", "high", "kind"), [(1.1, 1.4, HOLDS), (0.9, 1.1, OPEN), (0.5, 0.9, FAILS)]
)
def test_what_an_interval_says_of_a_number_in_bounds(low, high, kind):
    test = OneTest(of="a", at_least=1.0, at_most=1.5)
    assert judge_interval(test, interval(low, high)) == kind


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
    keys = {"kind": "run", "at": "", "system": system, "seed": seed, "data": data}
    score = {"name": "PESQ", "value": -loss, "statistic": "ratio"}
    figures = {"history": [], "validation_loss": loss, "scores": [score], "attention": []}
    return {**keys, **figures, "rows": {"loss": [[loss, 1]] * 10, "PESQ": [[-loss, 1]] * 10}}


def write(folder: Path, lines: list[dict]) -> Path:
    (folder / "translation.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return folder


def claim(tests: list[dict], **options) -> Claim:
    texts = dict.fromkeys(("short", "says", "where", "printed"), "-")
    return Claim(**texts, experiment="translation", tests=tests, **options)


@pytest.mark.parametrize("name", CLAIMS)
def test_what_runs_say_of_a_claim(tmp_path, name):
    tests, losses, standard_losses, kind = CLAIMS[name]
    lines = [line("mae-7", seed, loss) for seed, loss in enumerate(losses)]
    lines += [line("standard", seed, loss) for seed, loss in enumerate(standard_losses)]
    lines += [line("standard", 9, 1.0, data="another")]  # is compared with none of them
    lines += [{**line("standard", 8, 1.0), "at": "norms/post"}]
    assert judge(claim(tests), read_lines(write(tmp_path, lines))).kind == kind


def test_of_a_score_larger_may_be_better_and_a_claim_may_have_a_condition(tmp_path):
    lines = [line("mae-7", seed, loss) for seed, loss in enumerate(BEST)]
    lines += [line("standard", seed, loss) for seed, loss in enumerate(WORSE)]
    by_experiment = read_lines(write(tmp_path, lines))
    pesq = {"kind": "score", "rows": "PESQ", "higher_is_better": True}
    (finding,) = judge(claim([BETTER], quantity=pesq), by_experiment).findings
    assert finding.kind == HOLDS
    assert finding.measured.startswith("+0.100 [") and "PESQ" in finding.measured
    for limit, kind in ((2.6, HOLDS), (2.4, "not testable")):
        condition = [{"of": "mae-7", "at_most": limit}]
        assert judge(claim([BETTER], only_if=condition), by_experiment).kind == kind


# --- the committed claims, results and page ------------------------------------------------------


def test_the_page_of_results_follows_from_the_recorded_runs():
    lines, claims = read_lines(LAPTOP), read_catalogue().claims()
    verdicts = {name: judge(claims[name], lines) for name in claims}
    text = results_page(verdicts)
    assert text in (ROOT / "docs" / "results.md").read_text("utf-8")
    row, not_run = r"^\| [A-Z]\d+[A-Z]? \|", r"(?:: |; )\*\*[A-Z]\d+[A-Z]?\*\* "
    assert len(re.findall(f"{row}|{not_run}", text, re.MULTILINE)) == 57
    failed = [name for name, verdict in verdicts.items() if verdict.kind == FAILS]
    assert all(claims[name].cause for name in failed)


def test_the_recipe_of_each_experiment_has_the_systems_of_its_claims():
    for each in read_catalogue().claims().values():
        if each.experiment:
            file = load_recipe(str(ROOT / "evidence" / "recipes" / f"{each.experiment}.yaml"))
            for subject in each.subjects:
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
    texts = dict.fromkeys(("short", "says", "where", "printed"), "-") | {"experiment": "tiny"}
    ablated = [{"system": "mae", "ablated": [f"mae={n}"]} for n in ("largest", "random-expert")]
    test = {"of": ablated[0], "holds": "better", "than": ablated[1], "margin": 0.1}
    load = {"kind": "recorded", "rows": "attention", "key": "load", "over": "min"}
    claims = {
        "L": {**texts, "quantity": {"kind": "rise"}, "tests": [test]},
        "S": {**texts, "quantity": load, "tests": [{"of": "mae", "at_most": 1}]},
    }
    paper = {"paper": "-", "link": "-", "system": "MAE", "claims": claims}
    document = {"tune": {}, "papers": [paper]}
    (package / "claims.yaml").write_text(yaml.safe_dump(document))


@pytest.mark.nightly
def test_a_claim_whose_run_is_killed_goes_on_and_has_each_line_once(tmp_path):
    tiny(tmp_path)
    results = tmp_path / "evidence" / "results" / "laptop" / "tiny.jsonl"
    command = [sys.executable, "-m", "evidence", "run", "L", "S", "--seeds", "1,2"]
    options = {"cwd": tmp_path, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    process = subprocess.Popen(command, start_new_session=True, **options)
    result = tmp_path / "runs" / "claims" / "tiny" / "mae-seed1" / "result.json"
    while not result.exists() and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    written = result.stat().st_mtime_ns
    subprocess.run(command, check=True, **options)
    text = results.read_text()
    runs = [json.loads(row) for row in text.splitlines()]
    assert sorted((run["system"], run["seed"]) for run in runs) == [("mae", 1), ("mae", 2)]
    assert result.stat().st_mtime_ns == written
    names = {"loss", "loss with mae=largest", "loss with mae=random-expert"}
    assert all(names <= run["rows"].keys() for run in runs)
    modules = [module for run in runs for module in run["attention"]]
    assert modules and all(sum(module["load"]) == pytest.approx(1) for module in modules)
    assert all(module["start_entropy"] > 0 for module in modules)
    again = subprocess.run(command, capture_output=True, text=True, check=True, **options)
    assert results.read_text() == text and "S: holds (2 seeds)" in again.stdout
