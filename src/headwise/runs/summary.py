"""What the runs of a comparison on one data set say together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from transformers import PreTrainedModel

from headwise.analysis.how_soon import how_soon
from headwise.analysis.results import (
    Comparison,
    FurtherTest,
    SystemSummary,
    Tries,
    compare_pictures,
    compare_samples,
    diverged,
    machine,
    versions,
)
from headwise.analysis.speed import (
    DecodingSpeed,
    OverRounds,
    Rounds,
    decoding_speeds,
    relative_step_times,
)
from headwise.analysis.statistics.estimates import corrected
from headwise.analysis.statistics.seeds_and_items import compare_outcomes
from headwise.models.base import HeadwiseModel
from headwise.recipes import RecipeFile
from headwise.recipes.settings import Recipe
from headwise.runs.outcomes import TEST, read_outcome
from headwise.runs.planned import Runs
from headwise.runs.preparing import batches
from headwise.runs.reading import read_model
from headwise.tasks.outcome import Outcome
from headwise.tasks.significance import Statistic
from headwise.tasks.task import Task
from headwise.training.trained_part import freeze_all_but

_SAMPLES = 12
ROUNDS = Rounds(least=7, most=15, seconds=3.0)  # of each measurement of times


class Experiment(NamedTuple):
    """What is to be compared on one data set, and where."""

    folder: Path
    task: Task
    recipes: dict[str, Recipe]  # by system
    matched: dict[str, str]  # what --match chose for them, in words
    tries: Mapping[str, Tries]  # what --tune tried and chose for them


def summary(
    file: RecipeFile,
    experiment: Experiment,
    runs: Runs,
    dataset: str | None,
    command: str,
    missing: Sequence[str] = (),
) -> Comparison:
    """Returns the comparison of all runs of a data set that are finished.

    Times are measured when none is missing: others at work would disturb them.
    """
    task, baseline = experiment.task, next(iter(experiment.recipes))
    recipes = {name: recipe for name, recipe in experiment.recipes.items() if name in runs}
    folders = {
        name: [experiment.folder / f"{name}-seed{run.seed}" for run in of_system]
        for name, of_system in runs.items()
    }
    outcomes = _outcomes(folders, TEST)
    first = {name: of_system[0] for name, of_system in outcomes.items()}
    times: dict[str, OverRounds] = {}
    decoding: dict[str, DecodingSpeed] = {}
    if not missing:
        models = {name: read_model(of[0], type(task)) for name, of in folders.items()}
        decoding = decoding_speeds_of(recipes, models, task)
        times = step_times(recipes, models, task)
    histories = {name: [run.history for run in of] for name, of in runs.items()}

    def statistic(name: str) -> Statistic:
        return task.statistic(name, experiment.recipes[baseline].evaluation)

    estimates, differences = compare_outcomes(_sound(runs, outcomes), baseline, statistic)
    tests = {
        name: compare_outcomes(
            _sound(runs, _outcomes(folders, name)), baseline, statistic, len(task.tests)
        )
        for name in task.tests
    }
    # The table of further test sets is one, so that its p-values are corrected together.
    further = corrected({(s, name): tests[name][1].get(s) for name in tests for s in recipes})
    return Comparison(
        title=f"{file.name}{f', {dataset}' if dataset else ''}: {', '.join(experiment.recipes)}",
        task=file.recipe.task,
        loss_name=task.loss_name,
        loss_has_perplexity=task.loss_has_perplexity,
        item_name=task.item_name,
        centre=task.centre,
        baseline=baseline,
        systems=[
            SystemSummary(
                name=name,
                description=file.recipe.systems[name].description,
                runs=runs[name],
                relative_step_time=times.get(name),
                how_soon=how_soon(
                    histories[name] if name != baseline else [],
                    histories.get(baseline, []),
                    times.get(name),
                    decoding.get(name),
                ),
                estimates=estimates[name],
                difference=differences.get(name),
                tests={
                    test: FurtherTest(estimates=of_test[name], difference=further.get((name, test)))
                    for test, (of_test, _) in tests.items()
                },
                matched=experiment.matched.get(name, ""),
                tuning=experiment.tries.get(name),
            )
            for name in recipes
        ],
        missing=list(missing),
        samples=compare_samples({name: of.samples for name, of in first.items()})[:_SAMPLES],
        pictures=compare_pictures({name: of.pictures for name, of in first.items()}),
        facts=task.notes,
        recipe=file.yaml(),
        command=command,
        versions=versions(),
        machine=machine(),
    )


def _outcomes(folders: Mapping[str, Sequence[Path]], part: str) -> dict[str, list[Outcome]]:
    """Returns what the runs of each system gave on the test part, or on a further test set."""
    return {name: [read_outcome(folder, part) for folder in of] for name, of in folders.items()}


def _sound(runs: Runs, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, list[Outcome]]:
    """Returns the outcomes of runs that did not diverge."""
    return {
        name: [o for run, o in zip(runs[name], of, strict=True) if not diverged(run)]
        for name, of in outcomes.items()
    }


def step_times(
    recipes: Mapping[str, Recipe], models: Mapping[str, HeadwiseModel], task: Task
) -> dict[str, OverRounds]:
    """How long a step of each system takes over one of the first, the baseline."""
    loader = batches(task, task.train, next(iter(recipes.values())).training, seed=0)
    device = next(iter(models.values())).device
    some = [
        {name: tensor.to(device) for name, tensor in batch.items()}
        for batch, _ in zip(loader, range(3), strict=False)
    ]
    trained = {name: recipe.training.train for name, recipe in recipes.items()}
    if trained[next(iter(models))] == "nothing":
        return {}  # there is no step of the baseline to compare with
    models = {name: model for name, model in models.items() if trained[name] != "nothing"}
    for name, model in models.items():
        freeze_all_but(model, trained[name])
    settings = {name: recipe.training.of_rules() for name, recipe in recipes.items()}
    return relative_step_times(models, settings, some, ROUNDS)


def decoding_speeds_of(
    recipes: Mapping[str, Recipe], models: Mapping[str, HeadwiseModel], task: Task
) -> dict[str, DecodingSpeed]:
    """How fast each system decodes, all by the baseline's search; empty if the task does not.

    The arguments are those of `step_times`.
    """
    evaluation = next(iter(recipes.values())).evaluation
    if task.decode(next(iter(models.values())).eval(), evaluation) is None:
        return {}

    def decode(model: PreTrainedModel) -> int:
        tokens = task.decode(cast(HeadwiseModel, model), evaluation)
        assert tokens is not None
        return tokens

    return decoding_speeds(models, decode, ROUNDS)
