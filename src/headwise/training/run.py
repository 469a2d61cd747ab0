"""Trains a model from the first step, or from the last checkpoint, and writes the final model."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel

from headwise.files import written_whole
from headwise.training.batching import Collate, Items, Stream
from headwise.training.checkpoints import (
    CONFIG,
    DAMAGED,
    REMEDIES,
    CheckpointError,
    average_checkpoints,
    check_best,
    checkpoints,
    has_diverged,
    is_finished,
    last_validation_loss,
    read_state,
    set_damaged_aside,
    sources_of_model,
)
from headwise.training.interrupted import Interrupted
from headwise.training.loggers import own_logs
from headwise.training.processes import gathered, processes
from headwise.training.settings import TrainingSettings
from headwise.training.trained_part import count_trained, freeze_all_but
from headwise.training.trainer import Trainer, saved_by_this_process

MODEL = "model"


@dataclass
class Run:
    """The result of training.

    Attributes:
        model: the final model, which `settings.final_model` selects.
        history: the records of validations, of the training loss every `log_every` steps, and of
            what was noted beside them.
        steps, planned_steps: numbers of optimizer steps, the latter without stopping early.
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
        """Whether `settings.patience` ended the run, or a validation loss that is no number."""
        return self.steps < self.planned_steps


def run_training(
    model: PreTrainedModel,
    train: Items | Stream,
    validation: Items,
    collate: Collate,
    settings: TrainingSettings,
    folder: Path,
    *,
    save_beside: Callable[[Path], None] = lambda model: None,
    **watching: Any,
) -> Run:
    """Trains a model in `folder` and writes the final model to `folder/model`.

    If `folder` contains checkpoints, training continues from the last whole one; the console says
    which were damaged. What `settings.train` leaves out is frozen, and stays exactly as it is.
    `save_beside` writes into the folder of the final model what belongs to it, such as a tokenizer.
    `watching` is what is followed and shown, and who saves: `measure`, `snapshot`, `label`,
    `console` and `saves_on_each_machine`; see `Trainer` for all arguments.

    Raises:
        Interrupted: the user pressed Ctrl-C; a checkpoint was written.
        CheckpointError: the best checkpoint is gone, or one was damaged or removed during training,
            or contains other objects than tensors and plain values.
        ValueError: the model has nothing of what `settings.train` says.
    """
    freeze_all_but(model, settings.train)
    trained = count_trained(model)
    trainer = Trainer(model, train, validation, collate, settings, folder, **watching)
    if settings.fsdp and processes() == 1:
        alone = "training.fsdp divides a model among processes, and this is one: nothing is divided"
        _say(trainer.progress.console, trainer.progress.label, alone, "yellow")
    if settings.train == "nothing":
        with own_logs(settings.report_to):
            trainer.evaluate()
        if trainer.args.should_save:
            _save_model(model, folder, save_beside)
        return Run(model, trainer.state.log_history, 0, 0, 0, trained)
    has_model = trainer.args.should_save and is_whole_model(folder)
    if trainer.args.should_save:
        left_out = set_damaged_aside(folder, settings, has_model=has_model)
        if left_out:
            _say(trainer.progress.console, trainer.progress.label, left_out, "yellow")
        trainer.remove_stops(folder)  # unless it was killed before it had done so
    trainer.accelerator.wait_for_everyone()
    if trainer.args.save_on_each_node:
        _remove_what_others_lack(folder, removes=trainer.args.should_save)
    found = checkpoints(folder)
    if not found or not is_finished(read_state(found[-1])):
        # Where a later checkpoint was damaged, the best one of before may have made room for it.
        if found and not any(gathered(any(folder.glob(f"{DAMAGED}*")))):
            check_best(found, settings)
        with own_logs(settings.report_to):
            _train_from(trainer, found)
        has_model = False
    found = checkpoints(folder)
    if not found:
        raise CheckpointError(
            f"{folder} has lost its checkpoints while the run was trained: give the same command "
            f"again to train it anew"
        )
    state = read_state(found[-1])
    if trainer.args.should_save:
        if best := state["best_model_checkpoint"]:
            trainer.state.best_model_checkpoint = str(folder / Path(best).name)
        trainer.remove_old_checkpoints(folder)  # unless it was killed before it had done so
        if why := _why_it_ended(state):
            _say(trainer.progress.console, trainer.progress.label, why)
        if not has_model:
            _write_model(trainer.kind, settings, folder, found, save_beside)
    trainer.accelerator.wait_for_everyone()
    final = trainer.kind.from_pretrained(folder / MODEL)
    return Run(
        final.to(trainer.args.device),
        state["log_history"],
        state["global_step"],
        state["max_steps"],
        state["best_global_step"],
        trained,
    )


