"""Has the runs trained that claims need and that are missing.

Runs are trained in folders of their own, as `headwise compare` does it: they can be stopped at any
time, and go on. What the claims need of a finished run is then kept in `evidence`, and no machine
that has the evidence trains the run again.
"""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from headwise.claims.choosing import choice_of, let_choose
from headwise.claims.declared import Scale
from headwise.claims.evidence import read_run, run_path
from headwise.claims.experiments import Places, find_experiment, grid_of, read_recipe
from headwise.claims.fingerprint import computes_alike, fingerprint
from headwise.claims.keeping import Keep, kept_run, train_and_keep
from headwise.claims.needed import Needed, models_to_start_from
from headwise.comparison.planned import PlannedRun
from headwise.comparison.running import train_runs
from headwise.experiment.preparing import prepare_task, with_seed
from headwise.recipe import RecipeFile
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
    experiment = find_experiment(scale, name)
    own = places.of(scale, name)
    plain = read_recipe(experiment, None)
    runs = [
        (system, dataset, seed)
        for seed in seeds
        for dataset, systems in needed.systems.items()
        for system in plain.system_names  # the baseline first
        if system in systems
    ]
    if renew:
        for run in runs:
            _forget_if_out_of_date(_keep(plain, own, needed, *run), _folder(own, *run))
    if all(_keep(plain, own, needed, *run).kept() is not None for run in runs):
        return
    for other, systems in experiment.needs.items():
        before = models_to_start_from(scale, other, systems)
        run_experiment(scale, other, before, seeds[:1], places, console, jobs=jobs, renew=renew)
    file = read_recipe(experiment, own)
    console.print(f"{scale} {name}", style="bold", highlight=False, markup=False)
    tasks = {
        dataset: read_task(file, own, systems[0], dataset, console)
        for dataset, systems in needed.systems.items()
    }
    if (grid := grid_of(experiment)) is not None:
        on = experiment.tune_on
        if on not in tasks:
            tasks[on] = read_task(file, own, runs[0][0], on, console)
        let_choose(file, plain, own, tasks[on], on, needed, grid, console, jobs)
    planned = []
    for system, dataset, seed in runs:
        keep = _keep(plain, own, needed, system, dataset, seed)
        recipe = file.system(system, dataset, choice_of(plain, own.evidence, system))
        planned.append(
            PlannedRun(
                recipe=with_seed(recipe, seed),
                system=system,
                folder=_folder(own, system, dataset, seed),
                task=tasks[dataset],
                label=" ".join([*([dataset] if dataset else []), system, f"seed {seed}"]),
                train=partial(train_and_keep, keep=keep),
                finished=partial(kept_run, keep=keep),
            )
        )
    train_runs(planned, console, jobs=jobs)


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


def _keep(
    plain: RecipeFile,
    own: Places,
    needed: Needed,
    system: str,
    dataset: str | None,
    seed: int,
) -> Keep:
    return Keep(
        path=run_path(own.evidence / (dataset or ""), system, seed),
        recipe=plain.system(system, dataset, choice_of(plain, own.evidence, system)),
        ablations=needed.ablations.get(system, ()),
        scored=needed.scored.get(system, ()),
        model=_folder(own, system, dataset, seed) / MODEL if needed.models else None,
    )


def _folder(own: Places, system: str, dataset: str | None, seed: int) -> Path:
    return own.runs / (dataset or "") / f"{system}-seed{seed}"


def _forget_if_out_of_date(keep: Keep, folder: Path) -> None:
    found = read_run(keep.path)
    if found is not None and not computes_alike(found.fingerprint, fingerprint(keep.recipe)):
        shutil.rmtree(folder, ignore_errors=True)
        keep.path.unlink()
