"""Writes files and folders whole or not at all: under another name first, then renamed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PARTIAL = ".partial-"


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Writes a file or a folder so that `path` never holds an incomplete one.

    Args:
        path: the path of the file or folder, which is replaced if it exists. Its parent folder is
            created.

    Yields:
        An unused path in the same folder, at which the caller writes the file or makes the folder.
        At the end it is renamed to `path`. After an error it is removed, and `path` is unchanged.
        What was written for the user alone gets the usual permissions, those of the umask.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with written_whole(Path(folder) / "run") as partial:
    ...         partial.mkdir()
    ...         _ = (partial / "figures.txt").write_text("1, 2, 3")
    ...     (Path(folder) / "run" / "figures.txt").read_text()
    '1, 2, 3'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    _remove(partial)
    try:
        yield partial
        _give_usual_permissions(partial)
        if partial.is_dir():
            _remove(path)  # a folder cannot be renamed to the name of another that has files
        partial.replace(path)
    finally:
        _remove(partial)


def is_file(path: Path) -> bool:
    """Whether there is a file; no file system has one under a name that is too long.

    >>> is_file(Path("x" * 5000))
    False
    """
    try:
        return path.is_file()
    except OSError:
        return False


def check_can_be_written(path: Path, option: str) -> None:
    """Raises `ValueError` if no file can be written at a path, before work is done for it.

    Args:
        path: of the file.
        option: the option that names it or its folder.

    >>> check_can_be_written(Path("missing/page.html"), "--output")
    >>> check_can_be_written(Path("/"), "--output")
    Traceback (most recent call last):
    ...
    ValueError: / is a folder, expected the name of a file to write; give another one by --output
    """
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, expected the name of a file to write; give another one by "
            f"{option}"
        )
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file, expected a folder; give another one by {option}")
    if not os.access(folder, os.W_OK):
        raise ValueError(
            f"{folder} is a folder in which nothing can be written; give another one by {option}"
        )


def partial_path(path: Path) -> Path:
    """Returns the name under which `written_whole` has a file or folder written."""
    return path.with_name(f"{_PARTIAL}{path.name}")


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, whole or not at all."""
    with written_whole(path) as partial:
        partial.write_bytes(content)


def remove_partial(folder: Path) -> None:
    """Removes the incomplete files and folders that interrupted writers have left in a folder."""
    for left_over in folder.glob(f"{_PARTIAL}*"):
        _remove(left_over)


def _give_usual_permissions(path: Path) -> None:
    """Gives files the permissions that `open` gives; safetensors writes for the user alone."""
    mask = os.umask(0o077)  # there is no other way to read it
    os.umask(mask)
    for file in [path, *path.rglob("*")]:
        if file.is_file() and not file.is_symlink():
            file.chmod(file.stat().st_mode | (0o666 & ~mask))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
