"""Several systems of a recipe under one budget, side by side; on one data set or on several."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import Benchmark, Comparison
from headwise.comparison.running import PlannedRun, Runs, train_runs
from headwise.comparison.summary import Experiment, summary
from headwise.experiment import is_main_process, prepare_task, with_seed
from headwise.matching import match_parameters
from headwise.recipe import RecipeFile
from headwise.recipe.settings import ModelSettings, Recipe
from headwise.tasks.task import Task


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
    runs: dict[str | None, Runs] = {}
    for dataset, experiment in experiments.items():
        planned = _plan(experiment, seeds, dataset)
        runs[dataset] = {name: [] for name in systems}
        for run, result in zip(planned, train_runs(planned, console), strict=True):
            runs[dataset][run.system].append(result)
    if dist.is_initialized():
        dist.destroy_process_group()  # from here on the main process works alone
    if not is_main_process():
        return None
    comparisons = {
        dataset: summary(file, experiment, runs[dataset], dataset, command)
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
) -> Experiment:
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
    for label, words in task.compare_notes(recipes).items():
        task.notes[label] = words
        console.print(f"{label}: {words}", style="yellow", highlight=False, markup=False)
    matched: dict[str, str] = {}
    if match:
        recipes, matched = _match_parameters(recipes, task)
        for name, choice in matched.items():
            console.print(f"{name}: {choice}", style="dim", highlight=False, markup=False)
    return Experiment(folder, task, recipes, matched)


def _plan(experiment: Experiment, seeds: Sequence[int], dataset: str | None) -> list[PlannedRun]:
    """The runs of one data set: of each seed all systems, so that early results compare."""
    return [
        PlannedRun(
            recipe=with_seed(recipe, seed),
            system=name,
            folder=experiment.folder / f"{name}-seed{seed}",
            task=experiment.task,
            label=f"{dataset} {name}" if dataset else name,
        )
        for seed in seeds
        for name, recipe in experiment.recipes.items()
    ]


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
