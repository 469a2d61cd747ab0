"""Finds, reads and averages the checkpoints of a run."""

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from safetensors import SafetensorError, safe_open
from torch import Tensor

from headwise.training.callbacks import StopEarly
from headwise.training.settings import TrainingSettings

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
STATE = "trainer_state.json"
OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"
DAMAGED = "damaged-"  # before the name of a checkpoint that is no longer used
REMEDIES = (  # of a training that diverges
    "a smaller training.learning_rate, a longer training.warmup_steps, or training.clip_norm=1"
)


class CheckpointError(ValueError):
    """A checkpoint that is not whole; the message names it and says what happens next."""


def checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints of a run, oldest first, without one that is still being written."""
    found = [
        (int(match.group(1)), path)
        for path in folder.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    ]
    return [path for _, path in sorted(found)]


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Returns the state of the trainer in a checkpoint."""
    state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    assert isinstance(state, dict)
    return state


def is_finished(state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint with this state of the trainer is the last of its run."""
    at_end = state["global_step"] >= state["max_steps"]
    return bool(at_end or StopEarly.has_stopped(state) or has_diverged(state))


def last_validation_loss(state: Mapping[str, Any]) -> float | None:
    """The loss of the last validation, of a trainer's state in a checkpoint; None before it."""
    losses = [record["eval_loss"] for record in state["log_history"] if "eval_loss" in record]
    return losses[-1] if losses else None


def has_diverged(state: Mapping[str, Any]) -> bool:
    """Whether the loss of the last validation is no number."""
    loss = last_validation_loss(state)
    return loss is not None and not math.isfinite(loss)


def why_unreadable(checkpoint: Path) -> str:
    """Why a run cannot go on from a checkpoint; empty if it can."""
    # There is one random state for each process.
    random = [path.name for path in checkpoint.glob("rng_state*.pth")] or ["rng_state.pth"]
    for name in (STATE, CONFIG, *_weights(checkpoint), OPTIMIZER, SCHEDULER, *random):
        path = checkpoint / name
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".safetensors":
                with safe_open(path, framework="pt"):  # it compares the sizes of all tensors
                    pass
            else:
                ZipFile(path).close()  # as PyTorch writes them; their ends say what they hold
        except FileNotFoundError:
            return f"{name} is missing"
        except (OSError, ValueError, BadZipFile, SafetensorError) as error:
            return f"{name} cannot be read: {error}"
    return ""


def _weights(checkpoint: Path) -> list[str]:
    """The files with the weights: one, or the parts of those of a large model."""
    return sorted(path.name for path in checkpoint.glob("model*.safetensors")) or [WEIGHTS]


def sources_of_model(found: Sequence[Path], settings: TrainingSettings) -> list[Path]:
    """The checkpoints of which the final model of a finished run is made."""
    if settings.final_model == "average":
        return list(found[-settings.average_last :])
    best = read_state(found[-1])["best_model_checkpoint"]
    if settings.final_model == "best" and best:
        return [found[-1].with_name(Path(best).name)]
    return [found[-1]]


def check_best(found: Sequence[Path], settings: TrainingSettings) -> None:
    """Raises `CheckpointError` if the best checkpoint so far is gone and is to be the model."""
    (best, *_) = sources_of_model(found, settings)
    if settings.final_model == "best" and not best.is_dir():
        later = ", ".join(path.name for path in found if step_of(path) > step_of(best))
        raise CheckpointError(
            f"{best} is missing, the checkpoint of the lowest validation loss so far, which "
            f"training.final_model=best asks for: put it back, or delete {later} too, and the run "
            f"is trained again from before it"
        )


def set_damaged_aside(folder: Path, settings: TrainingSettings, *, has_model: bool) -> str:
    """Renames damaged checkpoints, so that the last one of a run is whole.

    Of a finished run that has not its final model yet, those that it is made of have to be whole
    too: if one is not, it and all after it are renamed, since training on from the one before it
    gives the same model. Returns a sentence on that, for the user; empty if all are whole.
    """
    reasons = []
    while found := checkpoints(folder):
        first, damage = found[-1], why_unreadable(found[-1])
        if not damage and not has_model and is_finished(read_state(first)):
            for first in sources_of_model(found, settings):
                if damage := why_unreadable(first):
                    break
        if not damage:
            break
        reasons.append(f"{first.name} cannot be used ({damage})")
        for path in found:
            if step_of(path) >= step_of(first):
                aside = path.with_name(f"{DAMAGED}{path.name}")
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
    if not reasons:
        return ""
    start = f"the run goes on from {found[-1].name}" if found else "the run starts anew"
    return (
        f"{' and '.join(reasons)}: {start}. What was left out is in {folder}, in folders whose "
        f"names begin with {DAMAGED}; they may be deleted"
    )


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def average_checkpoints(folders: list[Path]) -> dict[str, Tensor]:
    """Returns the mean weights of several checkpoints; integers come from the last one."""
    total: dict[str, Tensor] = {}
    for path in [folder / name for folder in folders for name in _weights(folder)]:
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - `weights` is not a dict
                tensor = weights.get_tensor(name)
                if not tensor.is_floating_point():
                    total[name] = tensor
                elif name in total:
                    total[name] = total[name] + tensor.double()
                else:
                    total[name] = tensor.double()
    return {
        name: (tensor / len(folders)).float() if tensor.is_floating_point() else tensor
        for name, tensor in total.items()
    }
