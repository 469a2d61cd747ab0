"""What watches a run: a progress bar, Ctrl-C, the last validation, early stopping."""

import signal
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from transformers import (
    EarlyStoppingCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from headwise.training.processes import summed
from headwise.training.progress import RunBars


class ProgressBar(TrainerCallback):
    """A bar with step, loss, validation loss, tokens per second and time left.

    Where the console is no terminal it prints a line at each validation in place of the bar.
    """

    def __init__(self, label: str, console: Console) -> None:
        self.label = label
        self.console = console
        self.progress: RunBars | None = None
        self.loss: float | None = None  # until one has been logged
        self.validation: float | None = None
        self.tokens = 0
        self.started = 0.0
        self.before = 0.0

    def count_tokens(self, tokens: int) -> None:
        """Adds to the number of tokens that the run has been trained on."""
        self.tokens += tokens

    def seconds(self) -> float:
        """How long the run has been trained, interruptions apart."""
        return self.before + (time.monotonic() - self.started if self.started else 0.0)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.started = time.monotonic()
        # The records of a resumed run are there by now.
        self.before = state.log_history[-1]["seconds"] if state.log_history else 0.0
        self.tokens = 0
        if not state.is_world_process_zero or not self.console.is_terminal:
            return
        self.progress = RunBars(self.console)
        self.progress.start()
        self.task = self.progress.begin(self.label, state.max_steps, state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.progress is not None:
            self.progress.update(self.task, completed=state.global_step, figures=self._figures())

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        self.loss = (logs or {}).get("loss", self.loss)
        if logs is None or "eval_loss" not in logs:
            return
        self.validation = logs["eval_loss"]
        if self.progress is None and state.is_world_process_zero:
            step = f"step {state.global_step}/{state.max_steps}"
            self.console.print(f"{self.label}: {step} {self._figures()}", highlight=False)

    def close(self) -> None:
        """Take the bar down, also after an error."""
        if self.progress is not None:
            self.progress.update(self.task, figures=self._figures())
            self.progress.stop()
            self.progress = None

    def _figures(self) -> str:
        speed = self.tokens / max(1e-9, self.seconds() - self.before)
        losses = (("loss", self.loss), ("valid", self.validation))
        known = [f"{name} {loss:.2f}" for name, loss in losses if loss is not None]
        return " ".join([*known, f"{speed:,.0f} tokens/s"])


class StopOnInterrupt(TrainerCallback):
    """Ctrl-C (or SIGTERM) ends the run after the step at hand, with a checkpoint to resume from.

    A second Ctrl-C ends it at once. A signal that was ignored when the run began stays ignored.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._before: dict[int, Any] = {}

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.interrupted = False
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is signal.SIG_IGN:  # a shell does that for `... &`
                continue
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # only the main thread may set handlers
                return

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if args.world_size > 1:
            # The signal reaches processes at different steps, but they can only stop together.
            flag = torch.tensor(float(self.interrupted), device=args.device)
            self.interrupted = bool(summed(flag))
        if self.interrupted:
            control.should_log = True
            control.should_save = True
            control.should_training_stop = True

    def restore(self) -> None:
        """Give the signals back, also after an error."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        self.restore()


class StopEarly(EarlyStoppingCallback):
    """Ends the run when the validation loss has not improved for a number of validations.

    Its count is part of every checkpoint, so that a resumed run goes on counting. Validation losses
    are the same in all processes, so that these stop together.
    """

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Leaves out transformers' warning: which weights are kept is decided after training."""

    @classmethod
    def has_stopped(cls, state: Mapping[str, Any]) -> bool:
        """Whether the run of a checkpoint with this state of the trainer has been stopped early."""
        saved = state["stateful_callbacks"].get(cls.__name__)
        if saved is None:
            return False
        waited = saved["attributes"]["early_stopping_patience_counter"]
        return waited >= saved["args"]["early_stopping_patience"]
