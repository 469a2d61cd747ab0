"""A training that diverges ends at the first validation whose loss is no number."""

import math
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

REMEDIES = (
    "a smaller training.learning_rate, a longer training.warmup_steps, or training.clip_norm=1"
)


class StopDiverged(TrainerCallback):
    """Ends the run when the validation loss is nan or infinite: later steps do not mend weights.

    Validation losses are the same in all processes, so that these stop together.
    """

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if not math.isfinite((metrics or {})["eval_loss"]):
            control.should_training_stop = True


def last_validation_loss(state: Mapping[str, Any]) -> float | None:
    """Returns the loss of the last validation; None before the first.

    Args:
        state: the trainer's state in a checkpoint.
    """
    losses = [record["eval_loss"] for record in state["log_history"] if "eval_loss" in record]
    return losses[-1] if losses else None


def has_diverged(state: Mapping[str, Any]) -> bool:
    """Whether the loss of the last validation is no number.

    Args:
        state: the trainer's state in a checkpoint.
    """
    loss = last_validation_loss(state)
    return loss is not None and not math.isfinite(loss)
