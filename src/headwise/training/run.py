"""Trains a model from the first step, or from the last checkpoint, and writes the final model."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors.torch import save_file
from transformers import PreTrainedModel

from headwise.files import written_whole
from headwise.training.batching import Items
from headwise.training.callbacks import StopEarly
from headwise.training.checkpoints import (
    STATE,
    WEIGHTS,
    average_checkpoints,
    check_checkpoint,
    checkpoints,
)
from headwise.training.interrupted import Interrupted
from headwise.training.settings import TrainingSettings
from headwise.training.trained_part import count_trained, freeze_all_but
from headwise.training.trainer import Collate, Measure, Snapshot, Trainer

MODEL = "model"


@dataclass
class Run:
    """The result of training.

    Attributes:
        model: the final model, which `settings.final_model` selects.
        history: the records of validations, of the training loss every `log_every` steps, and of
            what was noted beside them.
        steps: the number of optimizer steps.
        planned_steps: the number of steps that the run would have had without stopping early.
        best_step: the step of the lowest validation loss; None if no loss was finite.
        trained_parameters: the number of parameters that learned.
    """

    model: PreTrainedModel
    history: list[dict[str, Any]]
    steps: int
    planned_steps: int
    best_step: int | None
    trained_parameters: int

    @property
    def stopped_early(self) -> bool:
        """Whether `settings.patience` ended the run."""
        return self.steps < self.planned_steps


def run_training(
    model: PreTrainedModel,
    train: Items,
    validation: Items,
    collate: Collate,
    settings: TrainingSettings,
    folder: Path,
    *,
    measure: Measure | None = None,
    snapshot: Snapshot | None = None,
    label: str = "training",
    console: Console | None = None,
) -> Run:
    """Trains a model in `folder` and writes the final model to `folder/model`.

    If `folder` contains checkpoints, training continues from the last one. What `settings.train`
    leaves out is frozen, and stays exactly as it is.

    Args:
        model: the model to train.
        train, validation: the encoded items of the two parts.
        collate: joins items into a batch.
        settings: the recipe's settings of training.
        folder: the folder of the run.
        measure: returns figures to record at each validation.
        snapshot: returns what else to record at each validation, and before the first step.
        label: the text before the progress bar.
        console: where the progress bar appears.

    Raises:
        Interrupted: the user pressed Ctrl-C; a checkpoint was written.
        CheckpointError: the last checkpoint cannot be read.
        ValueError: the model has nothing of what `settings.train` says.
    """
    freeze_all_but(model, settings.train)
    trained = count_trained(model)
    trainer = Trainer(
        model,
        train,
        validation,
        collate,
        settings,
        folder,
        measure=measure,
        snapshot=snapshot,
        label=label,
        console=console,
    )
    if settings.train == "nothing":
        trainer.evaluate()
        if trainer.args.should_save:
            with written_whole(folder / MODEL) as partial:
                model.save_pretrained(partial)
        return Run(model, trainer.state.log_history, 0, 0, 0, trained)
    found = checkpoints(folder)
    if found:
        check_checkpoint(found[-1])
    if not found or not _is_finished(found[-1]):
        trainer.train(resume_from_checkpoint=str(found[-1]) if found else None)
        if trainer.stop.interrupted:
            raise Interrupted(f"stopped at step {trainer.state.global_step}")
    state = json.loads((checkpoints(folder)[-1] / STATE).read_text(encoding="utf-8"))
    if trainer.args.should_save:
        if state["global_step"] < state["max_steps"]:
            best = state["best_global_step"]
            why = f"no better loss since step {best:,}" if best else "no loss was finite"
            where = f"at step {state['global_step']:,} of {state['max_steps']:,}"
            text = f"{label}: stopped early {where}: {why}"
            trainer.progress.console.print(text, highlight=False, markup=False)
        _write_model(type(model), settings, folder, state)
    trainer.accelerator.wait_for_everyone()
    final = type(model).from_pretrained(folder / MODEL)
    return Run(
        final.to(trainer.args.device),
        state["log_history"],
        state["global_step"],
        state["max_steps"],
        state["best_global_step"],
        trained,
    )


def _is_finished(checkpoint: Path) -> bool:
    state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return state["global_step"] >= state["max_steps"] or StopEarly.has_stopped(state)


def _write_model(
    kind: type[PreTrainedModel], settings: TrainingSettings, folder: Path, state: dict
) -> None:
    """Write the final model to `folder/model`."""
    last = checkpoints(folder)[-1]
    with written_whole(folder / MODEL) as partial:
        if settings.final_model == "average":
            partial.mkdir()
            weights = average_checkpoints(checkpoints(folder)[-settings.average_last :])
            save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
            for name in ("config.json", "generation_config.json"):
                shutil.copy(last / name, partial / name)
        else:
            best = state["best_model_checkpoint"]
            source = folder / Path(best).name if settings.final_model == "best" and best else last
            # The best checkpoint may be missing: the error for one cut short says to delete it.
            source = source if source.is_dir() else last
            check_checkpoint(source)
            kind.from_pretrained(source).save_pretrained(partial)
