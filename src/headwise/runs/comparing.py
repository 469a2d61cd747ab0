"""Several systems of a recipe under one budget, side by side; on one data set or on several."""

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch.distributed as dist
from rich.console import Console

from headwise.analysis.cost import count_parameters
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
from headwise.analysis.speed import (
    DecodingSpeed,
    OverRounds,
    Rounds,
    decoding_speeds,
    relative_step_times,
)
from headwise.analysis.statistics.estimates import corrected
from headwise.analysis.statistics.seeds_and_items import compare_outcomes
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.recipe import SYSTEM, Recipe, RecipeFile
from headwise.runs.evaluating import TEST, read_outcome
from headwise.runs.folder import is_main_process
from headwise.runs.grid import Grid, candidates, check_grid
from headwise.runs.matching import Sizes, match_parameters
from headwise.runs.one_run import SystemRun
from headwise.runs.preparing import batches, empty_model, prepare_task, with_model, with_seed
from headwise.runs.reading import read_model
from headwise.runs.running import Experiment, Runs, Start, check_jobs, train_runs
from headwise.runs.tuning import Experiments, Tried, check_runs, tune
from headwise.tasks.scores import Outcome
from headwise.tasks.task import Task
from headwise.training.trained_part import freeze_all_but

_SAMPLES = 12
ROUNDS = Rounds(least=7, most=15, seconds=3.0)  # of each measurement of times


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
    start: Start | None = None,
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
        jobs, start: how many runs to train at a time, and where, see `train_runs`.
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
        check_grid(grid, file, systems, seeds, match)
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
        experiments = tune(experiments, tried, grid, console, jobs, start)
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
        title = f"{file.recipe.title or file.recipe.task}: {', '.join(systems)}"
        named = {str(name): comparison for name, comparison in comparisons.items()}
        return Benchmark(title=title, comparisons=named, missing=missing)

    def write_what_there_is(results: Sequence[RunResult | None]) -> None:
        # With all runs there it is the end, where the time of a step is measured too.
        if is_main_process() and None in results and (found := compared(results)) is not None:
            write(found)

    planned = [run for plan in plans.values() for run in plan]
    results = train_runs(planned, console, jobs=jobs, start=start, after_each=write_what_there_is)
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
        if recipe.pretrained is not None and SYSTEM not in recipe.pretrained
    ]
    task = prepare_task(
        [*started, *recipes.values()][0],
        folder,
        console,
        claimed=base,
        stamp_name="comparison.yaml",
    )
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

    def counted(recipe: Recipe, sizes: Sizes | None = None) -> int:
        sized = recipe if sizes is None else with_model(recipe, sizes._asdict())
        return count_parameters(empty_model(sized, task))

    baseline, *others = recipes
    target = counted(recipes[baseline])
    sized, chosen = dict(recipes), {}
    for name in others:
        recipe = recipes[name]
        config = task.config(recipe, task)
        before = Sizes(config.embed_dim, config.num_heads, config.ffn_dim)
        try:
            match = match_parameters(
                before,
                target,
                partial(counted, recipe),
                change_heads=how == "parameters-and-heads",
            )
        except ValueError as error:
            raise ValueError(f"--match {how}: {name}: {error}") from None
        chosen[name] = match.explain(before, target)
        sized[name] = with_model(recipe, match.sizes._asdict())
    return sized, chosen


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

    firsts = [(sound_runs(system) or system.runs)[0] for system in found.systems]
    best = max(firsts, key=worth)
    return folder / f"{best.system}-seed{best.seed}"


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
        decoding = decoding_speeds(models, ROUNDS)
        times = step_times(recipes, models, task)
    histories = {name: [run.history for run in of] for name, of in runs.items()}
    estimates, differences = compare_outcomes(_sound(runs, outcomes), baseline)
    further_tests = experiment.recipes[baseline].data.tests
    tests = {
        name: compare_outcomes(_sound(runs, _outcomes(folders, name)), baseline, len(further_tests))
        for name in further_tests
    }
    # The table of further test sets is one, so that its p-values are corrected together.
    further = corrected({(s, name): tests[name][1].get(s) for name in tests for s in recipes})
    return Comparison(
        title=f"{_called(experiment.recipes[baseline], dataset)}: {', '.join(experiment.recipes)}",
        task=file.recipe.task,
        loss_name=task.loss_unit,
        item_name=task.item_name,
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
        facts=task.facts,
        recipe=file.yaml(),
        command=command,
        versions=versions(),
        machine=machine(),
    )


def _called(recipe: Recipe, dataset: str | None) -> str:
    """What the page calls a comparison; a title is that of all data sets."""
    return f"{recipe.title}, {dataset}" if recipe.title and dataset else recipe.called


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
    loader = batches(task, "train", next(iter(recipes.values())).training, seed=0)
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
