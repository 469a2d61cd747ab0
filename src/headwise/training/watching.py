"""What watches a training: a bar here or in the process that started it, and Ctrl-C."""

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from headwise.files import partial_path

PROGRESS = "progress.json"  # in the folder of a run


def bars(console: Console, *, transient: bool = False) -> Progress:
    """Returns bars of runs, for tasks with a field `figures`, within 80 columns of a terminal."""
    no_wrap = Column(no_wrap=True)
    return Progress(
        TextColumn("{task.description:<9}", style="bold", markup=False),
        BarColumn(bar_width=8),
        MofNCompleteColumn(table_column=no_wrap),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(table_column=no_wrap),
        TextColumn("left"),
        console=console,
        transient=transient,
        disable=not (console.is_terminal or console.is_jupyter),
    )


def last_progress(folder: Path) -> dict[str, Any] | None:
    """Returns how far the training in a folder is: `step`, `total`, and what `figures_of` takes."""
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
        return found
    return None


def figures_of(progress: Mapping[str, Any]) -> str:
    """Returns losses and speed for a bar.

    >>> figures_of({"loss": 2.214, "eval_loss": 2.5, "tokens_per_second": 1234.5})
    'loss 2.21 valid 2.50 1,234 tokens/s'
    """
    known = (("loss", "loss {:.2f}"), ("eval_loss", "valid {:.2f}"))
    known += (("tokens_per_second", "{:,.0f} tokens/s"),)
    return " ".join(text.format(progress[name]) for name, text in known if name in progress)


class Watch:
    """Shows a training: by a bar, and where the console is no terminal by lines, and in a file."""

    def __init__(self, label: str, console: Console, folder: Path | None) -> None:
        self.label, self.console, self._folder = label, console, folder
        self._progress: dict[str, Any] = {}
        self._tokens, self._written = 0, 0.0

    @contextmanager
    def over(self, step: int, total: int) -> Iterator[None]:
        """Shows a training of `total` steps, of which `step` are done, while it is open."""
        self._progress, self._started = {"step": step, "total": total}, time.monotonic()
        if not self.console.is_terminal:
            begins = f"goes on from step {step:,}" if step else "begins"
            self.say(f"training {begins}, {total:,} steps in all")
        with bars(self.console) as self._bars:
            self._task = self._bars.add_task(self.label, total=total, completed=step, figures="")
            yield
            self._show(step=self._progress["step"], at_once=True)

    def stepped(self, step: int, tokens: int) -> None:
        """A step has been taken, on so many tokens."""
        self._tokens += tokens
        self._show(step=step)

    def found(self, **losses: float) -> None:
        """Losses are known: `loss` or `eval_loss`."""
        self._show(**losses, at_once="eval_loss" in losses)
        if "eval_loss" in losses and not self.console.is_terminal:
            step, total = self._progress["step"], self._progress["total"]
            self.say(f"step {step}/{total} {figures_of(self._progress)}")

    def say(self, text: str, style: str | None = None) -> None:
        self.console.print(
            f"{self.label}: {text}", style=style, highlight=False, markup=False, soft_wrap=True
        )

    def _show(self, *, at_once: bool = False, **known: float) -> None:
        now = time.monotonic()
        speed = {"tokens_per_second": self._tokens / max(1e-9, now - self._started)}
        self._progress |= {**known, **(speed if self._tokens else {})}
        step, figures = self._progress["step"], figures_of(self._progress)
        self._bars.update(self._task, completed=step, figures=figures)
        if self._folder is None or (now - self._written < 1 and not at_once):
            return
        self._written, partial = now, partial_path(self._folder / PROGRESS)
        try:
            partial.write_text(json.dumps(self._progress), encoding="utf-8")
            partial.replace(self._folder / PROGRESS)
        except OSError:  # a full disk is told when a checkpoint is written
            with suppress(OSError):
                partial.unlink(missing_ok=True)


class StopSignal:
    """Notes Ctrl-C and SIGTERM, which end a training after a step; a second one ends it at once.

    A signal that is ignored stays so, as a shell has it for `... &`.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, *_: Any) -> None:
        self.came = True
        self.__exit__()

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def silence_libraries() -> None:
    """Silences the progress bars and the advice of other libraries."""
    import transformers
    from datasets import disable_progress_bars

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    disable_progress_bars()
