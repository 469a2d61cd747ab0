"""Several systems of a recipe under one budget, side by side; on one data set or on several.

A comparison is a folder of runs. What is finished there is not trained again, and other systems and
seeds may join it. What is compared stands in its `comparison.json`, and what was found in the runs.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from headwise.analysis.results import Benchmark, Compared, machine, versions
from headwise.analysis.speed import OverRounds, decoding_speeds, relative_step_times
from headwise.files import write_text
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.recipe import Recipe, RecipeFile
from headwise.runs.folder import locked, read_model, remove_models
from headwise.runs.launching import cluster, threads_of, train_all
from headwise.runs.names import COMPARISON
from headwise.runs.plan import OneDataset, Run, plan
from headwise.runs.run import some_batches
from headwise.runs.tuning import Grid
from headwise.tasks.task import Task
from headwise.training.part import freeze_all_but
from headwise.training.watching import say


def compare(
    file: RecipeFile,
    systems: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    command: str,
    console: Console,
    *,
    datasets: Sequence[str] = (),
    match: bool = False,
    grid: Grid | None = None,
    write: Callable[[Path], object] = lambda folder: None,
    on: str | None = None,
    **how: Any,
) -> list[Run]:
    """Trains every system with every seed under one budget, and returns the runs.

    Args:
        file: the recipe.
        systems, seeds: what to train; the first system is the baseline.
        folder: of the runs; of several data sets each has a folder in it.
        command: that reproduces this.
        console: for bars and notes.
        datasets: names of the recipe's data sets; without any, its `data` as they stand.
        match: whether all systems get as many parameters as the first has, by their width.
        grid: values from which every system chooses before its seeds are trained.
        write: is called with the folder whenever a run has ended and `comparison.json` is up to
            date, as far as it goes, and at the end.
        on: the address of a Ray cluster.
        how: `jobs`, `nproc` and `modules` of `train_all`.

    Raises:
        FolderError: a folder holds something else.
        Interrupted: Ctrl-C came; the next call goes on.
        RunsFailed: some runs failed; all others are finished.
    """

    def train(runs: Sequence[Run], after_each: Callable[[], None]) -> None:
        tasks = {run.folder: run.task for run in runs}
        train_all(list(tasks), console, tasks=tasks, after_each=after_each, on=on, **how)

    wanted: dict[str, Any] = {"datasets": datasets, "match": match, "grid": grid}
    with cluster(on):  # one that does not answer is told first
        planned = plan(file, systems, seeds, folder, console, **wanted)
        with locked(folder):
            tries = [run for of in planned for run in of.claim(of.tries())]
            train(tries, lambda: _tidy(tries))
            runs = [of.claim(of.ready(console)) for of in planned]

            def write_what_there_is(*, timed: bool = False) -> None:
                if any(run.result() for of_dataset in runs for run in of_dataset):
                    for of, of_dataset in zip(planned, runs, strict=True):
                        _write_compared(of, of_dataset, command, timed=timed)
                    if datasets:
                        _write_benchmark(planned, folder)
                    write(folder)

            train([run for of in runs for run in of], write_what_there_is)
            say(console, "timing steps and generation", "dim")
            threads = torch.get_num_threads()
            # As many threads as a run has had: with more of them small models gain little.
            torch.set_num_threads(threads_of(how.get("jobs", 1) * how.get("nproc", 1)))
            try:
                write_what_there_is(timed=True)
            finally:
                torch.set_num_threads(threads)
    return [run for of_dataset in runs for run in of_dataset]


def _tidy(tries: Sequence[Run]) -> None:
    """Removes the models and checkpoints of finished tries: no run starts from them."""
    for run in tries:
        if run.result() is not None:
            remove_models(run.folder)


def _write_benchmark(planned: Sequence[OneDataset], folder: Path) -> None:
    first, recipe = planned[0], planned[0].file.recipe
    title = f"{recipe.title or recipe.task}: {', '.join(first.systems)}"
    found = Benchmark(title=title, datasets=[of.folder.name for of in planned])
    write_text(folder / COMPARISON, found.model_dump_json(indent=1))


def _write_compared(
    of: OneDataset,
    runs: Sequence[Run],
    command: str,
    *,
    timed: bool,  # runs at work would disturb measurements of times
) -> None:
    recipe = of.recipe(of.systems[0])
    title = f"{recipe.title}, {of.name}" if recipe.title and of.name else recipe.called
    found = Compared(
        title=f"{title}: {', '.join(of.systems)}",
        task=recipe.task,
        loss_name=of.task.loss_unit,
        item_name=of.task.item_name,
        systems={name: of.file.recipe.systems[name].description for name in of.systems},
        runs={run.folder.name: run.system for run in runs},
        matched=of.matched,
        tuning=of.tuned,
        facts=of.task.facts,
        recipe=of.file.yaml(),
        command=command,
        versions=versions(),
        machine=machine(),
        **(_times(of, runs) if timed else {}),
    )
    write_text(of.folder / COMPARISON, found.model_dump_json(indent=1))


def _times(of: OneDataset, runs: Sequence[Run]) -> dict[str, dict[str, OverRounds]]:
    """Measures the times of the first run of each system, in turns with the others."""
    first = {run.system: run for run in reversed(runs)}
    models = {name: read_model(first[name].folder) for name in of.systems}
    speeds, times = decoding_speeds(models)
    recipes = {name: run.recipe for name, run in first.items()}
    return {
        "step_times": step_times(recipes, models, of.task),
        "decoding_times": times,
        "decoding_speeds": speeds,
    }


def step_times(
    recipes: Mapping[str, Recipe], models: Mapping[str, HeadwiseModel], task: Task
) -> dict[str, OverRounds]:
    """Returns how long a step of each system takes over one of the first, the baseline."""
    trained = {name: recipe.training.train for name, recipe in recipes.items()}
    first = next(iter(models))
    if trained[first] == "nothing":
        return {}  # there is no step of the baseline to compare with
    models = {name: model for name, model in models.items() if trained[name] != "nothing"}
    for name, model in models.items():
        freeze_all_but(model, trained[name])
    settings = {name: recipe.training.rules for name, recipe in recipes.items()}
    some = some_batches(task, recipes[first].training, models[first].device)
    return relative_step_times(models, settings, some)


def run_to_look_into(runs: Sequence[Run]) -> Path:
    """Returns the folder of a run to go on with: if there is one, of a system that decides."""

    def worth(run: Run) -> tuple[bool, bool]:
        result = run.result()
        return result is not None and not result.diverged, bool(result and result.units)

    return max(runs, key=worth).folder
