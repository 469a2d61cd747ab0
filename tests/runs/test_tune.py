"""Tuning gives all systems the same values to choose from, by the validation part alone."""

import math
import shutil
from types import SimpleNamespace

import pytest
from support.run_folders import (
    compare,
    comparison,
    has_checkpoint,
    recipe_of,
    result,
    runs,
    set_loss,
    trials,
)
from support.small_world import EVALUATE_EVERY, STEPS, tokens_of, watched
from support.tiny_tasks import read_json

from headwise.runs.tuning import combinations, parse_grid, trial_name

KEY = "training.learning_rate"
FROM_RUN = "model.pretrained=run-seed{seed}"
RATES = [0.001, 0.02, 1e30]  # with the last of which no loss is a number
GRID = ("--tune", f"{KEY}=" + ",".join(map(str, RATES)))


@pytest.fixture(scope="module")
def tuned(recipe, tmp_path_factory):
    """Two systems that were tuned; and what the models of the trials, and all later ones, saw."""
    folder = tmp_path_factory.mktemp("runs") / "tuned"
    with watched() as seen:
        compare(recipe, folder, "standard,gated", *GRID)
    trained = [number for number, each in enumerate(seen) if each.batches]
    first_run = trained[2 * len(RATES)]
    return SimpleNamespace(folder=folder, trials=seen[:first_run], runs=seen[first_run:])


@pytest.fixture
def copied(tuned, tmp_path):
    """A copy of the tuned comparison, to go on in."""
    return shutil.copytree(tuned.folder, tmp_path / "runs")


def test_all_systems_try_the_same_values_with_the_same_batches(tuned):
    for system in ("standard", "gated"):
        assert [each.values for each in trials(tuned.folder, system)] == [{KEY: r} for r in RATES]
    batches = [each.batches for each in tuned.trials if each.batches]
    ends_early = EVALUATE_EVERY  # where the first loss that is no number is seen
    assert [len(each) for each in batches] == 2 * [STEPS, STEPS, ends_early]
    assert all(each == batches[0][: len(each)] for each in batches)
    # The trials have a seed that no run has, so that none is favoured by its chance.
    run_batches = next(each.batches for each in tuned.runs if each.batches)
    assert run_batches != batches[0]


def test_the_lowest_validation_loss_is_chosen_and_trained(tuned):
    for system in ("standard", "gated"):
        attempts = trials(tuned.folder, system)
        assert [math.isnan(each.loss) for each in attempts] == [False, False, True]
        (best,) = (each for each in attempts if each.is_chosen)
        assert best.loss == min(each.loss for each in attempts[:2])
        trained = recipe_of(tuned.folder / f"{system}-seed1")["training"]
        assert trained["learning_rate"] == best.values[KEY]
        assert (trained["max_steps"], trained["seed"]) == (STEPS, 1)


def test_of_trials_the_figures_are_kept_and_no_weights(tuned):
    for file in tuned.folder.rglob("*.json"):  # also where a loss is no number
        assert read_json(file.read_text(encoding="utf-8"))
    for run in tuned.folder.glob("trials/*/*"):
        assert (run / "result.json").is_file() and not has_checkpoint(run)
        assert not (run / "model").exists() and not (run / "outcome.json").exists()


def test_trials_of_other_values_have_other_folders():
    options = [
        "training.adam_betas=[0.9,0.98],[0.9,0.999]",
        "model.attention={system: moa, size: 2K4E8D},{system: moa, size: 4K4E8D},a/b",
    ]
    names = [trial_name(combination) for combination in combinations(parse_grid(options))]
    assert len(names) == len(set(names)) == 6
    assert not any("/" in name or len(name) > 200 for name in names)


def test_trials_are_shown_nothing_of_the_test_part(tuned, recipe):
    run = tuned.folder / "standard-seed1"
    train, validation, test = (
        set(tokens_of(recipe.parent, part, run)) for part in ("train", "validation", "test")
    )
    assert not test & (train | validation)
    seen = set().union(*(each.evaluated for each in tuned.trials))
    seen |= {text for each in tuned.trials for batch in each.batches for text in batch}
    assert validation <= seen <= train | validation
    assert test <= set().union(*(each.evaluated for each in tuned.runs))


