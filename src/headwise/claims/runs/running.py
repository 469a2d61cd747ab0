"""Has the runs trained that claims and questions need and that are missing.

Runs are trained in folders of their own, as `headwise compare` does it: they can be stopped at any
time, and go on. What the claims need of a finished run is then kept in `evidence`, and no machine
that has the evidence trains the run again.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from rich.console import Console

from headwise.claims.catalogue.declared import Scale, Subject
from headwise.claims.catalogue.experiments import Places, grid_of
from headwise.claims.catalogue.needed import Needed, models_to_start_from, needed_of_systems
from headwise.claims.evidence.conditions import Conditions
from headwise.claims.evidence.kept_runs import kept_runs
from headwise.claims.runs.choosing import let_choose
from headwise.claims.runs.keeping import Keep, kept_run, train_and_keep
from headwise.claims.why.questions import Question
from headwise.recipe import RecipeFile
from headwise.runs.planned import PlannedRun
from headwise.runs.preparing import prepare_task, with_seed
from headwise.runs.running import train_runs
from headwise.tasks.task import Task
from headwise.training.run import MODEL

_STAMP = "comparison.yaml"


def run_experiment(
    scale: Scale,
    name: str,
    needed: Needed,
    seeds: Sequence[int],
    places: Places,
    console: Console,
    *,
    jobs: int = 1,
    renew: bool = False,
) -> None:
    """Trains what is missing of an experiment; without anything missing, no data are read.

    Args:
        scale: the scale.
        name: of the experiment.
        needed: which of its systems, on which data sets, with which ablations.
        seeds: with which each is trained.
        places: the folders of this machine.
        console: for bars and notes.
        jobs: how many runs to train at a time.
        renew: train those runs again whose code computes something else today.

    Raises:
        ValueError: data are missing, or a folder holds something else.
        Interrupted: Ctrl-C came; the next call goes on.
        RunsFailed: some runs failed; the next call tries them again.
    """
    conditions = Conditions(scale, name, places)
    _run_under(conditions, needed, seeds, console, jobs=jobs, renew=renew)


def run_question(
    question: Question,
    seeds: Sequence[int],
    places: Places,
    console: Console,
    *,
    jobs: int = 1,
    renew: bool = False,
) -> None:
    """Trains what is missing for a question, the runs of the experiment that it shares included.

    Args:
        question: the question.
        seeds, places, console, jobs, renew: as in `run_experiment`, which says what it raises.
    """
    scale, name = question.scale, question.experiment
    own = Conditions(scale, name, places)
    systems = {question.dataset: list(question.systems)}
    # Which points share runs of the experiment depends on what the systems have chosen there.
    if not question.tuned_at_every_point and _are_to_choose(own, question.systems):
        _have_started(own, seeds, console, jobs=jobs, renew=renew)
        _let_choose(own, Needed(systems, {}, {}, []), {}, console, jobs)
    for conditions, some in question.runs(places):
        if conditions == own:
            needed = needed_of_systems(scale, name, {question.dataset: some})
        else:
            needed = Needed({question.dataset: some}, {}, {}, [])
        _run_under(conditions, needed, seeds, console, jobs=jobs, renew=renew)


def read_task(
    file: RecipeFile, own: Places, system: str, dataset: str | None, console: Console
) -> Task:
    """Returns the data of an experiment, which all of its systems share.

    Args:
        file: the recipe, with the folders of this machine.
        own: the folders of the experiment.
        system: one of the systems: where models start from others, so does the encoding.
        dataset: name of the data set.
        console: for facts about the data.
    """
    return prepare_task(
        file.system(system, dataset),
        own.runs / (dataset or ""),
        console,
        claimed=file.system(None, dataset),
        stamp_name=_STAMP,
    )


def _run_under(
    conditions: Conditions,
    needed: Needed,
    seeds: Sequence[int],
    console: Console,
    *,
    jobs: int,
    renew: bool,
) -> None:
    """Trains what is missing under conditions; without anything missing, no data are read."""
    runs = [
        (system, dataset, seed)
        for seed in seeds
        for dataset, systems in needed.systems.items()
        for system in conditions.plain.system_names  # the baseline first
        if system in systems
    ]
    if all(_keep(conditions, needed, *run, renew=renew).kept() is not None for run in runs):
        return
    _have_started(conditions, seeds, console, jobs=jobs, renew=renew)
    console.print(conditions.title, style="bold", highlight=False, markup=False)
    tasks = {
        dataset: read_task(conditions.file, conditions.own, systems[0], dataset, console)
        for dataset, systems in needed.systems.items()
    }
    for dataset, systems in needed.systems.items():
        _check_data(conditions, dataset, systems, tasks[dataset])
    if conditions.chooses:
        _let_choose(conditions, needed, tasks, console, jobs)
    planned = []
    for system, dataset, seed in runs:
        recipe = conditions.file.system(system, dataset, conditions.choice(system))
        # Only now, since the recipe that is kept with the run has what the system has chosen.
        keep = _keep(conditions, needed, system, dataset, seed, renew=renew)
        planned.append(
            PlannedRun(
                recipe=with_seed(recipe, seed),
                system=system,
                folder=conditions.run_folder(system, dataset, seed),
                task=tasks[dataset],
                label=" ".join([*([dataset] if dataset else []), system, f"seed {seed}"]),
                train=partial(train_and_keep, keep=keep),
                finished=partial(kept_run, keep=keep),
            )
        )
    train_runs(planned, console, jobs=jobs)


def _check_data(
    conditions: Conditions, dataset: str | None, systems: Iterable[str], task: Task
) -> None:
    """Raises `ValueError` if runs are kept that were made on other data: no test may mix them."""
    others = [
        kept.path
        for system in systems
        for kept in kept_runs(
            conditions.own.evidence,
            Subject(system=system, dataset=dataset),
            conditions.recipe(system, dataset),
        )
        if kept.run.data != task.digest()
    ]
    if others:
        raise ValueError(
            f"the data of {conditions.title} are not those of {len(others)} runs that are kept, "
            f"such as {others[0]}, and no claim may rest on both: use the same data, or keep all "
            f"runs on these data in another folder, with --evidence"
        )


def _have_started(
    conditions: Conditions, seeds: Sequence[int], console: Console, *, jobs: int, renew: bool
) -> None:
    """Trains the runs from which others start."""
    scale = conditions.scale
    for other, systems in conditions.experiment.needs.items():
        before = models_to_start_from(scale, other, systems)
        run_experiment(
            *(scale, other, before, seeds[:1], conditions.places, console), jobs=jobs, renew=renew
        )


def _are_to_choose(conditions: Conditions, systems: Iterable[str]) -> bool:
    return grid_of(conditions.experiment) is not None and any(
        conditions.tries(system) is None for system in systems
    )


def _let_choose(
    conditions: Conditions,
    needed: Needed,
    tasks: dict[str | None, Task],
    console: Console,
    jobs: int,
) -> None:
    """Lets systems choose tuned values; `tasks` has the data that are read already."""
    if (grid := grid_of(conditions.experiment)) is None:
        return
    on, file, own = conditions.experiment.tune_on, conditions.file, conditions.own
    if on not in tasks:
        named = {system for systems in needed.systems.values() for system in systems}
        first = next(system for system in conditions.plain.system_names if system in named)
        tasks[on] = read_task(file, own, first, on, console)
    let_choose(file, conditions.plain, own, tasks[on], on, needed, grid, console, jobs)


def _keep(
    conditions: Conditions,
    needed: Needed,
    system: str,
    dataset: str | None,
    seed: int,
    *,
    renew: bool,
) -> Keep:
    return Keep(
        path=conditions.run_path(system, dataset, seed),
        recipe=conditions.recipe(system, dataset),
        ablations=needed.ablations.get(system, ()),
        scored=needed.scored.get(system, ()),
        model=conditions.run_folder(system, dataset, seed) / MODEL if needed.models else None,
        renew=renew,
    )
