"""Before training: the folder of a run, its data, its batches and its model."""

import os
import re
from pathlib import Path

import torch
from rich.console import Console
from torch.utils.data import DataLoader
from transformers import set_seed
from yaml import YAMLError

from headwise.analysis.cost import count_parameters
from headwise.files import write_text
from headwise.models.modeling import HeadwiseModel
from headwise.recipes import differences, to_yaml
from headwise.recipes.catalogue import task_class
from headwise.recipes.pretrained import digest_weights, model_folder
from headwise.recipes.settings import ModelSettings, Recipe
from headwise.runs.folder import (
    CORPUS,
    MODEL,
    RECIPE,
    RESULT,
    FolderError,
    is_writer,
)
from headwise.tasks.task import Items, Task
from headwise.training.batching import BatchLoader, TokenBudgetSampler
from headwise.training.checkpoints import DAMAGED
from headwise.training.loggers import check_loggers
from headwise.training.processes import gathered
from headwise.training.settings import TrainingSettings
from headwise.training.streaming import StreamedItems

PRETRAINED = "pretrained.sha256"  # of the weights that a run has started from
# Recipes that differ in these keys alone are of the same run.
_NOT_OF_TRAINING = ("description:", "data.tests.", "training.snapshots:", "training.report_to:")
# What training leaves in a folder or below it; the last is of a try.
_TRAINED = ("checkpoint-*", f"{DAMAGED}*", MODEL, RESULT, "try.json")


def claim_folder(folder: Path, recipe: Recipe, stamp_name: str = RECIPE) -> None:
    """Make `folder` the folder of this recipe's run, if it is not yet.

    A comparison stamps its folder with another name than a run does.
    """
    check_folder(folder, recipe, stamp_name)
    stamp = folder / stamp_name
    if is_writer() and (not stamp.is_file() or _differs(stamp, recipe)):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(stamp, to_yaml(recipe))


def check_folder(folder: Path, recipe: Recipe, stamp_name: str = RECIPE) -> None:
    """Find out whether `folder` is, or can become, that of this recipe's run."""
    if not is_writer():
        return
    if (folder / stamp_name).is_file():
        if changed := changed_keys(folder, recipe, stamp_name):
            raise FolderError(
                f"{folder} holds a run of another recipe:\n  "
                + "\n  ".join(changed)
                + "\nUse the recipe it was started with, another output folder, or remove this one."
            )
        return
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file: use another output folder")
    strangers = sorted(p.name for p in folder.glob("[!.]*"))
    if strangers:
        shown = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        raise FolderError(
            f"{folder} holds other things ({shown}) and no {stamp_name}: use another output folder"
        )


def changed_keys(folder: Path, recipe: Recipe, stamp_name: str = RECIPE) -> list[str]:
    """Compares a recipe with that of the run in a folder; returns a line for each key that differs.

    A folder without a run gives none. Descriptions, further test sets, loggers, and
    whether snapshots are taken do not count. Nor does anything while nothing has been trained: the
    start may have failed on a setting that was wrong.
    """
    stamp = folder / stamp_name
    if not stamp.is_file():
        return []
    lines = [line for line in _differs(stamp, recipe) if not line.startswith(_NOT_OF_TRAINING)]
    return lines if _is_trained(folder) else []


def _is_trained(folder: Path) -> bool:
    return any(any(folder.rglob(name)) for name in _TRAINED)


def _differs(stamp: Path, recipe: Recipe) -> list[str]:
    """Returns a line for each key in which a recipe differs from the one in a file."""
    now = to_yaml(recipe)
    try:
        text = stamp.read_text(encoding="utf-8")
        return [] if text == now else differences(text, now)
    except (OSError, ValueError, YAMLError) as error:
        raise FolderError(
            f"{stamp} cannot be read ({error}): put the recipe that the folder "
            f"was made with in its place, or use another output folder"
        ) from error


def check_start(folder: Path, recipe: Recipe) -> None:
    """Note which weights the run in a folder starts from, or find out whether they have changed.

    That the weights are gone is told when the model is made; a finished run does without.
    """
    if not is_writer() or not (folder / RECIPE).is_file():
        return
    run, stamp = recipe.pretrained_run(), folder / PRETRAINED
    if run is None or not model_folder(run).is_dir():
        return
    digest = digest_weights(run)
    if not stamp.is_file() or not _is_trained(folder):
        write_text(stamp, digest + "\n")
    elif _read_digest(stamp) != digest:
        raise FolderError(
            f"{folder} was started from other weights: those of model.pretrained, {run}, have "
            f"changed since; use another output folder"
        )


