"""The checkpoints of a run: reading and removing them, and the final model.

A checkpoint is a folder: the model as transformers saves it, and `training.pt` with the rest of the
state of the training.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from headwise.files import partial_path, remove, written_whole
from headwise.training.settings import TrainingSettings

STATE = "training.pt"


def checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints of a run, oldest first."""
    return sorted(folder.glob("checkpoint-*"), key=step_of)


def step_of(checkpoint: Path) -> int:
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
        # The processes of a machine share a memory map.
        return weights, torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, ValueError, RuntimeError, EOFError, SafetensorError, UnpicklingError) as error:
        why = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise ValueError(f"{path.name} cannot be read: {why}") from error


def last_readable(folder: Path, say: Callable[[str, str], None]) -> Path | None:
    """Returns the last checkpoint that can be read, and renames damaged ones with a message."""
    found = checkpoints(folder)
    while found:
        last = found.pop()
        try:
            read_checkpoint(last)
            return last
        except ValueError as error:
            goes_on = f"goes on from {found[-1].name}" if found else "begins anew"
            say(f"{last.name} cannot be used ({error}): the run {goes_on}", "yellow")
        aside = last.with_name(f"damaged-{last.name}")
        remove(aside)
        last.rename(aside)
    return None


def remove_superseded(
    folder: Path, settings: TrainingSettings, best_step: int | None, total: int
) -> None:
    """Removes all checkpoints but the latest of validations, the best and the last one."""
    found = checkpoints(folder)
    regular = [p for p in found if step_of(p) % settings.evaluate_every == 0 or step_of(p) == total]
    for path in set(found) - {*found[-1:], *regular[-settings.keep_checkpoints :]}:
        if step_of(path) != best_step:
            path.rename(partial_path(path))  # first, so that no checkpoint is incomplete
            remove(partial_path(path))


def write_model(
    kind: Any, settings: TrainingSettings, folder: Path, save_beside: Callable[[Path], None]
) -> None:
    """Writes the final model of a training to `model/`: the best, the last or an average.

    `save_beside` saves the tokenizer, or the like, into the folder of the model.
    """
    found = checkpoints(folder)
    number = settings.keep_checkpoints if settings.final_model == "average" else 1
    chosen = found[-number:]
    state = torch.load(found[-1] / STATE, map_location="cpu", weights_only=True, mmap=True)
    best_step = json.loads(state["progress"])["best_step"]
    if settings.final_model == "best" and best_step is not None:
        chosen = [folder / f"checkpoint-{best_step}"]
    model = kind.from_pretrained(chosen[-1])
    weights = model.state_dict()
    total = {name: x.double() for name, x in weights.items() if x.is_floating_point()}
    for path in chosen[:-1]:
        other = kind.from_pretrained(path).state_dict()
        total = {name: x + other[name].double() for name, x in total.items()}
    model.load_state_dict(weights | {name: x / len(chosen) for name, x in total.items()})
    with written_whole(folder / "model") as partial:
        model.save_pretrained(partial)
        save_beside(partial)


def random_states() -> dict[str, Any]:
    """The states of all random generators of this process, in types that load without pickle."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    name, keys, *others = np.random.get_state()  # noqa: NPY002 - data may draw from it
    of_python, of_numpy = random.getstate(), [name, np.asarray(keys).tolist(), *others]
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": of_python, "numpy": of_numpy}


def set_random_states(states: dict[str, Any]) -> None:
    """Restores the states of `random_states`."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    random.setstate(states["python"])
    np.random.set_state(tuple(states["numpy"]))  # noqa: NPY002
