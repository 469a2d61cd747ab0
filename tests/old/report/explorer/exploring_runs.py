"""Runs of tiny models that nobody has trained, as `headwise explore` opens them."""

from pathlib import Path

import tiny_tasks
from rich.console import Console

from headwise.recipes import load_recipe
from headwise.runs.preparing import build_model, claim_folder, prepare_task

QUIET = Console(quiet=True)


def write_run(folder: Path, task: str, system: str, **model: object) -> Path:
    """Writes a run whose model has random weights; returns its folder.

    Args:
        folder: an empty folder.
        task, system: names, as `tiny_tasks` has them.
        model: keys of `model` that are to be otherwise.
    """
    recipe = load_recipe(str(tiny_tasks.write_recipe(task, folder))).system(system)
    if model:
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update=model)})
    run = folder / f"{task}-{system}"
    claim_folder(run, recipe)
    given = prepare_task(recipe, run, QUIET)
    build_model(recipe, given).save_pretrained(run / "model")
    return run
