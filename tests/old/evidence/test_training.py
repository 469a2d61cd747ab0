"""Runs of claims: shared, kept, moved, interrupted, and out of date."""

import shutil

import numpy as np
import pytest
import tiny_claims
import torch
from rich.console import Console
from typer.testing import CliRunner

from evidence import training
from evidence.__main__ import app
from evidence.claims import all_claims
from evidence.experiments import Conditions, needed_runs, wanted_ablations
from evidence.judging import verdict_on
from evidence.planning import plan
from evidence.results import Run, Times, Tried, sound
from evidence.training import AskedRun, measure_times, run_experiment
from headwise.analysis.results import TryResult
from headwise.analysis.speed import OverRounds
from headwise.runs.one_run import SystemRun
from headwise.runs.tuning import TryRun
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
    """Folders in which all claims were run with two seeds."""
    places = tiny_claims.places_in(tmp_path_factory.mktemp("claims"))
    run(places, ids=list(all_claims()))
    return places


def run(places, seeds=(1, 2), ids=(), **how):
    for name, of in needed(*ids).items():
        conditions = Conditions("laptop", name, places)
        run_experiment(conditions, of.systems, seeds, QUIET, **how)
        if of.times:
            measure_times(conditions, of.times, QUIET)


def needed(*ids):
    return needed_runs({name: all_claims()[name] for name in ids}, "laptop")


def own(places):
    return Conditions("laptop", "counting", places)


def moved(places, folder):
    """The folders with a copy of the results, to be changed."""
    shutil.copytree(places.results, folder / "results")
    return places._replace(results=folder / "results", runs=folder / "runs")


def changed(places, seed, **changes):
    """Changes the record of a run of MAE."""
    table = own(places).table
    (kept,) = [run for run in table.find(Run, at="", system="mae") if run.seed == seed]
    table.put(kept.model_copy(update=changes))


def moved_times(places, folder, **changes):
    """The folders with a copy in which the first measurement of times is changed."""
    other = moved(places, folder)
    table = own(other).table
    table.put(table.find(Times)[0].model_copy(update=changes))
    return other


def test_claims_share_runs():
    of_all = needed(*all_claims())["counting"]
    assert of_all.systems == {None: ["mae", "standard"]}
    assert of_all.times == ["mae"]
    # Whoever asks, all that any claim wants of a run is kept.
    losses, scores = wanted_ablations("laptop", "counting", "mae")
    assert (len(losses), scores) == (4, ["mae=uniform"])
    assert not needed_runs(all_claims(), "gpu")


def test_what_is_kept_of_a_run(places):
    _, found = own(places).runs("mae", None)
    assert (found.system, found.seed, found.steps) == ("mae", 2, 6)
    losses, _ = wanted_ablations("laptop", "counting", "mae")
    assert found.ablations.keys() == set(losses)
    assert found.scores[0].name == found.ablated_scores["mae=uniform"][0].name == "BLEU"
    assert set(found.rows) == {
        *("BLEU", "BLEU with mae=uniform", "loss", *(f"loss with {text}" for text in losses))
    }
    assert not list(places.runs.rglob("checkpoint-*"))
    measured = own(places).table.find(Times)
    assert [times.step.keys() for times in measured] == [{"standard", "mae"}] * 3


def test_a_run_lacks_scores_under_an_ablation_whose_loss_it_has(places, monkeypatch):
    asked = AskedRun(own(places), "mae", None, 1)
    assert asked.record() is not None
    wanted = (["mae=random"], ["mae=random"])
    monkeypatch.setattr(training, "wanted_ablations", lambda *of: wanted)
    assert asked.record() is None


@pytest.mark.parametrize("name", ["S1", "L1", "E1", "T1", "F1"])
def test_every_kind_of_quantity_has_a_verdict(places, name):
    verdict = verdict_on(all_claims()[name], "laptop", places)
    assert verdict.kind != "not run"
    assert all(finding.figures or finding.difference for finding in verdict.findings)
    assert not verdict.stale
    if name not in ("T1", "F1"):
        assert verdict.seeds == 2


def test_what_is_kept_is_not_trained_again_on_another_machine(places, tmp_path, monkeypatch):
    other = places._replace(runs=tmp_path / "runs", data=tmp_path / "no-data")
    monkeypatch.setattr(SystemRun, "train", None)
    run(other, ids=["S1", "L1", "T1"])
    assert not other.runs.exists()


