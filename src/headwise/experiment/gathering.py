"""Finished runs in folders, with a number of their recipes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwise.analysis.results import RunResult
from headwise.experiment.reading import read_result
from headwise.experiment.run_folder import (
    RECIPE,
    RESULT,
    FolderError,
    check_holds_runs,
    check_stamp,
)
from headwise.messages import cut, did_you_mean, shown
from headwise.plain_yaml import read_yaml
from headwise.recipe.differences import flatten
from headwise.recipe.file import split_path


def gather_runs(folders: Sequence[Path], key: str) -> list[tuple[float, RunResult]]:
    """Returns the finished runs in folders, each with the value of a key of its recipe.

    Args:
        folders: of runs, or of comparisons, whose runs may stand in folders of data sets.
        key: a key with a number, such as `data.train_fraction`.

    Raises:
        FolderError: a folder has no finished run.
        ValueError: a recipe has no number under the key.
    """
    found: dict[Path, tuple[float, RunResult]] = {}  # a run that two folders hold counts once
    for folder in folders:
        for run in check_holds_runs(folder):
            found[run.resolve()] = (_number(run, key), read_result(run / RESULT))
    return list(found.values())


def _number(run: Path, key: str) -> float:
    check_stamp(run / RECIPE)
    try:
        value: Any = read_yaml((run / RECIPE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise FolderError(f"{run / RECIPE} cannot be read: {error}") from None
    numbers = [name for name, each in flatten(value).items() if _is_number(each)]
    for name in split_path(key):
        value = value.get(name) if isinstance(value, dict) else None
    if not _is_number(value):
        raise ValueError(
            f"--over is {cut(key)}, of which the recipe of {run} has {shown(value)}, expected a "
            f"key with a number, such as data.train_fraction or model.embed_dim"
            f"{did_you_mean(key, numbers) if value is None else ''}"
        )
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
