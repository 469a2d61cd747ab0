"""What the folder of a run holds, and which process writes into it."""

import os
from collections.abc import Sequence
from pathlib import Path

RECIPE, CORPUS, RESULT = "recipe.yaml", "corpus.sha256", "result.json"
MODEL = "model"
READ_AGAIN = ("data", "evaluation")  # the keys of its recipe that a finished run reads again


class FolderError(ValueError):
    """A folder that does not hold what is expected of it; the message says what to do."""


def check_run(folder: Path, changes: Sequence[str] = (), keys: Sequence[str] = READ_AGAIN) -> None:
    """Finds out whether a folder holds one run, and changes name keys that it reads."""
    inside = sorted(path.parent.name for path in folder.glob(f"*/{MODEL}"))
    if inside and not (folder / MODEL).exists():
        raise FolderError(f"{folder} holds several runs, name one of them: {', '.join(inside)}")
    check_holds(folder, "a run of headwise", RECIPE)
    for change in changes:
        path = change.partition("=")[0].strip()
        if path.partition(".")[0] not in keys:
            raise ValueError(
                f"--set is {change!r}, but a finished run does not read {path}; expected keys of "
                f"{', '.join(keys)}. Train another run to change others"
            )


def check_holds(folder: Path, what: str, *names: str) -> None:
    """Raises `FolderError` if a folder lacks a file that makes it `what`."""
    for name in names:
        if not (folder / name).exists():
            raise FolderError(
                f"{folder} is not {what}: it has no {name}; name the folder of a run that "
                f"`headwise train` or `headwise compare` has finished"
            )


def check_holds_runs(folder: Path) -> list[Path]:
    """Returns the folders of the finished runs in a folder, sorted."""
    runs = sorted(path.parent for path in folder.rglob(RESULT))
    if not runs:
        raise FolderError(
            f"{folder} has no finished run, expected the folder of a run or of a comparison "
            f"that `headwise train` or `headwise compare` has made"
        )
    return runs


def check_can_be_written(path: Path) -> None:
    """Raises `ValueError` if no file can be written at a path of `--output`, before any work.

    >>> check_can_be_written(Path("missing/page.html"))
    >>> check_can_be_written(Path("/"))
    Traceback (most recent call last):
    ...
    ValueError: / is a folder, expected the name of a file to write; give another one by --output
    """
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, expected the name of a file to write; give another one by "
            f"--output"
        )
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file, expected a folder; give another one by --output")
    if not os.access(folder, os.W_OK):
        raise ValueError(
            f"{folder} is a folder in which nothing can be written; give another one by --output"
        )


# Whether the machines of this command share no folder, see `headwise.runs.locking.meet`.
_apart = False


def is_main_process() -> bool:
    """Whether this is the process that prints; the only one without `torchrun`.

    Some clusters set `RANK` for a process that trains alone.
    """
    return launched_processes() == 1 or int(os.environ.get("RANK", "0")) == 0


def is_writer() -> bool:
    """Whether this process writes into the folder of a run.

    That is the main process, or the first one of each machine where machines share no folder.
    """
    return is_main_process() or (_apart and int(os.environ.get("LOCAL_RANK", "0")) == 0)


def machines_are_apart() -> bool:
    """Whether the machines of this command share no folder: each has a copy of the run's."""
    return _apart


def set_machines_apart(apart: bool) -> None:
    """Notes whether the machines of this command share no folder."""
    global _apart
    _apart = apart


def launched_processes() -> int:
    """The number of processes that `torchrun` has started for this command."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Returns names that tell folders apart: their last part, or as many parts as it takes."""
    paths = [folder.resolve() for folder in folders]
    for parts in range(1, 9):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({number})" for number, path in enumerate(paths, 1)]
