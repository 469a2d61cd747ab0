"""Finds, checks and averages the checkpoints of a run."""

import json
import re
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

WEIGHTS = "model.safetensors"
STATE = "trainer_state.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names the file and how to mend it."""


def checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints of a run, oldest first, without one that is still being written."""
    found = [
        (int(match.group(1)), path)
        for path in folder.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    ]
    return [path for _, path in sorted(found)]


def check_checkpoint(checkpoint: Path) -> None:
    """Raises `CheckpointError` if a file that resuming needs is missing or cut short."""
    # There is one random state for each process.
    random = [path.name for path in checkpoint.glob("rng_state*.pth")] or ["rng_state.pth"]
    for name in (STATE, WEIGHTS, "optimizer.pt", "scheduler.pt", *random):
        path = checkpoint / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: {_mend(checkpoint)}")
        try:
            if name == STATE:
                json.loads(path.read_text(encoding="utf-8"))
            elif name == WEIGHTS:
                with safe_open(path, framework="pt") as weights:
                    weights.keys()
            else:
                zipfile.ZipFile(path).close()  # reads the directory, which is the end of the file
        except (ValueError, SafetensorError, zipfile.BadZipFile, OSError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({_first_line(error)}): {_mend(checkpoint)}"
            ) from error


def average_checkpoints(folders: list[Path]) -> dict[str, Tensor]:
    """Returns the mean weights of several checkpoints; integers come from the last one."""
    total: dict[str, Tensor] = {}
    for folder in folders:
        try:
            with safe_open(folder / WEIGHTS, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - `weights` is not a dict
                    tensor = weights.get_tensor(name)
                    if not tensor.is_floating_point():
                        total[name] = tensor
                    elif name in total:
                        total[name] = total[name] + tensor.double()
                    else:
                        total[name] = tensor.double()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{folder / WEIGHTS} cannot be read ({_first_line(error)}): {_mend(folder)}"
            ) from error
    return {
        name: (tensor / len(folders)).float() if tensor.is_floating_point() else tensor
        for name, tensor in total.items()
    }


def _mend(checkpoint: Path) -> str:
    return f"the checkpoint is cut short; delete {checkpoint} to continue from the one before it"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
