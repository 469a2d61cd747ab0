"""The bars of runs, drawn in the process of a run or in the one that started it."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

_SECONDS_BETWEEN = 0.1  # two positions that a run tells; as often as a bar is drawn


class Printed(NamedTuple):
    """The arguments of a `Console.print`."""

    objects: tuple[Any, ...]
    options: dict[str, Any]


class Position(NamedTuple):
    """What a bar shows; `begun` if a bar of another kind begins: evaluation after training."""

    begun: bool
    completed: int
    total: float | None
    figures: str


class Relay(Console):
    """The console of a run in a process of its own, which has another process print and draw."""

    def __init__(self, send: Callable[[Printed | Position], None], is_terminal: bool) -> None:
        super().__init__(force_terminal=is_terminal)
        self.send = send
        self._last_told = 0.0

    def print(self, *objects: Any, **options: Any) -> None:
        self.send(Printed(objects, options))

    def tell(self, position: Position) -> None:
        """Tells how far the run is, unless it has just done so."""
        now = time.monotonic()
        is_end = position.completed == position.total
        if position.begun or is_end or now - self._last_told >= _SECONDS_BETWEEN:
            self._last_told = now
            self.send(position)


class RunBars(Progress):
    """A bar for each run that is at work; on a `Relay` it is told, and draws nothing itself."""

    def __init__(self, console: Console, *, transient: bool = False) -> None:
        self.relay = console if isinstance(console, Relay) else None
        super().__init__(
            # All of it within the 80 columns of a terminal; a long label takes from the bar.
            TextColumn("{task.description:<9}", style="bold", markup=False),
            BarColumn(bar_width=8),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("left"),
            console=console,
            transient=transient,
            disable=self.relay is not None or not (console.is_terminal or console.is_jupyter),
        )

    def begin(self, label: str, total: int | None, completed: int = 0, figures: str = "") -> TaskID:
        """Adds a bar and returns its number, for `update`."""
        task = self.add_task(label, total=total, completed=completed, figures=figures)
        self._tell(task, begun=True)
        return task

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._tell(task_id)

    def show(self, task_id: TaskID, position: Position) -> None:
        """Shows how far a run in another process is."""
        completed, figures = position.completed, position.figures
        if position.begun:
            self.reset(task_id, total=position.total, completed=completed, figures=figures)
        else:
            self.update(task_id, completed=completed, figures=figures)

    def stop(self) -> None:
        super().stop()
        if self.relay is not None and not self.live.transient:
            # In the other process the run's next bar takes the place of this one.
            for task in self.tasks:
                step = f"step {task.completed:.0f}/{task.total:.0f}"
                figures = task.fields["figures"]
                self.relay.print(f"{task.description}: {step} {figures}", highlight=False)

    def _tell(self, task_id: TaskID, *, begun: bool = False) -> None:
        if self.relay is not None:
            task = next(task for task in self.tasks if task.id == task_id)
            completed, figures = int(task.completed), task.fields["figures"]
            self.relay.tell(Position(begun, completed, task.total, figures))


def silence_libraries() -> None:
    """Silences the progress bars and the advice of other libraries."""
    import transformers
    from datasets import disable_progress_bars

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    disable_progress_bars()