def test_a_claim_whose_entry_fails_is_not_testable(places):
    verdict = verdict_on(all_claims()["C1"], "laptop", places)
    assert (verdict.kind, verdict.because) == ("not testable here", "neither is above chance")
    assert len(verdict.entry) == len(verdict.findings) == 1


def test_collapsed_runs_are_counted_apart(places, tmp_path):
    other = moved(places, tmp_path)
    for run in own(other).table.find(Run, system="mae"):
        last = {"step": 6, "eval_loss": 3.0 + 0.2 * (run.seed - 1)}
        own(other).table.put(run.model_copy(update={"history": [*run.history, last]}))
    whole, left = own(other).runs("mae", None), sound(own(other).runs("mae", None))
    assert ([run.seed for run in whole], [run.seed for run in left]) == ([1, 2], [1])
    verdict = verdict_on(all_claims()["S1"], "laptop", other)
    assert (verdict.runs, verdict.collapsed, verdict.seeds) == (4, 1, 1)
    changed(other, 2, history=[{"step": 6, "eval_loss": float("inf")}])
    assert verdict_on(all_claims()["S1"], "laptop", other).collapsed == 1


def test_a_run_is_trained_again_if_its_recipe_is_another(places, tmp_path, catalogue, monkeypatch):
    copied = tmp_path / "catalogue"
    shutil.copytree(catalogue, copied)
    recipe = copied / "recipes" / "counting.yaml"
    recipe.write_text(recipe.read_text().replace("max_steps: 6", "max_steps: 5"))
    tiny_claims.use(copied, monkeypatch)
    assert verdict_on(all_claims()["S1"], "laptop", places).kind == "not run"


def test_runs_on_other_data_are_not_added_to_those_that_are_kept(places, tmp_path):
    other = moved(places, tmp_path)
    for seed in (1, 2):
        changed(other, seed, data="another")
    with pytest.raises(ValueError, match=r"laptop counting are not those of 2 runs .*mae seed 1"):
        run(other, seeds=[1, 2, 3], ids=["S1"])
    assert len(own(other).runs("mae", None)) == 2
    # Nor does a verdict rest on both, where the records were copied together.
    with pytest.raises(ValueError, match=r"mae seed 2 .*standard seed 1 .*different data"):
        verdict_on(all_claims()["S1"], "laptop", other)


def test_a_run_whose_code_computes_otherwise_is_stale(places, tmp_path):
    other = moved(places, tmp_path)
    kept = own(other).runs("mae", None)[0]
    changed(other, 1, fingerprint=[number + 0.01 for number in kept.fingerprint])
    before = own(other).table.path.read_bytes()
    verdict = verdict_on(all_claims()["S1"], "laptop", other)
    assert (verdict.stale, verdict.seeds) == (["mae"], 2)
    with pytest.raises(FileNotFoundError, match="the folder with the data"):
        run(other._replace(data=tmp_path / "none"), ids=["S1"], renew=True)
    assert own(other).table.path.read_bytes() == before  # nothing goes before its place is taken
    run(other, ids=["S1"], renew=True)
    assert verdict_on(all_claims()["S1"], "laptop", other).stale == []
    assert [p.name for p in (other.runs / "laptop/counting").glob("*seed*")] == ["mae-seed1"]


def test_a_finished_run_of_other_code_is_trained_again(places, tmp_path):
    other = moved(places, tmp_path)
    shutil.copytree(places.runs, other.runs)
    asked = AskedRun(own(other), "mae", None, 1)
    changed(other, 1, fingerprint=[number + 0.01 for number in asked.record().fingerprint])
    before = (asked.folder / "result.json").stat().st_mtime_ns
    run(other, ids=["S1"], renew=True)
    assert (asked.folder / "result.json").stat().st_mtime_ns > before
    assert asked.record(renew=True) is not None


def test_a_finished_run_whose_record_is_lost_is_trained_again(places, tmp_path):
    other = moved(places, tmp_path)
    shutil.copytree(places.runs, other.runs)
    table = own(other).table
    lines = table.path.read_text().splitlines(keepends=True)
    (lost,) = [line for line in lines if own(other).runs("mae", None)[0].model_dump_json() in line]
    table.path.write_text("".join(line for line in lines if line != lost))
    run(other, ids=["S1"])
    assert [run.seed for run in own(other).runs("mae", None)] == [1, 2]


