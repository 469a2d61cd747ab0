"""Trains the runs of a comparison."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rich.console import Console

from headwise.analysis.results import RunResult
from headwise.recipe.settings import Recipe
from headwise.tasks.task import Task

Runs = dict[str, list[RunResult]]  # by system, a run for each seed
Result = TypeVar("Result")


@dataclass(frozen=True)
class PlannedRun(Generic[Result]):
    """A run of a comparison, before it is trained.

    Attributes:
        recipe: of the run, with its seed.
        system: name of the system.
        folder: of the run.
        task: the data.
        label: what progress bars call the run.
        train: trains it and returns its result: `train_system`, which also evaluates it, or
            `train_try`.
    """

    recipe: Recipe
    system: str
    folder: Path
    task: Task
    label: str
    train: Callable[[Recipe, str, Path, Task, Console, str], Result]


def train_runs(planned: Sequence[PlannedRun[Result]], console: Console) -> list[Result]:
    """Trains runs; what their folders already hold is not trained again.

    Returns:
        The results, in the order of `planned`.

    Raises:
        FolderError: a folder is that of another run.
        Interrupted: Ctrl-C came; the next call goes on.
    """
    return [
        run.train(run.recipe, run.system, run.folder, run.task, console, run.label)
        for run in planned
    ]
