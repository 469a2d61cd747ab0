"""What is there before training: the data of a recipe, its batches and its model."""

import os
from pathlib import Path

import torch
from rich.console import Console
from transformers import set_seed

from headwise.files import write_text
from headwise.models.base import HeadwiseModel
from headwise.recipe.catalogue import task_class
from headwise.recipe.settings import ModelSettings, Recipe
from headwise.runs.folders import (
    CORPUS,
    RECIPE,
    FolderError,
    check_folder,
    claim_folder,
    is_main_process,
    is_other_data,
)
from headwise.tasks.task import Items, Task
from headwise.training.batching import BatchLoader, TokenBudgetSampler
from headwise.training.loggers import check_loggers
from headwise.training.settings import TrainingSettings


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
    """Read a recipe's data and learn what encodes them, or load what `folder` has.

    Args:
        recipe: says which data.
        folder: becomes that of `claimed`, once the data have been read.
        console: for facts about the data.
        claimed: by default the recipe; a comparison's folder is that of several.
        stamp_name: as in `claim_folder`.

    Raises:
        FolderError: the runs in `folder` were started on other data, or it is of something else.
        ValueError: a logger of the recipe is not installed.
    """
    check_loggers(recipe.training.report_to)
    claimed = claimed or recipe
    check_folder(folder, claimed, stamp_name)
    task = task_class(recipe.task).prepare(recipe, folder)
    for label, words in task.notes.items():
        console.print(f"{label}: {words}", style="dim", highlight=False, markup=False)
    if is_other_data(task, folder):
        raise FolderError(
            f"{folder} holds runs on other data: the corpus has changed since they were started; "
            f"use another output folder"
        )
    claim_folder(folder, claimed, stamp_name)
    if is_main_process() and not (folder / CORPUS).is_file():
        task.save(folder)
        write_text(folder / CORPUS, task.digest() + "\n")
    return task


def batches(
    task: Task, part: Items, settings: TrainingSettings, seed: int | None = None
) -> BatchLoader:
    """The batches of one part; in a fixed order without a seed."""
    sampler = TokenBudgetSampler(
        part.lengths, settings.batch_tokens, seed=seed or 0, shuffle=seed is not None
    )
    return BatchLoader(part, sampler, task.collate)


def build_model(recipe: Recipe, task: Task) -> HeadwiseModel:
    """Returns the model of a recipe: initialised from its seed, or the one that it starts from.

    Raises:
        ValueError: the model cannot start from the run that `model.pretrained` names, or this
            machine has no memory for its weights.
    """
    _check_memory(task.model_config(recipe.model).count_parameters())
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
