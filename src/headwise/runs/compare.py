"""Several systems of a recipe under one budget, side by side; on one data set or on several.

A comparison is a folder of runs. What is finished there is not trained again, and other systems and
seeds may join it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from headwise.analysis.how_soon import how_soon
from headwise.analysis.results import (
    Benchmark,
    Comparison,
    FurtherTest,
    RunResult,
    SystemSummary,
    compare_pictures,
    compare_samples,
    diverged,
    machine,
    versions,
)
from headwise.analysis.speed import OverRounds, Rounds, decoding_speeds, relative_step_times
from headwise.analysis.statistics.estimates import corrected
from headwise.analysis.statistics.seeds_and_items import compare_outcomes
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.recipe import Recipe, RecipeFile
from headwise.runs.evaluate import TEST, read_outcome
from headwise.runs.folder import locked, read_model, remove_models
from headwise.runs.launching import cluster, train_all
from headwise.runs.plan import OneDataset, Run, plan
from headwise.runs.run import some_batches
from headwise.runs.tuning import Grid
from headwise.tasks.scores import Outcome
from headwise.tasks.task import Task
from headwise.training.part import freeze_all_but
from headwise.training.watching import say

_SAMPLES = 12
ROUNDS = Rounds(least=7, most=15, seconds=3.0)  # of each measurement of times


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
    write: Callable[[Comparison | Benchmark], None] = lambda found: None,
    on: str | None = None,
    **how: Any,
) -> Comparison | Benchmark:
    """Trains every system with every seed under one budget and puts the figures side by side.

    Args:
        file: the recipe.
        systems, seeds: what to train; the first system is the baseline.
        folder: of the runs; of several data sets each has a folder in it.
        command: that reproduces this.
        console: for bars and notes.
        datasets: names of the recipe's data sets; without any, its `data` as they stand.
        match: whether all systems get as many parameters as the first has, by their width.
        grid: values from which every system chooses before its seeds are trained.
        write: is given the comparison as far as it goes whenever a run has ended, and at the end.
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

            def write_what_there_is() -> None:
                if (found := _found(planned, runs, command)) is not None:
                    write(found)

            train([run for of in runs for run in of], write_what_there_is)
            say(console, "timing steps and generation", "dim")
            found = _found(planned, runs, command, times=True)
            assert found is not None
            write(found)
    return found


def _tidy(tries: Sequence[Run]) -> None:
    """Removes the models and checkpoints of tries that have ended, which nothing goes on from."""
    for run in tries:
        if run.result() is not None:
            remove_models(run.folder)


def _found(
    planned: Sequence[OneDataset],
    runs: Sequence[Sequence[Run]],
    command: str,
    *,
    times: bool = False,  # runs at work would disturb them
) -> Comparison | Benchmark | None:
    """What there is to compare; None without any result."""
    of_datasets = list(zip(planned, runs, strict=True))
    comparisons = {
        of.name or "": summary(of, of_dataset, command, times=times)
        for of, of_dataset in of_datasets
        if any(run.result() for run in of_dataset)
    }
    first, recipe = planned[0], planned[0].file.recipe
    if not comparisons or first.name is None:
        return comparisons.get("")
    missing = [
        f"{of.name} {run.folder.name}"
        for of, of_dataset in of_datasets
        for run in of_dataset
        if run.result() is None
    ]
    title = f"{recipe.title or recipe.task}: {', '.join(first.systems)}"
    return Benchmark(title=title, comparisons=comparisons, missing=missing)


def summary(of: OneDataset, runs: Sequence[Run], command: str, *, times: bool) -> Comparison:
    """Returns the comparison of those runs of a data set that are finished.

    Args:
        of: what is compared.
        runs: of all systems.
        command: that reproduces the comparison.
        times: whether steps and generation are timed.
    """
    task, baseline, made = of.task, of.systems[0], of.recipe(of.systems[0])
    finished = [(run, result) for run in runs if (result := run.result()) is not None]
    results = {
        name: [result for run, result in finished if run.system == name]
        for name in of.systems
        if any(run.system == name for run, _ in finished)
    }
    folders = {name: of.folder / f"{name}-seed{own[0].seed}" for name, own in results.items()}
    step_time, decoding = {}, {}
    if times:
        models = {name: read_model(of_first) for name, of_first in folders.items()}
        decoding = decoding_speeds(models, ROUNDS)
        step_time = step_times({name: of.recipe(name) for name in results}, models, task)

    def sound(part: str) -> dict[str, list[Outcome]]:
        """What the runs that did not diverge gave on a part."""
        found: dict[str, list[Outcome]] = {name: [] for name in results}
        for run, result in finished:
            if not diverged(result):
                found[run.system].append(read_outcome(run.folder, part))
        return found

    estimates, differences = compare_outcomes(sound(TEST), baseline)
    tests = made.data.tests
    on_tests = {test: compare_outcomes(sound(test), baseline, len(tests)) for test in tests}
    # The table of further test sets is one, so that its p-values are corrected together.
    further = corrected({(s, test): on_tests[test][1].get(s) for test in tests for s in results})
    first = {name: read_outcome(of_first, TEST) for name, of_first in folders.items()}
    histories = {name: [run.history for run in of_system] for name, of_system in results.items()}
    title = f"{made.title}, {of.name}" if made.title and of.name else made.called
    return Comparison(
        title=f"{title}: {', '.join(of.systems)}",
        task=of.file.recipe.task,
        loss_name=task.loss_unit,
        item_name=task.item_name,
        baseline=baseline,
        systems=[
            SystemSummary(
                name=name,
                description=of.file.recipe.systems[name].description,
                matched=of.matched.get(name, ""),
                tuning=of.tuned.get(name),
                runs=own,
                relative_step_time=step_time.get(name),
                how_soon=how_soon(
                    histories[name] if name != baseline else [],
                    histories.get(baseline, []),
                    step_time.get(name),
                    decoding.get(name),
                ),
                estimates=estimates[name],
                difference=differences.get(name),
                tests={
                    test: FurtherTest(estimates=found[name], difference=further.get((name, test)))
                    for test, (found, _) in on_tests.items()
                },
            )
            for name, own in results.items()
        ],
        missing=[run.folder.name for run in runs if run.result() is None],
        samples=compare_samples({name: of.samples for name, of in first.items()})[:_SAMPLES],
        pictures=compare_pictures({name: of.pictures for name, of in first.items()}),
        facts=task.facts,
        recipe=of.file.yaml(),
        command=command,
        versions=versions(),
        machine=machine(),
    )


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
    return relative_step_times(models, settings, some, ROUNDS)


def run_to_look_into(found: Comparison | Benchmark, folder: Path) -> Path:
    """Returns the folder of a run to go on with: if there is one, of a system that decides."""
    if isinstance(found, Benchmark):
        name, found = next(iter(found.comparisons.items()))
        folder = folder / name

    def worth(run: RunResult) -> tuple[bool, bool]:
        return not diverged(run), bool(run.attention)

    best = max((run for system in found.systems for run in system.runs), key=worth)
    return folder / f"{best.system}-seed{best.seed}"
