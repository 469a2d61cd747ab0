"""Further test sets of runs, and finished runs on other data and against each other."""

import json
import re
import shutil
from dataclasses import replace

import evaluated
import numerals
import pytest
import tiny_tasks
from rich.console import Console
from torchrun import on_copies
from typer.testing import CliRunner

from headwise.analysis.results import RunResult
from headwise.cli import app
from headwise.recipes import load_recipe
from headwise.recipes.catalogue import TASKS
from headwise.report.comparison import render_report
from headwise.report.table import comparison_table
from headwise.runs import evaluating, one_run, reading
from headwise.runs.comparing import compare_systems
from headwise.runs.evaluating import compare_runs, evaluate_run, read_outcome
from headwise.runs.one_run import train_system
from headwise.runs.preparing import prepare_task

QUIET = Console(quiet=True)
RECIPE = "numerals.yaml"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a corpus, its recipe and two more test sets."""
    folder = tmp_path_factory.mktemp("world")
    numerals.write_recipe(folder)
    for name, seed in (("short", 3), ("other", 4)):
        for side, lines in zip(
            ("en", "fr"), zip(*numerals.pairs(20, seed), strict=True), strict=True
        ):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{name}.{side}").write_text(text, encoding="utf-8")
    return folder


def of(world, *names, changes=()):
    """The recipe with further test sets."""
    sides = {"source": "en", "target": "fr"}
    tests = [f"data.tests.{n}.{key}={world}/{n}.{end}" for n in names for key, end in sides.items()]
    return load_recipe(str(world / RECIPE), [*tests, *changes])


def train(recipe, folder, name="run"):
    task = prepare_task(recipe, folder, QUIET)
    return train_system(recipe, name, folder, task, QUIET)


@pytest.fixture(scope="module")
def run(world):
    """A finished run with one further test set."""
    train(of(world, "short").system("mae"), world / "run")
    return world / "run"


@pytest.fixture(scope="module")
def rival(world):
    """A finished run of another system with another vocabulary, on the same test part."""
    changes = ["tokenizer.vocab_size=270", "training.learning_rate=1e-2"]
    train(of(world, changes=changes).system("standard"), world / "rival")
    return world / "rival"


# Further test sets of a run


def test_a_run_is_scored_on_each_and_keeps_all_of_it(run):
    result = RunResult.model_validate_json((run / "result.json").read_text())
    outcome = read_outcome(run, "short")
    assert result.tests == {"short": outcome.scores}
    assert len(outcome.items["BLEU"]) == 20 != len(read_outcome(run).items["BLEU"])
    assert len((run / "outputs-short.txt").read_text().splitlines()) == 20


def test_one_that_comes_later_is_scored_without_training(world, run, tmp_path, monkeypatch):
    recipe = of(world, "short").system("mae")
    shutil.copytree(run, tmp_path / "run")
    before = RunResult.model_validate_json((run / "result.json").read_text())
    scored = []
    evaluate = evaluating.evaluate

    def spy(model, task, items, *others):
        scored.append(len(items))
        return evaluate(model, task, items, *others)

    monkeypatch.setattr(one_run, "run_training", None)  # nothing is trained again
    monkeypatch.setattr(evaluating, "evaluate", spy)
    later = of(world, "short", "other").system("mae")
    after = train(later, tmp_path / "run")
    assert scored == [20]  # the new one alone
    assert after.tests["short"] == before.tests["short"]
    assert after.model_copy(update={"tests": before.tests}) == before
    assert reading.read_recipe(tmp_path / "run") == later
    assert train(later, tmp_path / "run") == after and len(scored) == 1
    # A run that is asked for fewer keeps what it has.
    assert train(recipe, tmp_path / "run").tests == before.tests
    assert train(later, tmp_path / "run") == after and len(scored) == 1


def test_one_whose_data_have_changed_is_scored_again(world, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    before = {path: path.read_text() for path in world.glob("short.*")}
    try:
        for path, text in before.items():
            path.write_text("".join(text.splitlines(keepends=True)[:12]))
        train(of(world, "short").system("mae"), tmp_path / "run")
    finally:
        for path, text in before.items():
            path.write_text(text)
    assert len(read_outcome(tmp_path / "run", "short").items["BLEU"]) == 12


@pytest.mark.slow
def test_a_comparison_has_a_table_of_them(world, tmp_path):
    file = of(world, "short", "other")
    found = compare_systems(file, ["standard", "mae"], [1, 2], tmp_path / "c", "", QUIET)
    differences = {
        (system.name, name): test.difference
        for system in found.systems
        for name, test in system.tests.items()
    }
    assert differences["standard", "short"] is None
    judged = [each for each in differences.values() if each is not None]
    # Holm's method: the smallest of all p-values of the table times their number.
    least = min(judged, key=lambda each: each.p_value)
    assert len(judged) == 2
    assert least.corrected_p_value == pytest.approx(min(1, 2 * least.p_value))
    scores = [run.tests["other"][0].value for run in found.systems[1].runs]
    estimate = found.systems[1].tests["other"].estimates["BLEU"]
    assert estimate.value == pytest.approx(sum(scores) / 2)
    page = render_report(found)
    table = page[page.index("Other test sets</h2>") : page.index("Learning curves</h2>")]
    assert table.count(f"{estimate.value:.1f}") and "short<small>chrF" in table
    for width, tables in ((100, 1), (45, 2)):
        with (console := Console(width=width)).capture() as captured:
            console.print(comparison_table(found))
        text = captured.get()
        assert text.count("Other test sets") == tables


# Several processes


@pytest.mark.slow
def test_processes_that_divide_a_part_find_what_one_does(runs_of_all_tasks, tmp_path):
    runs, expected = runs_of_all_tasks
    on_copies(4, evaluated.__file__, tmp_path / "found", *runs)
    for rank in range(4):
        found = json.loads((tmp_path / f"found-{rank}").read_text())
        for task, outcome in expected.items():
            # repr(), since NaN equals nothing.
            assert repr(found[task]) == repr(outcome), (rank, task)


@pytest.fixture(scope="module")
def runs_of_all_tasks(tmp_path_factory):
    """A finished run of each task, and what this process finds when it evaluates them."""
    folder, runs = tmp_path_factory.mktemp("tasks"), []
    for task in TASKS:
        file = load_recipe(str(tiny_tasks.write_recipe(task, folder)))
        train(file.system("moa"), folder / task)
        runs.append(folder / task)
    return runs, json.loads(json.dumps(evaluated.outcomes(runs)))


# Finished runs


def headwise(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_name_of_a_folder_is_printed_as_it_is(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "mae[/b]:smile:")
    (folder / "corpus.sha256").write_text("0" * 64)
    done = headwise("evaluate", folder, "--ablate", "moh=uniform")
    assert f"{folder.name} was trained on other data than these\n" in done.stdout
    assert f"changes nothing: {folder.name} has no system of" in " ".join(done.stdout.split())


def test_other_data_are_scored_with_the_encoding_of_the_run(world, run):
    data = f"source={world}/short.en, target={world}/short.fr"
    found = evaluate_run(run, "test", QUIET, data=data)
    assert found.outcome.items == read_outcome(run, "short").items
    done = headwise("evaluate", run, "--data", data)
    assert re.search(r"^other: 20 pairs .*short\.en \(SHA-256 [0-9a-f]{12}\)", done.stdout, re.M)
    assert not (run / "outcome-other.json").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "sorce=a,target=b",
            "no key 'data.tests.other.sorce'; did you mean 'source'?\n  known: corpus",
        ),
        ("source=a", "data.tests.other.target is missing"),
        ("source", "expected key.key=value"),
        ("source={world}/short.en,target={world}/train.fr", "short.en has 20 lines and"),
    ],
)
def test_wrong_data_are_errors_that_name_the_keys(world, run, data, message):
    done = headwise("evaluate", run, "--data", data.format(world=world))
    assert done.exit_code == 2 and done.stdout == ""
    assert message in done.stderr


@pytest.mark.parametrize(
    "change", ["training.learning_rate=1", "model.embed_dim=32", "tokenizer.vocab_size=300"]
)
def test_keys_that_evaluation_does_not_read_are_refused(run, change):
    done = headwise("evaluate", run, "--set", change)
    assert done.exit_code == 2
    key = change.partition("=")[0]
    assert f"a finished run does not read {key}; expected keys of data, evaluation" in done.stderr
    done = headwise("predict", run, "--set", "data.max_length=3")
    assert "expected keys of evaluation" in done.stderr


def test_data_with_other_classes_than_the_model_has_are_refused(tmp_path):
    recipe = load_recipe(str(tiny_tasks.write_recipe("classification", tmp_path)))
    train(recipe.system("standard"), tmp_path / "run")
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("one two\tbrief\n" * 3)
    message = r"need a model whose id2label is .*'brief'.*, but that of .*run is .*; give the data "
    with pytest.raises(ValueError, match=message):
        evaluate_run(tmp_path / "run", "validation", QUIET)


# One run against another


def first_by(outcome, name):
    """The outcome with one score alone."""
    scores = [score for score in outcome.scores if score.name == name]
    return outcome.model_copy(update={"scores": scores})


def test_two_runs_are_tested_on_what_they_have_stored(run, rival, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(evaluating, "evaluate", None)  # nothing is evaluated again
        found, other = (evaluate_run(r, "test", QUIET, may_be_stored=True) for r in (run, rival))
        # By chrF, which is not 0 for either.
        found, other = (replace(r, outcome=first_by(r.outcome, "chrF")) for r in (found, other))
        difference = compare_runs(found, other)
        back = compare_runs(other, found)
    chrf = [each.outcome.scores[0].value for each in (found, other)]
    assert chrf[0] != chrf[1] and difference.value == pytest.approx(chrf[0] - chrf[1])
    assert difference.source == "items" and difference.low <= difference.value <= difference.high
    assert (back.value, back.p_value) == (pytest.approx(-difference.value), difference.p_value)


def test_runs_on_other_items_are_refused(world, run, rival):
    found = evaluate_run(run, "test", QUIET, may_be_stored=True)
    other = evaluate_run(rival, "validation", QUIET)
    with pytest.raises(ValueError, match=r"not scored on the same items.*\n.*run: \d+ pairs"):
        compare_runs(found, other)
    tokenized = evaluate_run(rival, "test", QUIET, changes=["evaluation.bleu=tokenized"])
    with pytest.raises(ValueError, match="expected scores that are computed alike"):
        compare_runs(found, tokenized)


def test_perplexities_of_different_vocabularies_are_refused(tmp_path):
    path = tiny_tasks.write_recipe("language-modelling", tmp_path)
    for name, size in (("a", 280), ("b", 270), ("c", 280)):
        recipe = load_recipe(str(path), [f"tokenizer.vocab_size={size}"])
        recipe = recipe.system("moa" if name == "c" else "standard")
        train(recipe, tmp_path / name)
    a, b, c = (evaluate_run(tmp_path / name, "test", QUIET) for name in "abc")
    with pytest.raises(ValueError, match="equal data, tokenizer, block_length"):
        compare_runs(a, b)
    assert compare_runs(a, c) is not None