def test_of_equal_losses_the_first_is_chosen_and_a_choice_at_the_edge_is_told(copied, recipe):
    """A loss that is no number is never chosen, wherever it comes."""
    for system, losses in (("standard", [0.5, 0.5, math.nan]), ("gated", [math.nan, 0.5, 0.7])):
        for value, loss in zip(("0.001", "0.02", "1e+30"), losses, strict=True):
            set_loss(copied, system, value, loss)
        shutil.rmtree(copied / f"{system}-seed1")
    for run in copied.glob("trials/*/*"):
        (run / "model").mkdir()  # as a trial has that a command of --print-commands has trained
    text = compare(recipe, copied, "standard,gated", *GRID)
    chosen = {
        system: [each.values[KEY] for each in trials(copied, system) if each.is_chosen]
        for system in ("standard", "gated")
    }
    assert chosen == {"standard": [0.001], "gated": [0.02]}
    for system, ((rate,)) in chosen.items():
        assert recipe_of(copied / f"{system}-seed1")["training"]["learning_rate"] == rate
    notes = {name: tuning["notes"] for name, tuning in comparison(copied)["tuning"].items()}
    assert notes["gated"] == [] and not [*copied.glob("trials/*/*/model")]
    (note,) = notes["standard"]
    assert f"{KEY}=0.001" in note and note in text.replace("\n", " ")


def chosen_rate(folder, system):
    (best,) = (each for each in trials(folder, system) if each.is_chosen)
    return str(best.values[KEY])


def test_runs_of_another_choice_do_not_pass_for_those_of_this_one(copied, recipe):
    other = next(value for value in ("0.001", "0.02") if value != chosen_rate(copied, "gated"))
    set_loss(copied, "gated", other, 0.0)
    before = result(copied / "gated-seed1")
    text = compare(recipe, copied, "standard,gated", *GRID, status=2)
    assert all(part in text for part in ("gated-seed1", KEY, "0.02", "0.001"))
    assert result(copied / "gated-seed1") == before


def test_where_every_try_diverges_the_system_is_named_and_no_run_is_trained(recipe, tmp_path):
    grid = ("--tune", f"{KEY}=1e29,1e30")
    assert "standard" in compare(recipe, tmp_path / "runs", "standard", *grid, status=2)
    assert not runs(tmp_path / "runs")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tune", "training.max_steps=5,6"), ["max_steps"]),  # one budget
        (("--tune", "training.seed=1,2"), ["seed"]),
        (("--tune", "data.max_length=16,32"), ["data.max_length"]),  # the same data
        (("--tune", f"{KEY}=0.1"), [KEY, "0.1"]),  # no choice
        (("--tune", f"{KEY}=0.1,0.1"), [KEY, "0.1"]),
        (("--tune", "model.ffn_dim=8,16", "--match", "parameters"), ["--match", "ffn_dim"]),
        (("--tune", f"{KEY}=0.1,0.2", "--set", f"{KEY}=0.3"), [KEY]),
        # There is no such run with the seed of the trials.
        (
            ("--tune", f"{KEY}=0.1,0.2", "--set", "tokenizer=null", "--set", FROM_RUN),
            ["run-seed{seed}", "1000000"],
        ),
        # Tuning would undo what the recipe sets for one system.
        (("--tune", f"{KEY}=0.1,0.2", "--systems", "standard,diverging"), [KEY, "diverging"]),
    ],
)
def test_what_would_be_unfair_to_tune_is_refused_before_anything_is_read(
    recipe, tmp_path, options, words
):
    text = compare(recipe, tmp_path / "runs", "standard", *options, status=2)
    assert all(word in text for word in words)
    assert not (tmp_path / "runs").exists()
