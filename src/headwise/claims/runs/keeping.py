"""Trains a run as `headwise train` does, and keeps what the claims need of it."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from headwise.analysis.ablations.quality import MEAN_LOSS, group_losses
from headwise.analysis.results import machine, versions
from headwise.claims.catalogue.experiments import recipe_hash
from headwise.claims.evidence.fingerprint import computes_alike, fingerprint
from headwise.claims.evidence.kept_runs import fingerprint_today
from headwise.claims.evidence.records import (
    LOSS,
    StoredRun,
    best_step,
    read_run,
    rows_key,
    rows_of,
    thinned,
    write_run,
)
from headwise.models.ablation import ablated, parse_ablations
from headwise.models.base import HeadwiseModel
from headwise.recipe.settings import Recipe
from headwise.runs.one_run import train_system
from headwise.runs.outcomes import evaluate, read_outcome
from headwise.runs.reading import read_model
from headwise.tasks.significance import score_of
from headwise.tasks.task import Task
from headwise.training.checkpoints import checkpoints


@dataclass(frozen=True)
class Keep:
    """What is to be kept of a run, and where.

    Attributes:
        path: of the record.
        recipe: of the system, with the names of folders as `read_recipe` leaves them.
        ablations: under which the loss is computed.
        scored: ablations under which the scores are computed too.
        model: folder of the model, where others start from it; None if it is not needed any more.
        renew: whether a record counts for nothing if the code computes something else today.
    """

    path: Path
    recipe: Recipe
    ablations: tuple[str, ...]
    scored: tuple[str, ...]
    model: Path | None = None
    renew: bool = False

    def kept(self) -> StoredRun | None:
        """Returns the record of the run, if it has all of this and the model is there."""
        return None if self.model is not None and not self.model.is_dir() else self.record()

    def record(self) -> StoredRun | None:
        """Returns the record of the run, if it has all of this, wherever the model is."""
        found = read_run(self.path)
        if found is None or found.recipe != recipe_hash(self.recipe) or self.is_outdated():
            return None
        has_losses = set(self.ablations) <= set(found.ablations)
        has_scores = set(self.scored) <= set(found.ablated_scores)
        return found if has_losses and has_scores else None

    def is_outdated(self) -> bool:
        """Returns whether there is a record that is to be renewed."""
        if not self.renew or (found := read_run(self.path)) is None:
            return False
        return not computes_alike(found.fingerprint, fingerprint_today(self.recipe))


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
    """Trains a run as `train_system` does, and keeps what the claims need of it.

    Where everything is kept but the model that others start from, the record stays as it is: other
    claims rest on it, and another machine would give slightly different numbers.
    """
    if keep.is_outdated():  # only now, so that nothing is lost before its place is taken
        shutil.rmtree(folder, ignore_errors=True)
        keep.path.unlink()
    known = keep.record()
    result = train_system(recipe, name, folder, task, console, label)
    if known is not None:
        _forget_checkpoints(folder)
        return known
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
    _forget_checkpoints(folder)
    return run


def _forget_checkpoints(folder: Path) -> None:
    for used in checkpoints(folder):
        shutil.rmtree(used)  # the model stays, since others may start from it


def _losses_without(model: HeadwiseModel, task: Task, ablation: str) -> Any:
    with (
        torch.no_grad(),
        torch.random.fork_rng(),
        ablated(model.eval(), parse_ablations([ablation])),
    ):
        torch.manual_seed(0)  # what is drawn is the same for all systems
        return group_losses(model, task.test, task.collate)