def is_other_data(task: Task, folder: Path) -> bool:
    """Whether the runs in a folder were started on other data than these."""
    stamp = folder / CORPUS
    return stamp.is_file() and _read_digest(stamp) != task.digest()


def _read_digest(stamp: Path) -> str:
    """The hash that a run has kept."""
    digest = stamp.read_text(encoding="utf-8", errors="replace").strip()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise FolderError(
            f"{stamp} has no SHA-256 and is damaged: if the data and the weights that the run is "
            f"started with are those it was started with before, delete the file, and it is "
            f"written anew"
        )
    return digest


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with another seed."""
    training = recipe.training.model_copy(update={"seed": seed})
    return recipe.model_copy(update={"training": training})


def prepare_task(
    recipe: Recipe,
    folder: Path,
    console: Console,
    *,
    claimed: Recipe | None = None,
    stamp_name: str = RECIPE,
) -> Task:
    """Read a recipe's data and learn what encodes them, or load what `folder` has."""
    check_loggers(recipe.training.report_to)
    claimed = claimed or recipe
    check_folder(folder, claimed, stamp_name)
    stamp, corpus, kind = folder / stamp_name, folder / CORPUS, task_class(recipe.task)
    # Until something is trained on it, the encoding in the folder may be of other data.
    is_trained = _is_trained(folder)
    is_new = not is_trained and (not corpus.is_file() or bool(_differs(stamp, claimed)))
    task = kind.prepare(recipe, None if is_new else folder)
    is_other = not is_new and is_other_data(task, folder)
    if is_other and not is_trained:
        is_new, task = True, kind.prepare(recipe)
    for label, words in task.notes.items():
        console.print(f"{label}: {words}", style="dim", highlight=False, markup=False)
    if is_other and is_trained:
        raise FolderError(
            f"{folder} holds runs on other data: the corpus has changed since they were started; "
            f"use another output folder"
        )
    if len(set(gathered((task.digest(), task.encoding())))) > 1:
        raise ValueError(
            "data read other items, or encode them otherwise, on one of the machines than on "
            "another, expected the same on all of them: give all the same files, and the same "
            "versions of headwise and its libraries"
        )
    if is_writer() and is_new:
        corpus.unlink(missing_ok=True)  # first: a kill leaves none with the encoding of before
    claim_folder(folder, claimed, stamp_name)
    if is_writer() and not corpus.is_file():
        task.save(folder)
        write_text(corpus, task.digest() + "\n")
    return task


def batches(
    task: Task, part: Items | StreamedItems, settings: TrainingSettings, seed: int | None = None
) -> DataLoader:
    """The batches of one part; in a fixed order without a seed."""
    if isinstance(part, StreamedItems):
        return part.batches(task.collate, settings.batch_tokens, seed=seed or 0).loader()
    sampler = TokenBudgetSampler(
        part.lengths, settings.batch_tokens, seed=seed or 0, shuffle=seed is not None
    )
    return BatchLoader(part, sampler, task.collate)


def build_model(recipe: Recipe, task: Task) -> HeadwiseModel:
    """Returns the model of a recipe: initialised from its seed, or the one that it starts from."""
    _check_memory(count_parameters(empty_model(recipe.model, task)))
    set_seed(recipe.training.seed)
    model = task.build_model(recipe.model)
    if (run := recipe.pretrained_run()) is not None:
        task.start_from(model, run)
    return model


def _check_memory(parameters: int) -> None:
    needed, there = 4 * parameters, installed_memory()
    if there is not None and needed > there:
        raise ValueError(
            f"the model has {parameters:,} parameters, whose weights take {needed / 1e9:,.0f} GB, "
            f"expected at most the {there / 1e9:,.0f} GB of memory of this machine: choose smaller "
            f"sizes; headwise cost shows which parts are large"
        )


def installed_memory() -> int | None:
    """Returns how many bytes of memory this machine has; None if the system does not tell."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def empty_model(settings: ModelSettings, task: Task) -> HeadwiseModel:
    """Returns a model that has no memory for its weights: to count them, or to see its systems."""
    with torch.device("meta"):
        return task.model_class(task.model_config(settings))
