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
from typer.testing import CliRunner

from evidence.__main__ import app, results_page
from evidence.verdicts import Claim, catalogue, judged, read_lines, verdict
from evidence.verdicts import Test as OneTest
from headwise.analysis.statistics import Estimate

ROOT = Path(__file__).parents[2]
LAPTOP = ROOT / "evidence" / "results" / "laptop"
HOLDS, FAILS, OPEN = "holds here", "does not hold here", "cannot be told"

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
    return Estimate(value, low, high, error, freedom, p, over=over)


@pytest.mark.parametrize("holds", ["better", "not better", "not worse"])
@pytest.mark.parametrize("name", INTERVALS)
@pytest.mark.parametrize("higher_is_better", [True, False])
def test_what_an_interval_says_of_a_test(name, holds, higher_is_better):
    low, high, expected = INTERVALS[name]
    test = OneTest(of="a", holds=holds, than="b", margin=1.0)
    found = interval(low, high) if higher_is_better else interval(-high, -low)
    said = dict(zip(["better", "not better", "not worse"], expected, strict=True))[holds]
    assert judged(test, found, higher_is_better) == said
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
    said = {"kind": "run", "at": "", "dataset": None, "system": system, "seed": seed, "data": data}
    said |= {"history": [], "validation_loss": loss, "loss": loss, "ablations": {}, "rows": {}}
    score = {"name": "BLEU", "value": 1.0, "statistic": "bleu", "digits": 1}
    return said | {"scores": [{**score, "lower_is_better": False}], "attention": []}


def write(folder: Path, lines: list[dict]) -> Path:
    (folder / "translation.jsonl").write_text("".join(json.dumps(of) + "\n" for of in lines))
    return folder


def claim(tests: list[dict]) -> Claim:
    said = dict.fromkeys(("short", "says", "where", "printed"), "-")
    return Claim(**said, quantity={"kind": "loss"}, experiment="translation", tests=tests)


@pytest.mark.parametrize("name", CLAIMS)
def test_what_runs_say_of_a_claim(tmp_path, name):
    tests, ours, theirs, said = CLAIMS[name]
    lines = [line("mae-7", seed, loss) for seed, loss in enumerate(ours)]
    lines += [line("standard", seed, loss) for seed, loss in enumerate(theirs)]
    lines += [line("standard", 9, 1.0, data="another")]  # is compared with none of them
    lines += [{**line("standard", 8, 1.0), "at": "norms/post"}]
    assert verdict(claim(tests), read_lines(write(tmp_path, lines))).kind == said


@pytest.mark.parametrize("damage", ["{", "[]", "null"])
def test_a_damaged_line_is_named(tmp_path, damage):
    path = write(tmp_path, [line("mae-7", 1, 2.5)]) / "translation.jsonl"
    path.write_text(path.read_text() + damage)
    done = CliRunner().invoke(app, ["list", "M1", "--results", str(tmp_path)])
    assert done.exit_code == 2 and "translation.jsonl, line 2" in done.output.replace("\n", " ")


# --- the committed claims, results and page ------------------------------------------------------


@pytest.fixture(scope="module")
def verdicts():
    """Those of the recorded runs, and of runs elsewhere."""
    claims = catalogue().claims()
    lines, other = read_lines(LAPTOP), read_lines(LAPTOP.with_name("elsewhere"))
    here = {name: verdict(of, lines) for name, of in claims.items()}
    return here, {name: verdict(of, other) for name, of in claims.items() if of.experiment}


def test_the_page_of_results_follows_from_the_recorded_runs(verdicts):
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    made = results_page(*verdicts)
    assert made in page
    assert len(re.findall(r"^\| [A-Z]\d+[A-Z]? \|", made, re.MULTILINE)) == 57


def test_each_claim_that_does_not_hold_has_a_cause(verdicts):
    missing = [n for n, of in verdicts[0].items() if of.kind == FAILS]
    assert not [name for name in missing if not catalogue().claims()[name].cause]


# --- a claim is run ------------------------------------------------------------------------------


def tiny(folder: Path) -> None:
    """A copy of evidence with claims and a recipe of its own, that runs in seconds."""
    package = folder / "evidence"
    (package / "recipes").mkdir(parents=True)
    for file in (ROOT / "evidence").glob("*.py"):
        shutil.copy(file, package)
    shutil.copy(write_recipe("translation", folder), package / "recipes" / "tiny.yaml")
    said = dict.fromkeys(("short", "says", "where", "printed"), "-") | {"experiment": "tiny"}
    rise = [{"system": "mae", "without": [f"mae={name}"]} for name in ("largest", "random-expert")]
    loss = {"of": rise[0], "holds": "better", "than": rise[1], "margin": 0.1}
    share = {"kind": "recorded", "name": "smallest share", "key": "load"}
    claims = {
        "L": {**said, "quantity": {"kind": "loss"}, "tests": [loss]},
        "S": {
            **said,
            "quantity": {**share, "over": "smallest"},
            "tests": [{"of": "mae", "at_most": 1}],
        },
    }
    experiment = {"recipe": "tiny", "data": "numerals", "set": ["training.log_every=2"]}
    paper = {"paper": "-", "link": "-", "system": "MAE", "claims": claims}
    document = {"experiments": {"tiny": experiment}, "papers": [paper]}
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
    assert all(run["ablations"].keys() == {"mae=largest", "mae=random-expert"} for run in runs)
    modules = [module for run in runs for module in run["attention"]]
    assert modules and all(sum(module["load"]) == pytest.approx(1) for module in modules)
    assert all(module["start_entropy"] > 0 for module in modules)
    again = subprocess.run(command, capture_output=True, text=True, check=True, **how)
    assert results.read_text() == kept and "S: holds here (provisional: 2 seeds)" in again.stdout
