"""The folder of a run: its files, its recipe, and a lock, so that one process at a time writes.

    recipe.yaml       the recipe of the run; no other is ever trained in the folder
    inputs.txt        hashes of the data, and of the weights it starts from
    checkpoint-N/     all that training needs to resume from step N
    logs/             files of loggers, such as TensorBoard's
    log.txt           the output of a run that another process has started
    progress.json     the step of its training, for the bars of that process
    encoder/          a tokenizer or palette that a run of its comparison has from its start
    model/            the final model, with its tokenizer or palette, as transformers reads it
    outcome*.json     the scores of each item of a split, with outputs*.txt and picture*.png
    result.json       the figures of the run, which is finished once this file is there

A folder of a comparison has a folder for each run, `trials/SYSTEM/` with those of `--tune`,
`comparison.yaml` in place of `recipe.yaml`, `comparison.json` with what is compared, and the report
with its tables.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from headwise.analysis.results import RunResult
from headwise.files import clear_leftovers, write_text
from headwise.recipes.document import differences
from headwise.recipes.recipe import Recipe, load_recipe, task_class, to_yaml
from headwise.runs.names import (
    INPUTS,
    LAUNCHED,
    MODEL,
    READ_AGAIN,
    RECIPE,
    RESULT,
    FolderError,
    check_run,
)

# Recipes that differ in these keys alone are of the same run. Of data files the content counts.
_IGNORED_KEYS = (
    *("system:", "title:", "description:", "base:", "data.title:", "data.files.", "data.tests"),
    *("training.record_decisions:", "training.report_to"),
)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a folder; the system frees the lock of a killed process."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file, expected a folder; give another one by --output")
    folder.mkdir(parents=True, exist_ok=True)
    # As a singleton, the lock can be taken again by the process that holds it.
    lock = FileLock(folder / ".lock", is_singleton=True)
    try:
        # Where the process that had started a run has died, the run may still write a checkpoint.
        lock.acquire(timeout=120 if LAUNCHED in os.environ else 0)
    except Timeout:
        raise FolderError(
            f"{folder} is in use by another process: wait for it, or use another output folder"
        ) from None
    try:
        clear_leftovers(list(folder.iterdir()))  # of a killed process
        yield
    finally:
        lock.release()


def init_run_folder(folder: Path, recipe: Recipe, name: str = RECIPE) -> None:
    """Writes the recipe into the folder where it will be trained, unless another run is there.

    As long as nothing has been trained there, another recipe may take its place: the first start
    may have failed on a wrong setting.

    Args:
        folder: of a run, or of a comparison.
        recipe: the recipe that is trained there.
        name: of the file with the recipe: `comparison.yaml` for a comparison.

    Raises:
        FolderError: the folder holds a run of another recipe, or other things.
    """
    check_run_folder(folder, recipe, name)
    path, text = folder / name, to_yaml(recipe)
    if not path.is_file() or path.read_bytes() != text.encode():
        with locked(folder):  # another process may train there, before its first checkpoint
            write_text(path, text)


def check_run_folder(folder: Path, recipe: Recipe, name: str = RECIPE) -> None:
    """Raises `FolderError` unless `init_run_folder` accepts the folder; writes nothing."""
    path = folder / name
    if path.is_file():
        try:
            lines = differences(path.read_text(encoding="utf-8"), to_yaml(recipe))
        except ValueError as error:
            raise FolderError(f"{path} cannot be read: {error}") from error
        changed = [line for line in lines if not line.startswith(_IGNORED_KEYS)]
        if changed and _is_trained(folder):
            raise FolderError(
                f"{folder} holds a run of another recipe:\n  " + "\n  ".join(changed) + "\n"
                "Use the recipe it was started with, another output folder, or remove this one."
            )
    elif foreign := sorted(entry.name for entry in folder.glob("[!.]*")):
        raise FolderError(
            f"{folder} holds other things ({', '.join(foreign[:3])}) and no {name}: use another "
            f"output folder"
        )


def check_inputs(folder: Path, *digests: str) -> None:
    """Writes the hashes of the data, and of the weights to start from, or compares them.

    Once a run has been trained in the folder, the hashes are compared with those it began with.

    Raises:
        FolderError: one of them has changed since the run, or the comparison, was started.
    """
    before = read_inputs(folder) if _is_trained(folder) else []
    known = " (streamed files are known by their time of change, too, which cp -p keeps)"
    names = ("data", known), ("weights of model.pretrained", "")
    for (name, hint), old, new in zip(names, before, digests, strict=False):
        if old != new:
            raise FolderError(
                f"the {name} have changed since the run in {folder} was started{hint}: use another "
                f"output folder"
            )
    lines = [*digests, *before[len(digests) :]]  # weights may be gone since
    write_text(folder / INPUTS, "\n".join(lines))


def read_inputs(folder: Path) -> list[str]:
    """Returns the hashes of the data and weights of a run; none if it was never started."""
    path = folder / INPUTS
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _is_trained(folder: Path) -> bool:
    """Whether a run, or one of a comparison, has been trained in a folder."""
    return any(any(folder.rglob(name)) for name in ("checkpoint-*", MODEL, RESULT))


def read_recipe(
    folder: Path, changes: Sequence[str] = (), *, keys: Sequence[str] = READ_AGAIN
) -> Recipe:
    """Returns the recipe of a run, with changes that `check_run` allows."""
    check_run(folder, changes, keys)
    return load_recipe(str(folder / RECIPE), changes).recipe


def read_result(folder: Path) -> RunResult | None:
    """Returns the result of a run; None if it is not finished."""
    if not (folder / RESULT).is_file():
        return None
    with readable(folder / RESULT):
        return RunResult.model_validate_json((folder / RESULT).read_bytes())


def read_model(folder: Path) -> Any:
    """Returns the final model of a run, in evaluation mode, on the GPU if there is one.

    Raises:
        FolderError: the run is not finished, or its model cannot be read.
    """
    if not (folder / MODEL).is_dir():
        raise FolderError(f"{folder} is not a finished run: it has no {MODEL}")
    model_class = task_class(read_recipe(folder).task).model_class
    with readable(folder / MODEL):
        model: Any = model_class.from_pretrained(folder / MODEL)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raises `FolderError` if a file of a finished run cannot be read while the context is open."""
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise FolderError(
            f"{path} cannot be read ({' '.join(str(error).split())}): delete it and "
            f"{path.parent / RESULT}, and start the run again, which makes them anew"
        ) from error


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Returns names that tell folders apart: their last parts, or paths in a common one."""
    paths = [folder.resolve() for folder in folders]
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        common = os.path.commonpath(paths)
        names = [os.path.relpath(path, common) for path in paths]
    return names
