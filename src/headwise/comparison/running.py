"""Trains the runs of a comparison."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from rich.console import Console

from headwise.analysis.results import RunResult
from headwise.recipe.settings import Recipe
from headwise.tasks.task import Task

Result = TypeVar("Result")
# Trains a run, as `train_system` does, from recipe, system, folder, task, console and label.
Train = Callable[[Recipe, str, Path, Task, Console, str], Result]
Runs = dict[str, list[RunResult]]  # by system, a run for each seed


class PlannedRun(NamedTuple):
    """A run of a comparison, before it is trained.

    Attributes:
        recipe: of the run, with its seed.
        system: name of the system.
        folder: of the run.
        task: the data.
        label: what progress bars call the run.
    """

    recipe: Recipe
    system: str
    folder: Path
    task: Task
    label: str


def train_runs(
    planned: Sequence[PlannedRun], train: Train[Result], console: Console
) -> list[Result]:
    """Trains runs; what their folders already hold is not trained again.

    Args:
        planned: what to train.
        train: trains one of them; `train_system` also evaluates it.
        console: for the bars.

    Returns:
        The results, in the order of `planned`.

    Raises:
        FolderError: a folder is that of another run.
        Interrupted: Ctrl-C came; the next call goes on.
    """
    return [
        train(run.recipe, run.system, run.folder, run.task, console, run.label) for run in planned
    ]
