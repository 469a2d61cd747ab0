"""Before training: the folder of a run, its data, its batches and its model."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.utils.data import DataLoader
from transformers import set_seed
from yaml import YAMLError

from headwise.analysis.cost import count_parameters
from headwise.data.divide import Facts
from headwise.files import write_text
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.document import differences
from headwise.recipes.pretrained import digest_weights
from headwise.recipes.recipe import Recipe, task_class, to_yaml
from headwise.runs.folder import (
    CORPUS,
    MODEL,
    RECIPE,
    RESULT,
    FolderError,
    is_writer,
)
from headwise.tasks.task import Task
from headwise.training.batching import BatchLoader, Stream, TokenBudgetSampler
from headwise.training.checkpoints import CONFIG, DAMAGED
from headwise.training.loggers import check_loggers
from headwise.training.processes import gathered
from headwise.training.settings import TrainingSettings

PRETRAINED = "pretrained.sha256"  # of the weights that a run has started from
# Recipes that differ in these keys alone are of the same run. Of files, their content counts.
_NOT_OF_TRAINING = (
    *("title:", "description:", "base:", "data.title:", "data.files.", "data.tests"),
    *("training.snapshots:", "training.report_to"),
)
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

    A folder without a run gives none. Titles, descriptions, further test sets, the paths of files,
    loggers, and whether snapshots are taken do not count. Nor does anything while nothing has been
    trained: the start may have failed on a setting that was wrong.
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
    model, stamp = recipe.pretrained_folder(), folder / PRETRAINED
    if model is None or not model.is_dir():
        return
    digest = digest_weights(model)
    if not stamp.is_file() or not _is_trained(folder):
        write_text(stamp, digest + "\n")
    elif _read_digest(stamp) != digest:
        raise FolderError(
            f"{folder} was started from other weights: those of model.pretrained, {model}, have "
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


def with_model(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with other values of keys of `model`."""
    return recipe.model_copy(update={"model": {**recipe.model, **changes}})


def prepare_task(
    recipe: Recipe,
    folder: Path,
    console: Console,
    *,
    claimed: Recipe | None = None,
    stamp_name: str = RECIPE,
) -> Task:
    """Reads a recipe's data, and claims the folder of its run, or of a comparison.

    Data are encoded as by the models that the folder has. Until it has one, what encodes them is
    learned, and stands in the cache for a run that goes on.
    """
    check_loggers(recipe.training.report_to)
    claimed = claimed or recipe
    check_folder(folder, claimed, stamp_name)
    models = [folder / MODEL, *sorted(folder.glob(f"*/{MODEL}"))]
    finished = next((model for model in models if (model / CONFIG).is_file()), None)
    task = task_class(recipe.task)(recipe, finished)
    for line in lines_of(task.facts):
        console.print(line, style="dim", highlight=False, markup=False)
    corpus, is_other = folder / CORPUS, is_other_data(task, folder)
    if is_other and _is_trained(folder):
        raise FolderError(
            f"{folder} holds runs on other data: the corpus has changed since they were started; "
            f"use another output folder"
        )
    if len(set(gathered(task.digest()))) > 1:
        raise ValueError(
            "data read other items, or encode them otherwise, on one of the machines than on "
            "another, expected the same on all of them: give all the same files, and the same "
            "versions of headwise and its libraries"
        )
    claim_folder(folder, claimed, stamp_name)
    if is_writer() and (is_other or not corpus.is_file()):
        write_text(corpus, task.digest() + "\n")
    return task


def lines_of(facts: Facts) -> list[str]:
    """Returns facts about data as lines of text.

    >>> lines_of({"train": {"rows": 1200, "SHA-256": "52ab"}})
    ['train: rows 1,200, SHA-256 52ab']
    """
    return [
        f"{part}: " + ", ".join(f"{name} {_fact(value)}" for name, value in of_part.items())
        for part, of_part in facts.items()
    ]


def _fact(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def batches(
    task: Task, part: str, settings: TrainingSettings, seed: int | None = None
) -> DataLoader:
    """The batches of one part; in a fixed order without a seed."""
    items = task.parts[part]
    if isinstance(items, Stream):
        stream = items.batches(
            task.collate, settings.batch_tokens, seed=seed or 0, rank=0, world_size=1
        )
        loader: DataLoader = stream.loader()
        return loader
    sampler = TokenBudgetSampler(
        items.lengths, settings.batch_tokens, seed=seed or 0, shuffle=seed is not None
    )
    return BatchLoader(items, sampler, task.collate)


def build_model(recipe: Recipe, task: Task) -> HeadwiseModel:
    """Returns the model of a recipe: initialised from its seed, or the one that it starts from."""
    _check_memory(count_parameters(empty_model(recipe, task)))
    set_seed(recipe.training.seed)
    return task.build_model(recipe)


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


def empty_model(recipe: Recipe, task: Task | None = None) -> HeadwiseModel:
    """Returns a model that has no memory for its weights: to count them, or to see its systems.

    Without its task it is of the largest size that the recipe allows.
    """
    kind = task_class(recipe.task)
    with torch.device("meta"):
        return kind.model_class(kind.config(recipe, task))
