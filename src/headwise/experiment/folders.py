"""Folders of runs: what the files in them are called, and what they are a run of."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from yaml import YAMLError

from headwise.checksums import write_summed
from headwise.experiment.run_folder import (
    CORPUS,
    RECIPE,
    RESULT,
    FolderError,
    check_stamp,
    how_to_mend,
)
from headwise.files import write_text
from headwise.recipe import differences, to_yaml
from headwise.recipe.pretrained import model_folder
from headwise.recipe.settings import Recipe
from headwise.tasks.pretrained import digest_weights
from headwise.tasks.task import Task

PRETRAINED = "pretrained.sha256"  # of the weights that a run has started from
# Recipes that differ in these keys alone are of the same run.
_NOT_OF_TRAINING = ("description:", "data.tests.", "training.snapshots:", "training.report_to:")


def claim_folder(folder: Path, recipe: Recipe, stamp_name: str = RECIPE) -> None:
    """Make `folder` the folder of this recipe's run, if it is not yet.

    A comparison stamps its folder with another name than a run does.

    Raises:
        FolderError: as `check_folder` does.
    """
    check_folder(folder, recipe, stamp_name)
    stamp = folder / stamp_name
    if is_main_process() and (not stamp.is_file() or _differs(stamp, recipe)):
        folder.mkdir(parents=True, exist_ok=True)
        write_summed(stamp, to_yaml(recipe))


def check_folder(folder: Path, recipe: Recipe, stamp_name: str = RECIPE) -> None:
    """Find out whether `folder` is, or can become, that of this recipe's run.

    Raises:
        FolderError: it holds the run of another recipe (says how they differ), or other things.
    """
    if not is_main_process():
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
    whether snapshots are taken do not count.
    """
    stamp = folder / stamp_name
    if not stamp.is_file():
        return []
    lines = _differs(stamp, recipe)
    return [line for line in lines if not line.startswith(_NOT_OF_TRAINING)]


def _differs(stamp: Path, recipe: Recipe) -> list[str]:
    """Returns a line for each key in which a recipe differs from the one in a file."""
    check_stamp(stamp)
    now = to_yaml(recipe)
    try:
        text = stamp.read_text(encoding="utf-8")
        return [] if text == now else differences(text, now)
    except (OSError, ValueError, YAMLError) as error:
        raise FolderError(f"{stamp} cannot be read ({error}): {how_to_mend(stamp)}") from error


def check_start(folder: Path, recipe: Recipe) -> None:
    """Note which weights a run starts from, or find out whether they are still the same.

    Raises:
        FolderError: `model.pretrained` had other weights when the run was started.
        ValueError: there is no model of which the run could start.
    """
    run, stamp = recipe.pretrained_run(), folder / PRETRAINED
    if run is None or not is_main_process():
        return
    if (folder / RESULT).is_file() and not model_folder(run).is_dir():
        return  # a finished run does without
    digest = digest_weights(run)
    if not stamp.is_file():
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
    """The hash that a run has kept.

    Raises:
        FolderError: the file has none.
    """
    digest = stamp.read_text(encoding="utf-8", errors="replace").strip()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise FolderError(
            f"{stamp} has no SHA-256 and is damaged: if the data and the weights that the run is "
            f"started with are those it was started with before, delete the file, and it is "
            f"written anew"
        )
    return digest


def is_main_process() -> bool:
    """Whether this is the process that prints and writes; the only one without `torchrun`.

    Some clusters set `RANK` for a process that trains alone.
    """
    return launched_processes() == 1 or int(os.environ.get("RANK", "0")) == 0


def launched_processes() -> int:
    """The number of processes that `torchrun` has started for this command."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Returns names that tell folders apart: their last part, or as many parts as it takes."""
    paths = [folder.resolve() for folder in folders]
    for parts in range(1, 9):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({number})" for number, path in enumerate(paths, 1)]