def test_times_over_a_baseline_that_computes_otherwise_are_stale(places, tmp_path):
    other = moved_times(places, tmp_path, fingerprints=of_other_code(places))
    assert verdict_on(all_claims()["T1"], "laptop", other).stale == ["standard"]


def of_other_code(places):
    """The fingerprints of the first measurement of times, with another one of the baseline."""
    kept = own(places).table.find(Times)[0].fingerprints
    return {**kept, "standard": [number + 0.01 for number in kept["standard"]]}


def test_measurements_of_times_that_disagree_decide_nothing(places, tmp_path):
    other = moved(places, tmp_path)
    table = own(other).table
    figures = [(1.3, 1.25, 1.35), (1.2, 1.15, 1.25), (2.0, 1.9, 2.1)]
    for times, (value, low, high) in zip(table.find(Times), figures, strict=True):
        of_mae = OverRounds(value=value, low=low, high=high, rounds=7)
        table.put(times.model_copy(update={"step": {**times.step, "mae": of_mae}}))
    (finding,) = verdict_on(all_claims()["T1"], "laptop", other).findings
    assert finding.figures == "1.30× [1.15, 2.10] that of standard"
    assert finding.remark.endswith("1.30, 1.20, 2.00")


def test_times_that_another_claim_needs_are_kept(places, tmp_path):
    other = moved_times(places, tmp_path, fingerprints=of_other_code(places))
    measure_times(own(other), ["standard"], QUIET, renew=True)
    measured = own(other).table.find(Times)[0]
    assert measured.step.keys() == {"standard", "mae"}
    assert measured != own(places).table.find(Times)[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="times are those of a GPU")
def test_times_are_those_of_one_thread(places, tmp_path):
    other = moved_times(places, tmp_path, fingerprints={})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measure_times(own(other), ["mae"], QUIET)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert own(other).table.find(Times)[0].machine.endswith(", 1 thread")


def test_an_interrupted_claim_goes_on(places, tmp_path, monkeypatch):
    moved = places._replace(results=tmp_path / "results", runs=tmp_path / "runs")
    whole, trained = SystemRun.train, []

    def stopped(run, console):
        if len(trained) == 1:
            raise Interrupted("stopped at step 0")
        trained.append(run.system)
        return whole(run, console)

    monkeypatch.setattr(SystemRun, "train", stopped)
    with pytest.raises(Interrupted):
        run(moved, seeds=[1], ids=["S1"])
    assert trained == ["standard"]
    again = []
    monkeypatch.setattr(
        SystemRun, "train", lambda run, console: again.append(run.system) or whole(run, console)
    )
    run(moved, seeds=[1], ids=["S1"])
    assert again == ["mae"]
    found = verdict_on(all_claims()["S1"], "laptop", moved)
    assert found.kind == "cannot be told"
    assert "more than one seed" in found.findings[0].remark


@pytest.fixture(scope="module")
def tuned(places, tmp_path_factory):
    """An experiment whose systems have chosen."""
    folder = tmp_path_factory.mktemp("tuned")
    other = places._replace(results=folder / "results", runs=folder / "runs")
    conditions = Conditions("laptop", "chosen", other)
    run_experiment(conditions, {None: ["mae", "standard"]}, [1], QUIET)
    return conditions


def test_systems_choose_once(tuned):
    for system in ("standard", "mae"):
        kept = tuned.chosen(system)
        rates = [each.values["training.learning_rate"] for each in kept.tries.tries]
        # One beyond the better end at least, and two dropouts more at the rate of choice.
        assert len(rates) == len(set(rates)) + 2 >= 5
        assert kept.values["training.learning_rate"] in rates
    rate = tuned.chosen("mae").values["training.learning_rate"]
    assert (("training", "learning_rate"), rate) in tuned.choice("mae")
    stored = (tuned.run_folder / "mae-seed1" / "recipe.yaml").read_text()
    assert f"learning_rate: {rate}" in stored


def test_tries_outlast_the_folders_of_runs(tuned, tmp_path, monkeypatch):
    places = tuned.places._replace(results=tmp_path / "results", runs=tmp_path / "runs")
    other = Conditions("laptop", "chosen", places)
    *known, last = tuned.chosen("mae").tries.tries
    for tried in known:
        other.table.put(other.tried_from("mae", tried))
    trained = []
    monkeypatch.setattr(TryRun, "finished", lambda run, console: None)
    monkeypatch.setattr(
        TryRun, "train", lambda run, console: trained.append(run) or as_result(last)
    )
    training._let_choose(other, {None: ["mae"]}, {}, QUIET, 1)
    assert len(trained) == 1
    assert other.chosen("mae").values == tuned.chosen("mae").values
    assert not other.table.find(Tried)


