"""The runs of a comparison: what is planned, and why one may fail."""

import traceback
from abc import ABC, abstractmethod
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
class PlannedRun(ABC, Generic[Result]):
    """A run before it is trained, of a system or of one of its tries.

    Attributes:
        recipe: of the run, with its seed.
        system: name of the system.
        folder: of the run.
        task: the data.
        label: what bars and messages call the run.
    """

    recipe: Recipe
    system: str
    folder: Path
    task: Task
    label: str

    @abstractmethod
    def train(self, console: Console) -> Result:
        """Trains the run in its folder, from wherever an earlier start got to.

        Raises:
            FolderError: the folder is that of another run.
            Interrupted: Ctrl-C came; the next call goes on.
        """

    @abstractmethod
    def finished(self, console: Console) -> Result | None:
        """Returns the result that the folder has, or None while the run is not finished.

        What is damaged is said, and made again.
        """

    def make(self, console: Console) -> Result:
        """Trains the run in its folder, which is locked against other processes."""
        with locked(self.folder):
            return self.train(console)

    def result(self, console: Console) -> Result | None:
        """Returns the result of the run, or None while it is not finished.

        What a process that was killed has left is removed. A run that another process has at work
        is not finished, whatever stands in its folder.
        """
        held = locked(self.folder) if self.folder.is_dir() else nullcontext()
        try:
            with held:
                return self.finished(console)
        except LockedError:  # to be said when it is the run's turn
            return None

    def warn(self, console: Console, said: str) -> None:
        """Prints what was found in the folder and is mended."""
        said = f"{self.label}: {said}"
        console.print(said, style="yellow", highlight=False, markup=False, soft_wrap=True)


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