@contextmanager
def threads_of_run(folder: Path, label: str, console: Console) -> Iterator[None]:
    """While this context is open, as many CPU threads compute as computed in a run before.

    Another number sums in another order, so that the run would end with other weights. Where this
    process may use fewer processors, the number stays, and the console is told.
    """
    now, before = torch.get_num_threads(), _threads_before(folder)
    if before is None or before == now or torch.accelerator.is_available():
        yield
        return
    if before > _processors():
        _say(
            console,
            label,
            f"the run was trained with {before} CPU threads, and this process may use "
            f"{_processors()} processors: it goes on with {now}, which round otherwise, so that "
            f"its figures are not quite those of a run that was not stopped",
            "yellow",
        )
        yield
        return
    many = f"{before} CPU thread{'s' if before > 1 else ''}"
    _say(console, label, f"goes on with {many}, as it was trained before")
    torch.set_num_threads(before)
    try:
        yield
    finally:
        torch.set_num_threads(now)


def _threads_before(folder: Path) -> int | None:
    """The number of CPU threads of the last record of a run; None if there is none."""
    for checkpoint in reversed(checkpoints(folder)):
        with suppress(OSError, ValueError, LookupError, TypeError):  # it is damaged
            return int(read_state(checkpoint)["log_history"][-1]["threads"])
    return None


def _processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_whole_model(folder: Path) -> bool:
    """Whether a run has its final model, which is written whole or not at all."""
    return (folder / MODEL / CONFIG).is_file()


def _remove_what_others_lack(folder: Path, *, removes: bool) -> None:
    """Removes checkpoints that not all machines have: one was killed before it had written them."""
    by_process = gathered({path.name for path in checkpoints(folder)})
    common = set.intersection(*by_process)
    for path in checkpoints(folder) if removes else ():
        if path.name not in common:
            shutil.rmtree(path)
    gathered(None)  # before all go on, what is removed is gone


def _train_from(trainer: Trainer, found: list[Path]) -> None:
    """Trains to the end, from the last checkpoint if there is one."""
    try:
        trainer.train(resume_from_checkpoint=str(found[-1]) if found else None)
    except UnpicklingError as error:  # it does not say of which file
        raise CheckpointError(
            f"{found[-1]} holds more than tensors and plain values, and to read that could run "
            f"code of others: delete it to go on from the one before it"
        ) from error
    if trainer.stop.interrupted:
        raise Interrupted(f"stopped at step {trainer.state.global_step}")


def _why_it_ended(state: Mapping[str, Any]) -> str:
    """Says that a run has diverged, or was stopped early; empty if it came to its end."""
    where = f"at step {state['global_step']:,} of {state['max_steps']:,}"
    if has_diverged(state):
        return (
            f"the training has diverged and ends {where}: its validation loss is "
            f"{last_validation_loss(state)}; try {REMEDIES}"
        )
    if state["global_step"] >= state["max_steps"]:
        return ""
    return f"stopped early {where}: no better loss since step {state['best_global_step']:,}"


def _write_model(
    kind: type[PreTrainedModel],
    settings: TrainingSettings,
    folder: Path,
    found: list[Path],
    save_beside: Callable[[Path], None],
) -> None:
    """Write the final model to `folder/model`."""
    check_best(found, settings)
    sources = sources_of_model(found, settings)
    model = kind.from_pretrained(sources[-1])
    if settings.final_model == "average":
        # Of tied weights a checkpoint has one.
        model.load_state_dict(average_checkpoints(sources), strict=False)
    _save_model(model, folder, save_beside)


def _save_model(model: PreTrainedModel, folder: Path, save_beside: Callable[[Path], None]) -> None:
    with written_whole(folder / MODEL) as partial:
        saved_by_this_process(model).save_pretrained(partial)
        save_beside(partial)


def _say(console: Console, label: str, text: str, style: str | None = None) -> None:
    console.print(f"{label}: {text}", style=style, highlight=False, markup=False, soft_wrap=True)
