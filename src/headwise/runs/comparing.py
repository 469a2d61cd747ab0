"""Several systems of a recipe under one budget, side by side; on one data set or on several."""

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch.distributed as dist
from rich.console import Console

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import Benchmark, Comparison, RunResult, diverged, first_score
from headwise.recipes import RecipeFile
from headwise.recipes.pretrained import SYSTEM
from headwise.recipes.settings import ModelSettings, Recipe
from headwise.runs.folder import is_main_process
from headwise.runs.grid import Grid, candidates, check_grid
from headwise.runs.matching import match_parameters
from headwise.runs.one_run import SystemRun
from headwise.runs.planned import Runs
from headwise.runs.preparing import empty_model, prepare_task, with_seed
from headwise.runs.running import check_jobs, train_runs
from headwise.runs.summary import Experiment, summary
from headwise.runs.tuning import Experiments, Tried, check_runs, tune
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
    match: str | None = None,
    grid: Grid | None = None,
    jobs: int = 1,
    write: Callable[[Comparison | Benchmark], None] = lambda found: None,
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
        match: give all systems as many `"parameters"` as the first has, by their width, or by their
            width and the number of their heads: `"parameters-and-heads"`.
        grid: values of keys from which every system chooses, by validation loss, before its seeds
            are trained.
        jobs: how many runs to train at a time, see `train_runs`.
        write: is given the comparison as far as it goes whenever a run has ended, and at the end.

    Raises:
        FolderError: a folder holds something else.
        Interrupted: Ctrl-C came; the next call goes on.
        RunsFailed: some runs failed; all others are finished.
    """
    check_jobs(jobs)
    file.check_comparable()
    places = {name: folder / name for name in datasets} if datasets else {None: folder}
    tried: Tried = {}
    if grid is not None:
        check_grid(grid, file, systems, seeds, match=match is not None)
        tried = {
            dataset: {name: candidates(file, name, dataset, grid) for name in systems}
            for dataset in places
        }
    # All data are read before anything is trained, so that an error in the last data set shows at
    # once.
    experiments: Experiments = {
        dataset: _prepare(file, systems, place, console, dataset, match)
        for dataset, place in places.items()
    }
    if grid is not None:
        experiments = tune(experiments, tried, grid, console, jobs)
    plans = {dataset: _plan(found, seeds, dataset) for dataset, found in experiments.items()}
    for dataset, experiment in experiments.items():
        check_runs(plans[dataset], experiment.tries)

    def compared(results: Sequence[RunResult | None]) -> Comparison | Benchmark | None:
        """What there is to compare; None without any result."""
        left, comparisons, missing = iter(results), {}, []
        for dataset, experiment in experiments.items():
            runs: Runs = {}
            unfinished = []
            for run, result in zip(plans[dataset], left, strict=False):
                if result is None:
                    unfinished.append(run.label)
                else:
                    runs.setdefault(run.system, []).append(result)
            missing += unfinished
            if runs:
                found = summary(file, experiment, runs, dataset, command, unfinished)
                comparisons[dataset] = found
        if not datasets or not comparisons:
            return comparisons.get(None)
        title = f"{file.name}: {', '.join(systems)}"
        named = {str(name): comparison for name, comparison in comparisons.items()}
        return Benchmark(title=title, comparisons=named, missing=missing)

    def write_what_there_is(results: Sequence[RunResult | None]) -> None:
        # With all runs there it is the end, where the time of a step is measured too.
        if is_main_process() and None in results and (found := compared(results)) is not None:
            write(found)

    planned = [run for plan in plans.values() for run in plan]
    results = train_runs(planned, console, jobs=jobs, after_each=write_what_there_is)
    if dist.is_initialized():
        # From here on the main process works alone. A model that is not freed yet would keep the
        # threads of the group alive, and the other processes would abort as they end.
        gc.collect()
        dist.destroy_process_group()
    if not is_main_process():
        return None
    found = compared(results)
    assert found is not None
    write(found)
    return found


def _prepare(
    file: RecipeFile,
    systems: Sequence[str],
    folder: Path,
    console: Console,
    dataset: str | None,
    match: str | None,
) -> Experiment:
    recipes = {name: file.system(name, dataset) for name in systems}
    if dataset is not None:
        console.print(dataset, style="bold", highlight=False, markup=False)
    # Other systems and seeds may join later, but on the same data and vocabularies.
    base = file.system(None, dataset)
    # All share the encoding of the run that some of them, or others of the recipe, start from.
    started = [
        recipe
        for recipe in (*recipes.values(), base)
        if recipe.model.pretrained is not None and SYSTEM not in str(recipe.model.pretrained)
    ]
    task = prepare_task(
        [*started, *recipes.values()][0],
        folder,
        console,
        claimed=base,
        stamp_name="comparison.yaml",
    )
    for label, words in task.compare_notes(recipes).items():
        task.notes[label] = words
        console.print(f"{label}: {words}", style="yellow", highlight=False, markup=False)
    matched: dict[str, str] = {}
    if match is not None:
        recipes, matched = _match_parameters(recipes, task, match)
        for name, choice in matched.items():
            console.print(f"{name}: {choice}", style="dim", highlight=False, markup=False)
    return Experiment(folder, task, recipes, matched, tries={})


def _plan(experiment: Experiment, seeds: Sequence[int], dataset: str | None) -> list[SystemRun]:
    """The runs of one data set: of each seed all systems, so that early results compare."""
    several = len(seeds) > 1
    return [
        SystemRun(
            recipe=with_seed(recipe, seed),
            system=name,
            folder=experiment.folder / f"{name}-seed{seed}",
            task=experiment.task,
            label=" ".join(
                [*([dataset] if dataset else []), name, *([f"seed {seed}"] if several else [])]
            ),
        )
        for seed in seeds
        for name, recipe in experiment.recipes.items()
    ]


def _match_parameters(
    recipes: Mapping[str, Recipe], task: Task, how: str
) -> tuple[dict[str, Recipe], dict[str, str]]:
    """The recipes, widened or narrowed to the first one's size, and what was chosen for each."""

    def count(model: ModelSettings) -> int:
        return count_parameters(empty_model(model, task))

    baseline, *others = recipes
    target = count(recipes[baseline].model)
    sized, chosen = dict(recipes), {}
    for name in others:
        try:
            match = match_parameters(
                recipes[name].model, target, count, change_heads=how == "parameters-and-heads"
            )
        except ValueError as error:
            raise ValueError(f"--match {how}: {name}: {error}") from None
        chosen[name] = match.explain(recipes[name].model, target)
        sized[name] = recipes[name].model_copy(update={"model": match.model})
    return sized, chosen


def run_to_look_into(found: Comparison | Benchmark, folder: Path) -> Path:
    """Returns the folder of the run to go on with: the best of those that decide something."""
    if isinstance(found, Benchmark):
        name, found = next(iter(found.comparisons.items()))
        folder = folder / name
    runs = [(system.name, run) for system in found.systems for run in system.runs[:1]]
    deciding = [(name, run) for name, run in runs if run.attention and not diverged(run)]
    sign = 1 if first_score(found).higher_is_better else -1
    name, run = max(deciding or runs, key=lambda each: sign * each[1].scores[0].value)
    return folder / f"{name}-seed{run.seed}"
