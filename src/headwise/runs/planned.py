"""The runs of a comparison: what is planned, and why one may fail."""

import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from rich.console import Console

from headwise.analysis.results import RunResult
from headwise.recipes.settings import Recipe
from headwise.runs.locking import LockedError, locked
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
        label: what bars and messages call the run.
        train: trains it in its folder and returns its result, from the attributes above and a
            console: `train_system`, or `train_try`, which evaluates nothing.
        finished: returns the result if the folder has it: `finished_result` or `finished_try`.
    """

    recipe: Recipe
    system: str
    folder: Path
    task: Task
    label: str
    train: Callable[[Recipe, str, Path, Task, Console, str], Result]
    finished: Callable[[Recipe, Path, Task, Console, str], Result | None]

    def make(self, console: Console) -> Result:
        """Trains the run in its folder, which is locked, and returns its result.

        Raises:
            LockedError: another process has the folder.
        """
        with locked(self.folder):
            return self.train(self.recipe, self.system, self.folder, self.task, console, self.label)

    def result(self, console: Console) -> Result | None:
        """Returns the result of the run, or None while it is not finished.

        What a process that was killed has left is removed. A run that another process has at work
        is not finished, whatever stands in its folder.
        """
        held = locked(self.folder) if self.folder.is_dir() else nullcontext()
        try:
            with held:
                return self.finished(self.recipe, self.folder, self.task, console, self.label)
        except LockedError:  # to be said when it is the run's turn
            return None


class Failure(NamedTuple):
    """Why a run failed.

    Attributes:
        reason: in a line or a few.
        traceback: empty if the reason says all, as of bad input and of a killed process.
    """

    reason: str
    traceback: str = ""

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Why a run failed that an exception has ended."""
        if isinstance(error, (ValueError, OSError)):  # says how to mend it
            return cls(str(error))
        reason = "".join(traceback.format_exception_only(error)).strip()
        return cls(reason, "".join(traceback.format_exception(error)))


class RunsFailed(Exception):
    """Some runs of a comparison failed; those that could be finished are.

    Attributes:
        failures: label of a run to why it failed.
    """

    def __init__(self, failures: dict[str, Failure], planned: int) -> None:
        self.failures = failures
        reasons = "".join(f"\n  {label}: {f.reason}" for label, f in failures.items())
        others = "; the others are finished" if len(failures) < planned else ""
        super().__init__(f"{len(failures)} of {planned} runs failed{others}:{reasons}")


Ended = Callable[[PlannedRun[Result], Result | Failure], None]  # called when a run has ended
