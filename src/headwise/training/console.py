"""The console of a training: progress bars, messages, and Ctrl-C."""

import json
import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from headwise.files import partial_path

_PROGRESS = "progress.json"


def bars(console: Console, *, transient: bool = False) -> Progress:
    """Returns progress bars of runs that fit 80 columns; each task has a field `figures`."""
    return Progress(
        TextColumn("{task.description:<9}", style="bold", markup=False),
        BarColumn(bar_width=8),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("left"),
        console=console,
        transient=transient,
        disable=not (console.is_terminal or console.is_jupyter),
    )


def last_progress(folder: Path) -> dict[str, Any] | None:
    """Returns the progress of the training in a folder: `step`, `total` and its losses, or None."""
    with suppress(OSError, ValueError):  # there is no file yet
        progress: dict[str, Any] = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
        return progress
    return None


def format_losses(progress: Mapping[str, Any]) -> str:
    """Returns the losses as text for a bar.

    >>> format_losses({"loss": 2.214, "eval_loss": 2.5})
    'loss 2.21 valid 2.50'
    """
    labels = {"loss": "loss", "eval_loss": "valid"}
    return " ".join(f"{labels[key]} {progress[key]:.2f}" for key in labels if key in progress)


def say_begin(console: Console, text: str) -> None:
    """Prints what begins, unless a bar shows it."""
    if not (console.is_terminal or console.is_jupyter):
        say(console, text)


def say(console: Console, text: str, style: str | None = None) -> None:
    """Prints text without line breaks of its own, so that a path in it can be copied."""
    console.print(text, style=style, highlight=False, markup=False, emoji=False, soft_wrap=True)


class ProgressDisplay:
    """Shows a training by a bar, or by lines where the console is no terminal, and in a file."""

    def __init__(self, label: str, console: Console, folder: Path | None) -> None:
        self._label, self._console, self._folder = label, console, folder
        self._progress: dict[str, Any] = {}
        self._written = 0.0  # time of the last write

    @contextmanager
    def over(self, step: int, total: int) -> Iterator[None]:
        """While it is open, shows a training of `total` steps, `step` of which are done."""
        self._progress = {"step": step, "total": total}
        if not self._console.is_terminal:
            begins = f"resumes from step {step:,}" if step else "begins"
            self.say(f"training {begins}, {total:,} steps in all")
        with bars(self._console) as self._bars:
            self._task = self._bars.add_task(self._label, total=total, completed=step, figures="")
            yield

    def show(self, **figures: float) -> None:
        """Shows new values of `step`, `loss` or `eval_loss`."""
        now, progress = time.monotonic(), self._progress
        progress |= figures
        losses = format_losses(progress)
        self._bars.update(self._task, completed=progress["step"], figures=losses)
        if "eval_loss" in figures and not self._console.is_terminal:
            self.say(f"step {progress['step']}/{progress['total']} {losses}")
        if self._folder is not None and (now - self._written > 1 or "eval_loss" in figures):
            self._written, partial = now, partial_path(self._folder / _PROGRESS)
            with suppress(OSError):  # a full disk loses nothing but this file
                finite = {name: value for name, value in progress.items() if math.isfinite(value)}
                partial.write_text(json.dumps(finite), encoding="utf-8")
                partial.replace(self._folder / _PROGRESS)

    def say(self, text: str, style: str | None = None) -> None:
        """Prints a sentence on the training."""
        say(self._console, f"{self._label}: {text}", style)


class StopSignal:
    """Sets `came` at Ctrl-C or SIGTERM; a second one ends the program at once."""

    def __init__(self) -> None:
        self.came = False
        self._former_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # a shell ignores it for `... &`
                self._former_handlers[number] = signal.signal(number, self._note)
        return self

    def _note(self, *_: Any) -> None:
        self.came = True
        self.__exit__()

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._former_handlers.items():
            signal.signal(number, handler)
        self._former_handlers = {}


def silence_libraries() -> None:
    """Silences the progress bars and the advice of other libraries."""
    import transformers
    from datasets import disable_progress_bars

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    disable_progress_bars()
