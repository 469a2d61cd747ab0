"""The names of the files of a run, and checks of folders that need no PyTorch."""

from collections.abc import Sequence
from pathlib import Path

RECIPE, INPUTS, RESULT, MODEL = "recipe.yaml", "inputs.txt", "result.json", "model"
COMPARISON = "comparison.json"  # of the folder of a comparison
ENCODER, TRIALS = "encoder", "trials"
CONFIG = "config.json"  # of a model of transformers
LOG = "log.txt"  # the output of a run that another process has started
LAUNCHED = "HEADWISE_LAUNCHED"  # in the environment of a run that another process has started
READ_AGAIN = ("data", "evaluation")  # the sections of its recipe that a finished run reads again


class FolderError(ValueError):
    """A folder without the expected files; the message says what to do."""


def check_run(folder: Path, changes: Sequence[str] = (), keys: Sequence[str] = READ_AGAIN) -> None:
    """Raises `ValueError` unless a folder holds a run, and `--set` changes these keys alone."""
    if not (folder / RECIPE).is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{RECIPE}"))
        raise FolderError(
            f"{folder} holds several runs, name one of them: {', '.join(inside)}"
            if inside
            else f"{folder} {'has no ' + RECIPE if folder.is_dir() else 'is no folder'}, expected "
            f"the folder of a run, which headwise train or compare has made"
        )
    for change in changes:
        path = change.partition("=")[0].strip()
        if path.partition(".")[0] not in keys:
            raise ValueError(
                f"--set is {change!r}, but a finished run does not read {path}; expected keys of "
                f"{', '.join(keys)}. Train another run to change others"
            )


def is_transformers_model(folder: Path) -> bool:
    """Returns whether an argument is a model of transformers or a name on the hub, and no run.

    Raises:
        FolderError: there is no such folder, or it holds neither a run nor a model.
    """
    if not folder.exists():
        # A name on the hub is NAME or OWNER/NAME; where the owner is a folder, one is meant.
        if len(folder.parts) <= 2 and (folder.parent == Path() or not folder.parent.exists()):
            return True
        raise FolderError(
            f"there is no folder {folder}, expected a run of headwise, a model of transformers, or "
            f"a name on the hub"
        )
    is_run = (folder / RECIPE).exists() or any(folder.glob(f"*/{MODEL}"))
    if not is_run and not (folder / CONFIG).exists():
        raise FolderError(
            f"{folder} is neither a run of headwise, which has a {RECIPE}, nor a model of "
            f"transformers, which has a {CONFIG}"
        )
    return not is_run
