"""Reading what a run has left in its folder: its recipe, its model and its records."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open

from headwise.analysis.results import RunResult
from headwise.messages import cut, shown
from headwise.models.modeling import HeadwiseModel
from headwise.ops.checks import did_you_mean
from headwise.recipes.document import flatten
from headwise.recipes.recipe import Recipe, load_recipe, task_class
from headwise.runs.folder import (
    MODEL,
    READ_AGAIN,
    RECIPE,
    RESULT,
    FolderError,
    check_holds,
    check_holds_runs,
    check_run,
    is_writer,
)
from headwise.tasks.task import Task
from headwise.yaml import read_yaml

_Record = TypeVar("_Record", bound=BaseModel)


class DamagedError(FolderError):
    """A record of a run cannot be read.

    Attributes:
        problem: the file, and what is wrong with it, without what to do.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}: {remedy}")
        self.problem = problem


def discard(record: Path) -> None:
    """Deletes a record, so that it is made again."""
    if is_writer():
        record.unlink(missing_ok=True)


def open_run(folder: Path, changes: Sequence[str] = ()) -> tuple[Recipe, HeadwiseModel]:
    """The recipe and the final model of a run, to be used with the settings of its evaluation."""
    recipe = read_recipe(folder, changes, keys=("evaluation",))
    return recipe, read_model(folder, task_class(recipe.task))


def read_recipe(
    folder: Path, changes: Sequence[str] = (), *, keys: Sequence[str] = READ_AGAIN
) -> Recipe:
    """The recipe of a run, with changes to those keys that are read again."""
    check_run(folder, changes, keys)
    return load_recipe(str(folder / RECIPE), changes).recipe


def read_model(folder: Path, task: type[Task]) -> HeadwiseModel:
    """The final model of a run, in evaluation mode."""
    if not (folder / RESULT).is_file():
        check_holds(folder, "finished", MODEL)
    check_model(folder)
    try:
        model = task.model_class.from_pretrained(folder / MODEL)
    except (SafetensorError, OSError, ValueError) as error:
        raise FolderError(_how_to_mend_model(folder, str(error))) from error
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    return model.eval()


def check_model(folder: Path) -> None:
    """Raises `FolderError` if files of a finished run's final model are missing, or cut."""
    model = folder / MODEL
    try:
        json.loads((model / "config.json").read_text(encoding="utf-8"))
        for weights in model.glob("*.safetensors"):
            with safe_open(weights, "pt"):  # which reads where each tensor stands
                pass
    except (SafetensorError, OSError, ValueError) as error:
        raise FolderError(_how_to_mend_model(folder, str(error))) from error


def _how_to_mend_model(folder: Path, damage: str) -> str:
    return (
        f"{folder / MODEL} cannot be read ({damage}): delete {RESULT} from {folder}, if it is "
        f"there, and start the run again, which writes the model anew from its checkpoints"
    )


def check_finite(folder: Path, model: HeadwiseModel) -> None:
    """Raises `FolderError` if weights of a run's model are not finite: then it computes nothing."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise FolderError(
                f"{folder} has diverged: {name} has values that are not finite, so that its heads "
                f"do nothing to be looked at; leave the run out, or train it again with a smaller "
                f"training.learning_rate"
            )


def read_result(path: Path) -> RunResult:
    """The result of a finished run."""
    return read_record(RunResult, path, how_to_evaluate_again(path.parent))


def read_record(kind: type[_Record], path: Path, remedy: str) -> _Record:
    """Returns what a JSON file of a run holds."""
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise DamagedError(f"{path} cannot be read ({problem})", remedy) from error


def how_to_evaluate_again(folder: Path) -> str:
    return f"start the run in {folder} again, and it is evaluated again"


def gather_runs(folders: Sequence[Path], key: str) -> list[tuple[float, RunResult]]:
    """Returns the finished runs in folders, each with the value of a key of its recipe."""
    found: dict[Path, tuple[float, RunResult]] = {}  # a run that two folders hold counts once
    for folder in folders:
        for run in check_holds_runs(folder):
            found[run.resolve()] = (_number(run, key), read_result(run / RESULT))
    return list(found.values())


def _number(run: Path, key: str) -> float:
    try:
        values = flatten(read_yaml((run / RECIPE).read_text(encoding="utf-8")))
    except ValueError as error:
        raise FolderError(f"{run / RECIPE} cannot be read: {error}") from None
    value: Any = values.get(key.strip())
    numbers = [name for name, each in values.items() if _is_number(each)]
    if not _is_number(value):
        raise ValueError(
            f"--over is {cut(key)}, of which the recipe of {run} has {shown(value)}, expected a "
            f"key with a number, such as data.train_fraction or model.embed_dim"
            f"{did_you_mean(key, numbers) if value is None else ''}"
        )
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
