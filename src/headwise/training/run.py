"""One run from the first step, or from where it stopped, to the model it leaves behind."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors.torch import save_file
from transformers import PreTrainedModel

from headwise.training.batching import Items
from headwise.training.checkpoints import (
    STATE,
    WEIGHTS,
    average_checkpoints,
    check_checkpoint,
    checkpoints,
)
from headwise.training.settings import TrainingSettings
from headwise.training.trainer import Collate, Measure, Trainer

MODEL = "model"


class Interrupted(Exception):
    """A run was stopped; it goes on from its last checkpoint when it is started again."""


@dataclass
class Run:
    """What a run leaves behind.

    Attributes:
        model: the model that `settings.final_model` names.
        history: what was logged, a record per validation or per `log_every` steps.
        steps: how many optimizer steps it took.
    """

    model: PreTrainedModel
    history: list[dict[str, Any]]
    steps: int


def run_training(
    model: PreTrainedModel,
    train: Items,
    validation: Items,
    collate: Collate,
    settings: TrainingSettings,
    folder: Path,
    *,
    measure: Measure | None = None,
    label: str = "training",
    console: Console | None = None,
) -> Run:
    """Train in `folder`, from its last checkpoint if there is one; leaves `folder/model`.

    Raises:
        Interrupted: Ctrl-C came; a checkpoint has been written.
        CheckpointError: the last checkpoint cannot be read.
    """
    trainer = Trainer(
        model,
        train,
        validation,
        collate,
        settings,
        folder,
        measure=measure,
        label=label,
        console=console,
    )
    found = checkpoints(folder)
    if found:
        check_checkpoint(found[-1])
    if not found or not _is_finished(found[-1]):
        trainer.train(resume_from_checkpoint=str(found[-1]) if found else None)
        if trainer.stop.interrupted:
            raise Interrupted(f"stopped at step {trainer.state.global_step}")
    state = json.loads((checkpoints(folder)[-1] / STATE).read_text(encoding="utf-8"))
    if trainer.args.should_save:
        _write_model(type(model), settings, folder, state)
    trainer.accelerator.wait_for_everyone()
    final = type(model).from_pretrained(folder / MODEL)
    return Run(final.to(trainer.args.device), state["log_history"], state["global_step"])


def _is_finished(checkpoint: Path) -> bool:
    state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return state["global_step"] >= state["max_steps"]


def _write_model(
    kind: type[PreTrainedModel], settings: TrainingSettings, folder: Path, state: dict
) -> None:
    """The final weights under `folder/model`, whole or not at all."""
    partial = folder / f".partial-{MODEL}"
    shutil.rmtree(partial, ignore_errors=True)
    last = checkpoints(folder)[-1]
    if settings.final_model == "average":
        partial.mkdir()
        weights = average_checkpoints(checkpoints(folder)[-settings.average_last :])
        save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
        for name in ("config.json", "generation_config.json"):
            shutil.copy(last / name, partial / name)
    else:
        best = state["best_model_checkpoint"]
        source = folder / Path(best).name if settings.final_model == "best" and best else last
        source = source if source.is_dir() else last  # it was cut short, and deleted as told
        check_checkpoint(source)
        kind.from_pretrained(source).save_pretrained(partial)
    final = folder / MODEL
    shutil.rmtree(final, ignore_errors=True)
    partial.replace(final)
