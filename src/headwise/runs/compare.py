"""Several systems of a recipe under one budget, side by side; on one data set or on several.

A comparison is a folder of runs. What is finished there is not trained again, and other systems and
seeds may join it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
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
    first_score,
    machine,
    sound_runs,
    versions,
)
from headwise.analysis.speed import OverRounds, Rounds, decoding_speeds, relative_step_times
from headwise.analysis.statistics.estimates import corrected
from headwise.analysis.statistics.seeds_and_items import compare_outcomes
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.recipe import Recipe, RecipeFile
from headwise.runs.evaluate import TEST, read_outcome
from headwise.runs.folder import locked, read_model, remove_models
from headwise.runs.launching import train_all
from headwise.runs.plan import OneDataset, Run, plan
from headwise.runs.run import batches
from headwise.runs.tuning import Grid
from headwise.tasks.scores import Outcome
from headwise.tasks.task import Task
from headwise.training.part import freeze_all_but

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
        how: `jobs`, `on`, `nproc` and `modules` of `train_all`.

    Raises:
        FolderError: a folder holds something else.
        Interrupted: Ctrl-C came; the next call goes on.
        RunsFailed: some runs failed; all others are finished.
    """
    planned = plan(file, systems, seeds, folder, console, datasets=datasets, match=match, grid=grid)

    def train(runs: Sequence[Run], after_each: Callable[[], None]) -> None:
        tasks = {run.folder: run.task for run in runs}
        if tasks:
            train_all(list(tasks), console, tasks=tasks, after_each=after_each, **how)

    with locked(folder):
        tries = [run for of in planned for run in of.claim(of.tries())]
        train(tries, lambda: _tidy(tries))
        for of in planned:
            of.choose(console)
        runs = [of.claim(of.runs()) for of in planned]

        def write_what_there_is() -> None:
            found, missing = _found(planned, runs, command)
            if found is not None and missing:  # the last is written below, with times
                write(found)

        train([run for of in runs for run in of], write_what_there_is)
        console.print("timing steps and generation", style="dim", highlight=False)
        found, _ = _found(planned, runs, command)
        assert found is not None
        write(found)
    return found


def _tidy(tries: Sequence[Run]) -> None:
    """Removes the models and checkpoints of tries that have ended, which nothing goes on from."""
    for run in tries:
        if run.result() is not None:
            remove_models(run.folder)


def _found(
    planned: Sequence[OneDataset], runs: Sequence[Sequence[Run]], command: str
) -> tuple[Comparison | Benchmark | None, list[str]]:
    """What there is to compare, None without any result; and the runs that are missing."""
    results = [[(run, run.result()) for run in of_dataset] for of_dataset in runs]
    is_complete = all(result for of_dataset in results for _, result in of_dataset)
    comparisons: dict[str, Comparison] = {}
    missing: list[str] = []
    for of, of_dataset in zip(planned, results, strict=True):
        finished: dict[str, list[RunResult]] = {}
        lacking = [run.folder.name for run, result in of_dataset if result is None]
        for run, result in of_dataset:
            if result is not None:
                finished.setdefault(run.system, []).append(result)
        missing += [f"{of.name} {name}" if of.name else name for name in lacking]
        if finished:
            found = summary(of, finished, command, lacking, times=is_complete)
            comparisons[of.name or ""] = found
    if not comparisons or planned[0].name is None:
        return comparisons.get(""), missing
    recipe = planned[0].file.recipe
    title = f"{recipe.title or recipe.task}: {', '.join(planned[0].systems)}"
    return Benchmark(title=title, comparisons=comparisons, missing=missing), missing


def summary(
    of: OneDataset,
    runs: Mapping[str, Sequence[RunResult]],
    command: str,
    missing: Sequence[str] = (),
    *,
    times: bool = True,
) -> Comparison:
    """Returns the comparison of the finished runs of a data set, by system.

    Args:
        of: what is compared.
        runs: the results of each system.
        command: that reproduces the comparison.
        missing: names of the runs that are not finished.
        times: whether steps and generation are timed; runs at work would disturb that.
    """
    task, baseline = of.task, of.systems[0]
    recipes = {name: of.recipe(name) for name in of.systems if name in runs}
    tests = of.recipe(baseline).data.tests
    folders = {
        name: [of.folder / f"{name}-seed{run.seed}" for run in runs[name]] for name in recipes
    }

    def sound(part: str) -> dict[str, list[Outcome]]:
        """What the runs that did not diverge gave on a part."""
        return {
            name: [
                read_outcome(folder, part)
                for folder, run in zip(folders[name], runs[name], strict=True)
                if not diverged(run)
            ]
            for name in recipes
        }

    first = {name: read_outcome(of_system[0], TEST) for name, of_system in folders.items()}
    step_time, decoding = {}, {}
    if times:
        models = {name: read_model(of_system[0]) for name, of_system in folders.items()}
        decoding = decoding_speeds(models, ROUNDS)
        step_time = step_times(recipes, models, task)
    histories = {name: [run.history for run in runs[name]] for name in recipes}
    estimates, differences = compare_outcomes(sound(TEST), baseline)
    on_tests = {test: compare_outcomes(sound(test), baseline, len(tests)) for test in tests}
    # The table of further test sets is one, so that its p-values are corrected together.
    further = corrected({(s, test): on_tests[test][1].get(s) for test in tests for s in recipes})
    called = of.recipe(baseline)
    title = f"{called.title}, {of.name}" if called.title and of.name else called.called
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
                runs=runs[name],
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
            for name in recipes
        ],
        missing=list(missing),
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
    if trained[next(iter(models))] == "nothing":
        return {}  # there is no step of the baseline to compare with
    models = {name: model for name, model in models.items() if trained[name] != "nothing"}
    for name, model in models.items():
        freeze_all_but(model, trained[name])
    settings = {name: recipe.training.of_rules() for name, recipe in recipes.items()}
    device = next(iter(models.values())).device
    some = [
        {name: tensor.to(device) for name, tensor in batch.items()}
        for batch in islice(
            batches(task, "train", next(iter(recipes.values())).training, seed=0), 3
        )
    ]
    return relative_step_times(models, settings, some, ROUNDS)


def run_to_look_into(found: Comparison | Benchmark, folder: Path) -> Path:
    """Returns the folder of the run to go on with: the best of those that decide something.

    One that diverged is only returned if all did: it cannot be looked into.
    """
    if isinstance(found, Benchmark):
        name, found = next(iter(found.comparisons.items()))
        folder = folder / name
    sign = -1 if first_score(found).lower_is_better else 1

    def worth(run: RunResult) -> tuple[bool, bool, float]:
        score = sign * run.scores[0].value
        return not diverged(run), bool(run.attention), score if math.isfinite(score) else -math.inf

    best = max(((sound_runs(each) or each.runs)[0] for each in found.systems), key=worth)
    return folder / f"{best.system}-seed{best.seed}"
