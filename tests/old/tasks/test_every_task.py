"""Every task with every system: it trains, stops, goes on, is kept, opened and evaluated."""

import math

import pytest
import tiny_tasks
import torch
from rich.console import Console
from safetensors.torch import load_file

from headwise.analysis.results import RunResult
from headwise.recipes import load_recipe
from headwise.recipes.catalogue import TASKS
from headwise.report.comparison import render_report
from headwise.runs import one_run
from headwise.runs.comparing import compare_systems
from headwise.runs.evaluating import OUTCOME, evaluate, read_outcome
from headwise.runs.folder import RESULT
from headwise.runs.one_run import train_system
from headwise.runs.preparing import claim_folder, prepare_task
from headwise.runs.reading import open_run
from headwise.tasks.significance import LEAST_ITEMS
from headwise.training.run import Interrupted
from headwise.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("few_rounds")

QUIET = Console(quiet=True)
# Each system in translation, which has all three places, and as a model of each other kind; and
# each task with systems that differ most: none, a rule of training, a loss of their own.
ALL_SYSTEMS = ("translation", "language-modelling", "masked-language-modelling")
PAIRS = [
    (task, system)
    for task in TASKS
    for system in tiny_tasks.SYSTEMS
    if task in ALL_SYSTEMS or system in ("standard", "mae", "moa")
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A checked recipe of each task."""

    class Files(dict):
        def __missing__(self, task):
            folder = tmp_path_factory.mktemp(task)
            self[task] = load_recipe(str(tiny_tasks.write_recipe(task, folder)))
            return self[task]

    return Files()


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):
    """Finished runs, trained when they are asked for: task and system to folder."""
    found = {}

    def finished(task, system):
        if (task, system) not in found:
            folder = tmp_path_factory.mktemp(f"{task}-{system}") / "run"
            train(files[task].system(system), folder)
            found[task, system] = folder
        return found[task, system]

    return finished


def train(recipe, folder):
    claim_folder(folder, recipe)
    return train_system(recipe, "run", folder, prepare_task(recipe, folder, QUIET), QUIET)


@pytest.mark.parametrize(("task", "system"), PAIRS)
def test_a_run_is_trained_scored_and_kept(runs, files, task, system):
    folder = runs(task, system)
    recipe = files[task].system(system)
    result = RunResult.model_validate_json((folder / RESULT).read_text())
    assert result.steps == 4
    assert [r["step"] for r in result.history if "eval_loss" in r] == [2, 4]
    losses = [r["loss"] for r in result.history if "loss" in r]
    assert len(losses) == 4 and all(torch.isfinite(torch.tensor(losses)))
    assert {place.system for place in result.attention} <= set(result.words)
    assert bool(result.attention) == (system != "standard")

    opened, model = open_run(folder)
    assert opened == recipe
    kept = load_file(folder / "model" / "model.safetensors")
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name].cpu()) for name, tensor in kept.items())

    outcome = read_outcome(folder)
    assert outcome.scores == result.scores
    again = prepare_task(opened, folder, QUIET)
    found = evaluate(model, again, again.test, opened.evaluation, QUIET, "again")
    for score, expected in zip(found.scores, outcome.scores, strict=True):
        assert score.name == expected.name
        assert score.value == pytest.approx(expected.value, rel=1e-4, nan_ok=True)
    assert found.outputs == outcome.outputs
    assert found.samples == outcome.samples


LEARNED = {"positions": "learned", "ffn_activation": "gelu"}


def with_positions(recipe, positions):
    model = recipe.model.model_copy(update={**LEARNED, "max_positions": positions})
    return recipe.model_copy(update={"model": model})


@pytest.mark.parametrize("task", [task for task in TASKS if task != "speech-enhancement"])
def test_learned_positions_are_enough_or_missed_before_training(files, task, tmp_path):
    recipe = files[task].system("standard")
    given = prepare_task(recipe, tmp_path / "data", QUIET)
    needed = given.longest_input()
    result = train(with_positions(recipe, needed), tmp_path / "run")
    assert result.steps == 4
    with pytest.raises(ValueError, match=f"model.max_positions is {needed - 1}, expected at least"):
        train(with_positions(recipe, needed - 1), tmp_path / "short")
    assert not list((tmp_path / "short").glob("checkpoint-*"))


# What is remembered of a task is not of the system, nor the other way round.
@pytest.mark.parametrize(
    ("task", "system"), [pair for pair in PAIRS if pair[0] == "translation" or pair[1] == "mae"]
)
def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    runs, files, task, system, tmp_path, monkeypatch
):
    whole = runs(task, system)
    recipe = files[task].system(system)
    training_step = Trainer.training_step

    def stops(self, *args, **kwargs):
        if self.state.global_step == 2:  # Ctrl-C while the third step is taken
            self.stop.interrupted = True
        return training_step(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "training_step", stops)
        with pytest.raises(Interrupted):
            train(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / RESULT).exists()
    result = train(recipe, tmp_path / "run")
    expected = RunResult.model_validate_json((whole / RESULT).read_text())
    assert _losses(result) == _losses(expected)
    assert result.validation_loss == expected.validation_loss
    assert result.scores == expected.scores
    ours, theirs = (load_file(f / "model" / "model.safetensors") for f in (tmp_path / "run", whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def _losses(result):
    return {
        (record["step"], key): record[key]
        for record in result.history
        for key in record
        if key not in ("step", "seconds")
    }


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_comparison_shows_them_side_by_side(files, task, tmp_path, monkeypatch):
    found = compare_systems(files[task], ["standard", "moa"], [1], tmp_path / "c", "", QUIET)
    assert found.task == task
    first = [system.runs[0].scores[0] for system in found.systems]
    for system in found.systems:
        (run,) = system.runs
        outcome = read_outcome(tmp_path / "c" / f"{system.name}-seed1")
        assert list(outcome.items) == [score.name for score in run.scores]
        values = {score.name: score.value for score in run.scores if math.isfinite(score.value)}
        assert {name: mean.value for name, mean in system.estimates.items()} == values
    difference = found.systems[1].difference
    few = len(outcome.items[first[0].name]) < LEAST_ITEMS
    assert (difference is None) == few or not math.isfinite(first[0].value)
    if difference is not None:
        assert difference.value == pytest.approx(first[1].value - first[0].value, abs=1e-6)
        assert difference.source == "items" and not difference.significant
        assert 0 < difference.p_value <= 1
    page = render_report(found)
    assert first[0].name in page
    monkeypatch.setattr(one_run, "run_training", None)  # finished systems are not trained again
    again = compare_systems(files[task], ["standard", "moa"], [1], tmp_path / "c", "", QUIET)
    assert [s.runs for s in again.systems] == [s.runs for s in found.systems]
    assert (tmp_path / "c" / "standard-seed1" / OUTCOME).is_file()


@pytest.mark.parametrize("task", TASKS)
def test_a_model_of_each_task_learns(files, task, tmp_path):
    """What is trained is what is asked: the loss falls on data so easy."""
    recipe = files[task].system("standard")
    training = recipe.training.model_copy(update={"max_steps": 40, "evaluate_every": 40})
    recipe = recipe.model_copy(update={"training": training})
    result = train(recipe, tmp_path / "run")
    losses = [record["loss"] for record in result.history if "loss" in record]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