def as_result(tried):
    return TryResult(**tried.model_dump(exclude={"values"}), history=[])


def test_runs_count_after_the_call_in_which_their_systems_have_chosen(tuned):
    for system in ("standard", "mae"):
        assert [run.seed for run in tuned.runs(system, None)] == [1]


@pytest.mark.parametrize(("values", "count"), [((1e-4, 1e-2), True), ((1e-3, 1e-2), False)])
def test_tries_of_other_values_count_for_nothing(tuned, monkeypatch, values, count):
    rate, dropout = tuned.tune
    monkeypatch.setattr(Conditions, "tune", (rate.model_copy(update={"values": values}), dropout))
    assert (tuned.chosen("mae") is not None) == count


def test_the_plan_counts_minutes_and_what_is_there(places, tmp_path):
    rows = plan(needed("S1"), [], "laptop", range(1, 6), places)
    assert [(row.system, row.runs, row.kept, row.steps) for row in rows] == [
        ("standard", 5, 2, 6),
        ("mae", 5, 2, 6),
    ]
    for row in rows:
        minutes = [run.minutes for run in own(places).runs(row.system, None)]
        assert row.each == pytest.approx(np.mean(minutes))
        assert (row.total, row.left) == pytest.approx((5 * row.each, 3 * row.each))
    empty = places._replace(results=tmp_path / "results")
    assert all(row.left is None for row in plan(needed("S1"), [], "laptop", range(1, 6), empty))


def test_the_commands(places, tmp_path):
    def told(*arguments, code=0):
        done = CliRunner().invoke(app, [*arguments, "--results", str(places.results)])
        assert done.exit_code == code, done.output
        return done.output.replace("\n", " ")

    assert "Gates make it" in told("list")
    assert "S1: " in told(
        "run", "S1", "--seeds", "2", "--first-seed", "1", "--runs", str(tmp_path / "runs")
    )
    assert "mae" in told("plan", "S1")
    assert "all claims at scale laptop take" in told("run", code=2)
    assert "--all is" in told("run", "S1", "--all", code=2)
    page = tmp_path / "claims.md"
    told("page", "--output", str(page))
    told("page", "--output", str(page), "--check")
    text = page.read_text(encoding="utf-8")
    assert "[S1](claims/tests.md#s1)" in text
    of_paper = (tmp_path / "claims/tests.md").read_text(encoding="utf-8")
    assert "## S1" in of_paper and "provisional: 2 seeds" in of_paper
    assert "the schedule ends at zero." in of_paper
    scores = [run.scores[0].value for run in own(places).runs("mae", None)]
    section = (tmp_path / "claims/experiments.md").read_text("utf-8")
    section = section.partition("## Experiment counting")[2]
    assert f"| {np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f} |" in section
    named = {path.partition(")")[0] for path in text.split("](pictures/")[1:]}
    made = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert made == named | {"claims-laptop.svg"}  # which README shows
    page.write_text(text + "by hand", encoding="utf-8")
    assert "not what the results say (claims.md)" in told(
        "page", "--output", str(page), "--check", code=1
    )
    assert page.read_text(encoding="utf-8").endswith("by hand")


def test_wrong_names_are_errors():
    for arguments, message in (
        (["run", "S9"], "has no claim and no question 'S9'"),
        (["list", "--scale", "laptops"], "did you mean 'laptop'"),
    ):
        done = CliRunner().invoke(app, arguments, env={"COLUMNS": "1000"})
        assert (done.exit_code, message in done.output) == (2, True), done.output


def test_folders_that_are_not_there_are_errors(tmp_path):
    page, missing = tmp_path / "claims.md", str(tmp_path / "missing")
    page.write_text("a page", encoding="utf-8")
    for arguments, message in (
        (["page", "--output", str(page)], "--results is"),
        (["list"], "--results is"),
        (["why"], "--results is"),
    ):
        done = CliRunner().invoke(app, [*arguments, "--results", missing])
        assert (done.exit_code, message in done.output) == (2, True), done.output
    assert page.read_text(encoding="utf-8") == "a page"
    assert [path.name for path in tmp_path.iterdir()] == ["claims.md"]
