"""The checkpoints of a run: reading and removing them, and the final model.

A checkpoint is a folder: the model as transformers saves it, and `training.pt` with the rest of the
state of the training.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from pickle import PickleError
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from headwise.files import partial_path, remove, written_whole
from headwise.training.settings import TrainingSettings

STATE = "training.pt"
_DAMAGE = (OSError, ValueError, RuntimeError, EOFError, SafetensorError, PickleError, BadZipFile)


def checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints of a run, oldest first."""
    # A user may have copied one to checkpoint-500-copy.
    paths = folder.glob("checkpoint-*")
    numbered = [p for p in paths if p.name.removeprefix("checkpoint-").isdecimal()]
    return sorted(numbered, key=checkpoint_step)


def checkpoint_step(checkpoint: Path) -> int:
    """Returns the number of optimizer steps before a checkpoint."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def read_checkpoint(checkpoint: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads the weights and the state of a checkpoint; raises ValueError if a file is damaged."""
    weights: dict[str, Tensor] = {}
    path = checkpoint / "config.json"
    try:
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(checkpoint.glob("*.safetensors")) or [checkpoint / "model.safetensors"]:
            weights |= load_file(path)
        path = checkpoint / STATE
        with ZipFile(path) as archive:  # a memory map checks no checksums
            if damaged := archive.testzip():
                raise ValueError(f"its part {damaged} is damaged")
        # The processes of a machine share a memory map.
        return weights, torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except _DAMAGE as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise ValueError(f"{path.name} cannot be read: {reason}") from error


def last_readable(folder: Path, say: Callable[[str, str], None]) -> Path | None:
    """Returns the last checkpoint that can be read, and renames damaged ones with a message."""
    paths = checkpoints(folder)
    while paths:
        last = paths.pop()
        try:
            read_checkpoint(last)
            return last
        except ValueError as error:
            next_start = f"resumes from {paths[-1].name}" if paths else "begins anew"
            say(f"{last.name} cannot be used ({error}): the run {next_start}", "yellow")
        damaged = last.with_name(f"damaged-{last.name}")
        remove(damaged)
        last.rename(damaged)
    return None


def remove_superseded(
    folder: Path, settings: TrainingSettings, best_step: int | None, total: int
) -> None:
    """Removes all checkpoints but the latest of validations, the best and the last one."""
    by_step = {checkpoint_step(path): path for path in checkpoints(folder)}
    validated = [step for step in by_step if step % settings.evaluate_every == 0 or step == total]
    kept = {*list(by_step)[-1:], *validated[-settings.keep_checkpoints :], best_step}
    for step, path in by_step.items():
        if step not in kept:
            path.rename(partial_path(path))  # first, so that no checkpoint is incomplete
            remove(partial_path(path))


def write_model(
    kind: Any, settings: TrainingSettings, folder: Path, save_beside: Callable[[Path], None]
) -> None:
    """Writes the final model of a training to `model/`: the best, the last or an average.

    `save_beside` saves the tokenizer, or the like, into the folder of the model.
    """
    paths = checkpoints(folder)
    number = settings.keep_checkpoints if settings.final_model == "average" else 1
    chosen = paths[-number:]
    state = torch.load(paths[-1] / STATE, map_location="cpu", weights_only=True, mmap=True)
    best_step = json.loads(state["progress"])["best_step"]
    if settings.final_model == "best" and best_step is not None:
        chosen = [folder / f"checkpoint-{best_step}"]
    model = kind.from_pretrained(chosen[-1])
    weights = model.state_dict()
    sums = {name: x.double() for name, x in weights.items() if x.is_floating_point()}
    for path in chosen[:-1]:
        other = kind.from_pretrained(path).state_dict()
        sums = {name: x + other[name].double() for name, x in sums.items()}
    model.load_state_dict(weights | {name: x / len(chosen) for name, x in sums.items()})
    with written_whole(folder / "model") as partial:
        model.save_pretrained(partial)
        save_beside(partial)


def random_states() -> dict[str, Any]:
    """The states of all random generators of this process, in types that load without pickle."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - data may draw from it
    python, numpy = random.getstate(), [name, np.asarray(keys).tolist(), *rest]
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": python, "numpy": numpy}


def set_random_states(states: dict[str, Any]) -> None:
    """Restores the states of `random_states`."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    random.setstate(states["python"])
    np.random.set_state(tuple(states["numpy"]))  # noqa: NPY002
