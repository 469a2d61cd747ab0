"""Several systems of a recipe under one budget, side by side; on one data set or on several."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from rich.console import Console

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import (
    Benchmark,
    Comparison,
    PairedTest,
    RunResult,
    SystemSummary,
    compare_pictures,
    compare_samples,
)
from headwise.analysis.speed import relative_step_times
from headwise.experiment import (
    batches,
    is_main_process,
    prepare_task,
    read_outcome,
    train_system,
    with_seed,
)
from headwise.matching import match_parameters
from headwise.recipe import RecipeFile, to_yaml
from headwise.recipe.settings import ModelSettings, Recipe
from headwise.tasks.outcome import Outcome
from headwise.tasks.task import Task
from headwise.training.run import MODEL

_SAMPLES = 12


class _Experiment(NamedTuple):
    """What is to be compared on one data set, and where."""

    folder: Path
    task: Task
    recipes: dict[str, Recipe]  # by system
    matched: dict[str, str]  # what --match chose for them, in words


Runs = dict[str, list[RunResult]]  # by system, a run for each seed


def compare_systems(
    file: RecipeFile,
    systems: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    command: str,
    console: Console,
    *,
    datasets: Sequence[str] = (),
    match: bool = False,
) -> Comparison | Benchmark | None:
    """Train every system with every seed under one budget and put the figures side by side.

    What `folder` already holds is not trained again; the first system is the baseline, and with
    `match` the others are made as large as it is. With several processes only the main one gets a
    comparison, the others None.

    Args:
        file: the recipe.
        systems, seeds: what to train.
        folder: of the runs; of several data sets each has a folder in it.
        command: that reproduces this.
        console: for bars and notes.
        datasets: names of the recipe's data sets; without any, its `data` as they stand.
        match: give all systems as many parameters as the first has.
    """
    file.check_comparable()
    places = {name: folder / name for name in datasets} if datasets else {None: folder}
    # All data are read before anything is trained, so that an error in the last data set shows at
    # once.
    experiments = {
        dataset: _prepare(file, systems, place, console, dataset, match)
        for dataset, place in places.items()
    }
    runs = {
        dataset: _train(experiment, seeds, console, dataset)
        for dataset, experiment in experiments.items()
    }
    if dist.is_initialized():
        dist.destroy_process_group()  # from here on the main process works alone
    if not is_main_process():
        return None
    comparisons = {
        dataset: _summary(file, experiment, runs[dataset], dataset, command)
        for dataset, experiment in experiments.items()
    }
    if not datasets:
        return comparisons[None]
    title = f"{file.name}: {', '.join(systems)}"
    return Benchmark(title=title, comparisons={str(name): c for name, c in comparisons.items()})


def _prepare(
    file: RecipeFile,
    systems: Sequence[str],
    folder: Path,
    console: Console,
    dataset: str | None,
    match: bool,
) -> _Experiment:
    recipes = {name: file.system(name, dataset) for name in systems}
    if dataset is not None:
        console.print(dataset, style="bold", highlight=False, markup=False)
    # Other systems and seeds may join later, but on the same data and vocabularies.
    task = prepare_task(
        next(iter(recipes.values())),
        folder,
        console,
        claimed=file.system(None, dataset),
        stamp_name="comparison.yaml",
    )
    matched: dict[str, str] = {}
    if match:
        recipes, matched = _match_parameters(recipes, task)
        for name, choice in matched.items():
            console.print(f"{name}: {choice}", style="dim", highlight=False, markup=False)
    return _Experiment(folder, task, recipes, matched)


def _train(
    experiment: _Experiment, seeds: Sequence[int], console: Console, dataset: str | None
) -> Runs:
    runs: Runs = {name: [] for name in experiment.recipes}
    for seed in seeds:
        for name, recipe in experiment.recipes.items():
            folder = experiment.folder / f"{name}-seed{seed}"
            label = f"{dataset} {name}" if dataset else name
            runs[name].append(
                train_system(with_seed(recipe, seed), name, folder, experiment.task, console, label)
            )
    return runs


def _summary(
    file: RecipeFile, experiment: _Experiment, runs: Runs, dataset: str | None, command: str
) -> Comparison:
    task, recipes = experiment.task, experiment.recipes
    baseline, *others = recipes
    first = {name: experiment.folder / f"{name}-seed{of[0].seed}" for name, of in runs.items()}
    outcomes = {name: read_outcome(run) for name, run in first.items()}
    times = _step_times(recipes, first, task)
    tests = {
        name: _paired_test(task, recipes[baseline], baseline, outcomes, name) for name in others
    }
    return Comparison(
        title=f"{file.name}{f', {dataset}' if dataset else ''}: {', '.join(recipes)}",
        task=recipes[baseline].task,
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
                relative_step_time=times[name],
                paired_test=tests.get(name),
                matched=experiment.matched.get(name, ""),
            )
            for name in recipes
        ],
        samples=compare_samples({name: of.samples for name, of in outcomes.items()})[:_SAMPLES],
        pictures=compare_pictures({name: of.pictures for name, of in outcomes.items()}),
        facts=task.notes,
        recipe=to_yaml(file.recipe),
        command=command,
        versions=_versions(),
        machine=_machine(),
    )


def _paired_test(
    task: Task, recipe: Recipe, baseline: str, outcomes: Mapping[str, Outcome], name: str
) -> PairedTest:
    difference, p_value = task.paired_test(outcomes[baseline], outcomes[name], recipe.evaluation)
    return PairedTest(baseline=baseline, difference=difference, p_value=p_value)


def _match_parameters(
    recipes: Mapping[str, Recipe], task: Task
) -> tuple[dict[str, Recipe], dict[str, str]]:
    """The recipes, widened or narrowed to the first one's size, and what was chosen for each."""

    def count(model: ModelSettings) -> int:
        with torch.device("meta"):
            return count_parameters(task.model_class(task.model_config(model)))

    baseline, *others = recipes
    target = count(recipes[baseline].model)
    sized, chosen = dict(recipes), {}
    for name in others:
        try:
            match = match_parameters(recipes[name].model, target, count)
        except ValueError as error:
            raise ValueError(f"--match parameters: {name}: {error}") from None
        chosen[name] = match.explain(recipes[name].model, target)
        sized[name] = recipes[name].model_copy(update={"model": match.model})
    return sized, chosen


def _step_times(
    recipes: Mapping[str, Recipe], runs: Mapping[str, Path], task: Task
) -> dict[str, float]:
    loader = batches(task, task.train, next(iter(recipes.values())).training, seed=0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    some = [
        {name: tensor.to(device) for name, tensor in batch.items()}
        for batch, _ in zip(loader, range(3), strict=False)
    ]
    models = {
        name: task.model_class.from_pretrained(run / MODEL).to(device) for name, run in runs.items()
    }
    settings = {name: recipe.training.of_rules() for name, recipe in recipes.items()}
    return relative_step_times(models, settings, some)


def _versions() -> dict[str, str]:
    packages = ("headwise", "torch", "transformers", "tokenizers", "sacrebleu")
    return {"python": platform.python_version()} | {p: metadata.version(p) for p in packages}


def _machine() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
