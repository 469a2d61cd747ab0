"""Runs of claims: shared, kept, moved, interrupted, and out of date."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tiny_claims
import torch
from rich.console import Console
from typer.testing import CliRunner

from headwise.analysis.speed import OverRounds
from headwise.claims.catalogue.declared import Subject, all_claims, find_claims
from headwise.claims.catalogue.needed import needed_runs
from headwise.claims.evidence.conditions import Conditions
from headwise.claims.evidence.kept_runs import kept_runs
from headwise.claims.evidence.records import (
    read_run,
    read_times,
    read_tries,
    run_path,
    times_paths,
    tuning_path,
)
from headwise.claims.evidence.tries import tries_of
from headwise.claims.judging.judging import verdict_on
from headwise.claims.runs import keeping
from headwise.claims.runs.planning import measure_seconds, plan, with_needs
from headwise.claims.runs.running import run_experiment
from headwise.claims.runs.timing import measure_times
from headwise.cli import app
from headwise.runs.grid import parse_grid
from headwise.training.interrupted import Interrupted

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_rounds", "catalogue")]

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    folder = tmp_path_factory.mktemp("catalogue")
    tiny_claims.write_catalogue(folder)
    with pytest.MonkeyPatch.context() as patch:
        tiny_claims.use(folder, patch)
        yield folder


@pytest.fixture(scope="module")
def places(catalogue, tmp_path_factory, few_rounds):
    """Folders in which all claims but one were run with two seeds."""
    places = tiny_claims.places_in(tmp_path_factory.mktemp("claims"))
    run(places, ids=[name for name in all_claims() if name != "C1"])
    return places


def run(places, seeds=(1, 2), ids=(), **how):
    for name, needed in needed_runs(find_claims(list(ids)), "laptop").items():
        run_experiment("laptop", name, needed, seeds, places, QUIET, **how)
        if needed.times:
            measure_times("laptop", name, needed, places, QUIET)


def own(places):
    return places.of("laptop", "counting")


def test_claims_share_runs():
    needed = needed_runs(all_claims(), "laptop")["counting"]
    assert needed.systems == {None: ["mae", "standard"]}
    assert len(needed.ablations["mae"]) == 4
    assert needed.scored == {"mae": ("mae=uniform",)}
    assert needed.times == ["mae"]
    # Whoever asks, all that any claim wants of a run is kept.
    (alone,) = needed_runs(find_claims(["S1"]), "laptop").values()
    assert (alone.ablations, alone.scored) == (needed.ablations, needed.scored)
    assert not needed_runs(all_claims(), "gpu")


def test_what_is_kept_of_a_run(places):
    path = run_path(own(places).evidence, "mae", 2)
    found = read_run(path)
    assert (found.system, found.seed, found.steps) == ("mae", 2, 6)
    assert found.ablations.keys() == set(
        needed_runs(all_claims(), "laptop")["counting"].ablations["mae"]
    )
    assert found.scores[0].name == found.ablated_scores["mae=uniform"][0].name == "BLEU"
    assert path.stat().st_size + path.with_suffix(".npz").stat().st_size < 30_000
    assert not list(own(places).runs.glob("*/checkpoint-*"))
    assert all(
        read_times(times).step.keys() == {"standard", "mae"}
        for times in times_paths(own(places).evidence)
    )


def test_a_run_lacks_scores_under_an_ablation_whose_loss_it_has(places):
    recipe = Conditions("laptop", "counting", places).plain.system("mae")
    keep = keeping.Keep(run_path(own(places).evidence, "mae", 1), recipe, ("mae=random",), ())
    assert keep.kept() is not None
    assert replace(keep, scored=("mae=random",)).kept() is None


@pytest.mark.parametrize("name", ["S1", "L1", "E1", "W1", "G1", "T1", "F1"])
def test_every_kind_of_quantity_has_a_verdict(places, name):
    verdict = verdict_on(all_claims()[name], "laptop", places)
    assert verdict.kind != "not run"
    assert all(finding.figures or finding.difference for finding in verdict.findings)
    assert verdict.stale == []
    if name not in ("T1", "F1"):
        assert verdict.seeds == 2


def test_what_is_kept_is_not_trained_again_on_another_machine(places, tmp_path, monkeypatch):
    other = places._replace(runs=tmp_path / "runs", data=tmp_path / "no-data")
    monkeypatch.setattr(keeping, "train_system", None)
    run(other, ids=["S1", "L1", "T1"])
    assert not other.runs.exists()


def test_what_others_start_from_is_trained_first_where_its_model_is_missing(places, tmp_path):
    other = places._replace(runs=tmp_path / "runs")

    def records():
        folder = own(places).evidence
        return {p.name: p.stat().st_mtime_ns for p in folder.glob("*-seed*")}

    before = records()
    run(other, seeds=[1], ids=["C1"])
    folders = {str(p.relative_to(other.runs / "laptop")) for p in other.runs.rglob("*-seed?")}
    assert folders == {
        f"{experiment}/{system}-seed1"
        for experiment in ("counting", "continued")
        for system in ("standard", "mae")
    }
    assert verdict_on(all_claims()["C1"], "laptop", other).stale == []
    assert records() == before  # verdicts rest on them, and numbers of other machines differ
    rows = plan(
        with_needs(needed_runs(find_claims(["C1"]), "laptop"), "laptop"), "laptop", 5, other
    )
    assert [(row.experiment, row.system, row.runs, row.kept) for row in rows] == [
        ("counting", "standard", 1, 1),
        ("counting", "mae", 1, 1),
        ("continued", "standard", 5, 1),
        ("continued", "mae", 5, 1),
    ]


def test_a_run_is_trained_again_if_its_recipe_is_another(places, tmp_path, catalogue, monkeypatch):
    copied = tmp_path / "catalogue"
    shutil.copytree(catalogue, copied)
    recipe = copied / "recipes" / "counting.yaml"
    recipe.write_text(recipe.read_text().replace("max_steps: 6", "max_steps: 5"))
    tiny_claims.use(copied, monkeypatch)
    assert verdict_on(all_claims()["S1"], "laptop", places).kind == "not run"


def test_runs_on_other_data_are_not_added_to_those_that_are_kept(places, tmp_path):
    evidence = tmp_path / "evidence"
    shutil.copytree(places.evidence, evidence)
    for seed in (1, 2):
        path = run_path(evidence / "laptop" / "counting", "mae", seed)
        path.write_text(read_run(path).model_copy(update={"data": "another"}).model_dump_json())
    moved = places._replace(evidence=evidence, runs=tmp_path / "runs")
    with pytest.raises(ValueError, match=r"laptop counting are not those of 2 runs .*mae-seed1"):
        run(moved, seeds=[1, 2, 3], ids=["S1"])
    assert not run_path(evidence / "laptop" / "counting", "mae", 3).exists()
    # Nor does a verdict rest on both, where the records were copied together.
    with pytest.raises(ValueError, match=r"mae-seed2.json .*standard-seed1.json .*different data"):
        verdict_on(all_claims()["S1"], "laptop", moved)


def test_a_run_whose_code_computes_otherwise_is_stale(places, tmp_path, monkeypatch):
    evidence = tmp_path / "evidence"
    shutil.copytree(places.evidence, evidence)
    path = run_path(evidence / "laptop" / "counting", "mae", 1)
    kept = read_run(path)
    changed = kept.model_copy(update={"fingerprint": [n + 0.01 for n in kept.fingerprint]})
    path.write_text(changed.model_dump_json())
    moved = places._replace(evidence=evidence, runs=tmp_path / "runs")
    verdict = verdict_on(all_claims()["S1"], "laptop", moved)
    assert (verdict.stale, verdict.seeds) == (["mae"], 2)
    with pytest.raises(FileNotFoundError, match="the folder with the data"):
        run(moved._replace(data=tmp_path / "none"), ids=["S1"], renew=True)
    assert read_run(path) == changed  # nothing goes before something takes its place
    run(moved, ids=["S1"], renew=True)
    assert verdict_on(all_claims()["S1"], "laptop", moved).stale == []
    assert [p.name for p in sorted((tmp_path / "runs/laptop/counting").glob("*seed*"))] == [
        "mae-seed1"
    ]


def test_times_over_a_baseline_that_computes_otherwise_are_stale(places, tmp_path):
    evidence = tmp_path / "evidence"
    shutil.copytree(places.evidence, evidence)
    path = evidence / "laptop" / "counting" / "times-1.json"
    kept = read_times(path)
    kept.fingerprints["standard"][0] += 0.01
    path.write_text(kept.model_dump_json())
    moved = places._replace(evidence=evidence)
    assert verdict_on(all_claims()["T1"], "laptop", moved).stale == ["standard"]


def test_measurements_of_times_that_disagree_decide_nothing(places, tmp_path):
    evidence = tmp_path / "evidence"
    shutil.copytree(places.evidence, evidence)
    figures = [(1.3, 1.25, 1.35), (1.2, 1.15, 1.25), (2.0, 1.9, 2.1)]
    for path, (value, low, high) in zip(
        times_paths(evidence / "laptop" / "counting"), figures, strict=True
    ):
        kept = read_times(path)
        kept.step["mae"] = OverRounds(value=value, low=low, high=high, rounds=7)
        path.write_text(kept.model_dump_json())
    (finding,) = verdict_on(
        all_claims()["T1"], "laptop", places._replace(evidence=evidence)
    ).findings
    assert finding.figures == "1.30× [1.15, 2.10] that of standard"
    assert finding.remark.endswith("1.30, 1.20, 2.00")


def test_times_that_another_claim_needs_are_kept(places, tmp_path):
    evidence = tmp_path / "evidence"
    shutil.copytree(places.evidence, evidence)
    path = evidence / "laptop" / "counting" / "times-1.json"
    kept = read_times(path)
    kept.fingerprints["standard"][0] += 0.01
    path.write_text(kept.model_dump_json())
    of_baseline = needed_runs(all_claims(), "laptop")["counting"]._replace(times=["standard"])
    moved = places._replace(evidence=evidence, runs=tmp_path / "runs")
    measure_times("laptop", "counting", of_baseline, moved, QUIET, renew=True)
    assert read_times(path).step.keys() == {"standard", "mae"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="times are those of a GPU")
def test_times_are_those_of_one_thread(places, tmp_path):
    shutil.copytree(places.evidence, tmp_path / "evidence")
    path = tmp_path / "evidence" / "laptop" / "counting" / "times-1.json"
    path.unlink()
    needed = needed_runs(all_claims(), "laptop")["counting"]
    moved = places._replace(evidence=tmp_path / "evidence", runs=tmp_path / "runs")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measure_times("laptop", "counting", needed, moved, QUIET)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert read_times(path).machine.endswith(", 1 thread")


def test_an_interrupted_claim_goes_on(places, tmp_path, monkeypatch):
    moved = places._replace(evidence=tmp_path / "evidence", runs=tmp_path / "runs")
    whole, trained = keeping.train_system, []

    def stopped(recipe, name, *others):
        if len(trained) == 1:
            raise Interrupted("stopped at step 0")
        trained.append(name)
        return whole(recipe, name, *others)

    monkeypatch.setattr(keeping, "train_system", stopped)
    with pytest.raises(Interrupted):
        run(moved, seeds=[1], ids=["S1"])
    assert trained == ["standard"]
    again = []
    monkeypatch.setattr(
        keeping,
        "train_system",
        lambda recipe, name, *o: again.append(name) or whole(recipe, name, *o),
    )
    run(moved, seeds=[1], ids=["S1"])
    assert again == ["mae"]
    found = verdict_on(all_claims()["S1"], "laptop", moved)
    assert found.kind == "cannot be told"
    assert "more than one seed" in found.findings[0].remark


@pytest.fixture(scope="module")
def tuned(places, tmp_path_factory):
    """An experiment whose systems have chosen."""
    needed = needed_runs(find_claims(["S1"]), "laptop")["counting"]
    folder = tmp_path_factory.mktemp("tuned")
    moved = places._replace(evidence=folder / "evidence", runs=folder / "runs")
    run_experiment("laptop", "chosen", needed, [1], moved, QUIET)
    return Conditions("laptop", "chosen", moved)


def test_systems_choose_once_from_equal_tries(tuned):
    chosen = tuned.own
    for system in ("standard", "mae"):
        tries = read_tries(tuning_path(chosen.evidence, system)).tries
        assert len(tries.tries) == 2
        assert tries.tries[tries.chosen].values == {"training.learning_rate": 1e-2}
    assert tuned.choice("mae") == [(("training", "learning_rate"), 1e-2)]
    stored = (chosen.runs / "mae-seed1" / "recipe.yaml").read_text()
    assert "learning_rate: 0.01" in stored


def test_runs_count_after_the_call_in_which_their_systems_have_chosen(tuned):
    for system in ("standard", "mae"):
        kept = kept_runs(tuned.own.evidence, Subject(system=system), tuned.recipe(system, None))
        assert [each.run.seed for each in kept] == [1]


@pytest.mark.parametrize(
    ("values", "steps", "count"),
    [("1e-4,1e-2", 3, True), ("1e-3,1e-2", 3, False), ("1e-4,1e-2", 2, False)],
)
def test_tries_of_other_values_count_for_nothing(tuned, values, steps, count):
    grid = parse_grid([f"training.learning_rate={values}"], steps)
    found = tries_of(tuned.plain, tuned.own.evidence, "mae", grid)
    assert (found is not None) == count


def test_the_plan_counts_minutes_and_what_is_there(places):
    needed = with_needs(needed_runs(find_claims(["S1"]), "laptop"), "laptop")
    measure_seconds("laptop", "counting", needed["counting"], places, QUIET)
    rows = plan(needed, "laptop", 5, places)
    assert [(row.system, row.runs, row.kept, row.steps) for row in rows] == [
        ("standard", 5, 2, 6),
        ("mae", 5, 2, 6),
    ]
    for row in rows:
        runs = [read_run(run_path(own(places).evidence, row.system, seed)) for seed in (1, 2)]
        assert row.each == pytest.approx(np.mean([run.minutes for run in runs]))
        assert (row.total, row.left) == pytest.approx((5 * row.each, 3 * row.each))
        assert row.seconds > 0


def test_the_plan_takes_single_steps_where_there_is_no_run(places, tmp_path):
    needed = needed_runs(find_claims(["S1"]), "laptop")
    empty = places._replace(evidence=tmp_path / "evidence")
    assert all(row.left is None for row in plan(needed, "laptop", 5, empty))
    measure_seconds("laptop", "counting", needed["counting"], empty, QUIET)
    for row in plan(needed, "laptop", 5, empty):
        assert row.each == pytest.approx(6 * row.seconds * 1.15 / 60)
        assert row.left == row.total == pytest.approx(5 * row.each)


def test_the_commands(places, tmp_path):
    def told(*arguments):
        done = CliRunner().invoke(app, ["claims", *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    evidence = ("--evidence", str(places.evidence))
    assert "Gates make it" in told(*evidence)
    assert "S1: " in told("run", "S1", "--seeds", "2", *evidence, "--runs", str(tmp_path / "runs"))
    assert "mae" in told("plan", "S1", *evidence)
    for arguments, said in (([], "all claims at scale laptop take"), (["S1", "--all"], "--all is")):
        done = CliRunner().invoke(app, ["claims", "run", *arguments, *evidence])
        assert (done.exit_code, said in done.output.replace("\n", " ")) == (2, True), done.output
    page = tmp_path / "claims.md"
    told("page", "--output", str(page), *evidence)
    text = page.read_text(encoding="utf-8")
    assert "### S1" in text and "2 seeds" in text and "| `laptop` |" in text
    scores = [read_run(run_path(own(places).evidence, "mae", n)).scores[0].value for n in (1, 2)]
    section = text.partition("### Experiment counting")[2]
    assert f"| {np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f} |" in section
    named = {path.partition(")")[0] for path in text.split("](pictures/")[1:]}
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == named
    assert {f"claims-laptop-counting-{kind}.svg" for kind in ("differences", "losses")} < named


def test_wrong_names_are_errors():
    for arguments, message in (
        (["run", "S9"], "there is no claim 'S9'"),
        (["--scale", "laptops"], "did you mean 'laptop'"),
    ):
        done = CliRunner().invoke(app, ["claims", *arguments])
        assert (done.exit_code, message in done.output) == (2, True), done.output


def test_folders_that_are_not_there_are_errors(tmp_path):
    page, missing = tmp_path / "claims.md", str(tmp_path / "missing")
    page.write_text("a page", encoding="utf-8")
    for arguments, message in (
        (["page", "--output", str(page), "--evidence", missing], "--evidence is"),
        (["--evidence", missing], "--evidence is"),
        (["why", "--evidence", missing], "--evidence is"),
    ):
        done = CliRunner().invoke(app, ["claims", *arguments], env={"COLUMNS": "1000"})
        assert (done.exit_code, message in done.output) == (2, True), done.output
    assert page.read_text(encoding="utf-8") == "a page"
    assert [path.name for path in tmp_path.iterdir()] == ["claims.md"]


@pytest.mark.parametrize(("raised", "kind"), [(5.0, "contradicted"), (0.0, "cannot be told")])
def test_where_no_run_gets_down_to_the_baselines_loss_the_losses_tell(
    places, tmp_path, raised, kind
):
    evidence = tmp_path / "evidence"
    shutil.copytree(places.evidence, evidence)
    for path in evidence.rglob("*-seed*.json"):
        record = json.loads(path.read_text())
        of_mae = raised if record["system"] == "mae" else 0.0
        apart = 0.01 * record["seed"]
        record["history"] = [
            {"step": 3, "eval_loss": 5.0 + of_mae + apart},
            {"step": 6, "eval_loss": 4.0 + of_mae + apart},
        ]
        path.write_text(json.dumps(record))
    (finding,) = verdict_on(
        all_claims()["W1"], "laptop", places._replace(evidence=evidence)
    ).findings
    assert finding.kind == kind
    assert ("no run gets down" in finding.remark) == (raised > 0)
    if raised:
        assert finding.difference.startswith("lowest losses +5.000 [")
        assert finding.standing is None
