"""Trains the runs of a comparison."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from headwise.analysis.results import RunResult
from headwise.experiment import train_system
from headwise.recipe.settings import Recipe
from headwise.tasks.task import Task

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


def train_runs(planned: Sequence[PlannedRun], console: Console) -> list[RunResult]:
    """Trains and evaluates runs; what their folders already hold is not trained again.

    Returns:
        The results, in the order of `planned`.

    Raises:
        FolderError: a folder is that of another run.
        Interrupted: Ctrl-C came; the next call goes on.
    """
    return [
        train_system(run.recipe, run.system, run.folder, run.task, console, run.label)
        for run in planned
    ]
