"""Trains a try: a run that only shows how well a system learns with some values.

It is judged by the loss on the validation part; the test part is not looked at. Its folder keeps

    recipe.yaml     what it is a try of
    try.json        the loss; once it is there the try is finished

and until then the checkpoints that it goes on from.
"""

import shutil
from pathlib import Path

from rich.console import Console

from headwise.analysis.results import TryResult
from headwise.checksums import write_summed
from headwise.recipe.settings import Recipe
from headwise.runs.folders import claim_folder, is_main_process
from headwise.runs.history import curves
from headwise.runs.one_run import train_model
from headwise.runs.preparing import batches
from headwise.runs.reading import DamagedError, discard, read_record
from headwise.tasks.task import Task
from headwise.training.checkpoints import checkpoints
from headwise.training.run import MODEL, threads_of_run
from headwise.training.validation import validation_loss

TRY = "try.json"


def train_try(
    recipe: Recipe, name: str, folder: Path, task: Task, console: Console, label: str = ""
) -> TryResult:
    """Trains a try in `folder`, from wherever an earlier start got to.

    Args:
        recipe: of the try.
        name: of the system.
        folder: of the try.
        task: the recipe's data.
        console: for the bars.
        label: what they call the try; by default the name.

    Raises:
        FolderError: the folder is that of another try.
        Interrupted: Ctrl-C came; the next call goes on.
    """
    claim_folder(folder, recipe)
    finished = finished_try(recipe, folder, task, console, label)
    if finished is not None:
        return finished
    with threads_of_run(folder, label or name, console):
        run = train_model(recipe, folder, task, console, label or name)
        loss = validation_loss(run.model, batches(task, task.validation, recipe.training))
    result = TryResult(
        validation_loss=loss,
        steps=run.steps,
        seconds=run.history[-1]["seconds"],
        history=curves(run.history),
    )
    if is_main_process():
        write_summed(folder / TRY, result.model_dump_json(indent=1))
        for used in (*checkpoints(folder), folder / MODEL):
            shutil.rmtree(used)
    return result


def finished_try(
    recipe: Recipe, folder: Path, task: Task, console: Console, label: str
) -> TryResult | None:
    """Returns the result of a try, or None while it is not finished.

    A damaged one is removed, so that the try is trained again. The arguments are those of
    `train_try`.
    """
    if not (folder / TRY).is_file():
        return None
    try:
        return read_record(TryResult, folder / TRY, "the try has to be trained again")
    except DamagedError as error:
        discard(folder / TRY, error, console, label, "the try is trained again")
        return None
