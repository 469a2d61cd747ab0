"""Trains the runs that claims need and have not, and keeps what they gave.

Runs are trained in folders of their own, as `headwise compare` does it: they can be stopped at any
time, and go on. What the claims need of a finished run is then kept in `evidence`, after which the
run is never trained again, on no machine.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from headwise.analysis.behaviour.ablations.group_losses import MEAN_LOSS, group_losses
from headwise.analysis.surroundings import machine, versions
from headwise.claims.declared import Scale
from headwise.claims.evidence import (
    LOSS,
    StoredRun,
    StoredTries,
    best_step,
    read_run,
    read_tries,
    rows_key,
    rows_of,
    run_path,
    thinned,
    tuning_path,
    write_run,
)
from headwise.claims.experiments import (
    Places,
    chosen_changes,
    find_experiment,
    grid_of,
    read_recipe,
    recipe_hash,
)
from headwise.claims.fingerprint import computes_alike, fingerprint
from headwise.claims.needed import Needed, models_to_start_from
from headwise.comparison.planned import PlannedRun
from headwise.comparison.running import train_runs
from headwise.comparison.summary import Experiment as Prepared
from headwise.comparison.tuning.candidates import candidates
from headwise.comparison.tuning.choosing import tune
from headwise.experiment.one_system import train_system
from headwise.experiment.outcomes import evaluate, read_outcome
from headwise.experiment.preparing import prepare_task, with_seed
from headwise.experiment.reading import read_model
from headwise.files import write_text
from headwise.models.ablation import ablated
from headwise.models.ablation_names import parse_ablations
from headwise.models.base import HeadwiseModel
from headwise.recipe import RecipeFile
from headwise.recipe.file import Change
from headwise.recipe.settings import Recipe
from headwise.tasks.significance import score_of
from headwise.tasks.task import Task
from headwise.training.checkpoints import checkpoints
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
        _choose(file, plain, own, tasks[on], on, needed, grid, console, jobs)
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


def choice_of(plain: RecipeFile, evidence: Path, system: str) -> list[Change]:
    """Returns the values that a system has chosen, as changes to its recipe; empty if none.

    Args:
        plain: the recipe of the experiment, with the names of folders as `read_recipe` leaves them.
        evidence: the folder with the evidence of the experiment.
        system: name of the system.
    """
    kept = read_tries(tuning_path(evidence, system))
    if kept is None or kept.recipe != hash_before_choice(plain, system):
        return []
    return chosen_changes(kept.chosen_values)


def hash_before_choice(plain: RecipeFile, system: str) -> str:
    """Returns a hash of the recipe of a system before it chose."""
    dataset = None if plain.has_data else plain.dataset_names[0]
    return recipe_hash(plain.system(system, dataset))


@dataclass(frozen=True)
class Keep:
    """What is to be kept of a run, and where.

    Attributes:
        path: of the record.
        recipe: of the system, with the names of folders as `read_recipe` leaves them.
        ablations: under which the loss is computed.
        scored: ablations under which the scores are computed too.
        model: folder of the model, where others start from it; None if it is not needed any more.
    """

    path: Path
    recipe: Recipe
    ablations: tuple[str, ...]
    scored: tuple[str, ...]
    model: Path | None = None

    def kept(self) -> StoredRun | None:
        """Returns the record of the run, if it has all of this."""
        found = read_run(self.path)
        if found is None or found.recipe != recipe_hash(self.recipe):
            return None
        if self.model is not None and not self.model.is_dir():
            return None
        return found if set(self.ablations) <= set(found.ablations) else None


def kept_run(
    recipe: Recipe, folder: Path, task: Task, console: Console, label: str, *, keep: Keep
) -> StoredRun | None:
    """Returns what is kept of a run, or None while it is not finished."""
    return keep.kept()


def train_and_keep(
    recipe: Recipe,
    name: str,
    folder: Path,
    task: Task,
    console: Console,
    label: str = "",
    *,
    keep: Keep,
) -> StoredRun:
    """Trains a run as `train_system` does, and keeps what the claims need of it."""
    result = train_system(recipe, name, folder, task, console, label)
    model = read_model(folder, type(task))
    outcome = read_outcome(folder)
    rows = {rows_key(outcome.scores[0].name): rows_of(outcome)}
    for test in task.tests:
        further = read_outcome(folder, test)
        rows[rows_key(further.scores[0].name, test=test)] = rows_of(further)
    rows[rows_key(LOSS)] = losses = group_losses(model, task.test, task.collate)
    loss = float(score_of(losses, MEAN_LOSS))
    ablations, scores = {}, {}
    for text in keep.ablations:
        rows[rows_key(LOSS, ablation=text)] = losses = _losses_without(model, task, text)
        ablations[text] = float(score_of(losses, MEAN_LOSS))
    for text in keep.scored:
        settings = recipe.evaluation.model_copy(update={"ablation": parse_ablations([text])})
        made = evaluate(model, task, task.test, settings, console, f"{label} {text}")
        rows[rows_key(made.scores[0].name, ablation=text)] = rows_of(made)
        scores[text] = made.scores
    run = StoredRun(
        system=name,
        seed=recipe.training.seed,
        recipe=recipe_hash(keep.recipe),
        data=task.digest(),
        fingerprint=fingerprint(keep.recipe),
        parameters=result.parameters,
        macs=result.macs,
        steps=result.steps,
        minutes=result.seconds / 60,
        threads=result.threads,
        validation_loss=result.validation_loss,
        best_step=best_step(result.history),
        history=thinned(result),
        scores=result.scores,
        tests=result.tests,
        loss=loss,
        ablations=ablations,
        ablated_scores=scores,
        attention=result.attention,
        versions=versions(),
        machine=machine(),
    )
    write_run(keep.path, run, {name: of for name, of in rows.items() if of is not None})
    for used in checkpoints(folder):
        shutil.rmtree(used)  # the model stays, since others may start from it
    return run


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


def _choose(
    file: RecipeFile,
    plain: RecipeFile,
    own: Places,
    task: Task,
    dataset: str | None,
    needed: Needed,
    grid: Any,
    console: Console,
    jobs: int,
) -> None:
    """Lets every system choose that has not done so, and keeps what it has chosen."""
    names = {system for systems in needed.systems.values() for system in systems}
    waiting = [
        name
        for name in file.system_names
        if name in names
        and (
            (kept := read_tries(tuning_path(own.evidence, name))) is None
            or kept.recipe != hash_before_choice(plain, name)
        )
    ]
    if not waiting:
        return
    recipes = {name: file.system(name, dataset) for name in waiting}
    tried = {dataset: {name: candidates(file, name, dataset, grid) for name in waiting}}
    prepared = Prepared(own.runs / (dataset or ""), task, recipes, matched={}, tries={})
    chosen = tune({dataset: prepared}, tried, grid.steps, console, jobs)[dataset].tries
    for name, tries in chosen.items():
        made = StoredTries(recipe=hash_before_choice(plain, name), tries=tries)
        write_text(tuning_path(own.evidence, name), made.model_dump_json(indent=1) + "\n")


def _folder(own: Places, system: str, dataset: str | None, seed: int) -> Path:
    return own.runs / (dataset or "") / f"{system}-seed{seed}"


def _forget_if_out_of_date(keep: Keep, folder: Path) -> None:
    found = read_run(keep.path)
    if found is not None and not computes_alike(found.fingerprint, fingerprint(keep.recipe)):
        shutil.rmtree(folder, ignore_errors=True)
        keep.path.unlink()


def _losses_without(model: HeadwiseModel, task: Task, ablation: str) -> Any:
    with (
        torch.no_grad(),
        torch.random.fork_rng(),
        ablated(model.eval(), parse_ablations([ablation])),
    ):
        torch.manual_seed(0)  # what is drawn is the same for all systems
        return group_losses(model, task.test, task.collate)
