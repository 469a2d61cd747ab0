"""Writes files and folders whole or not at all: under another name first, then renamed."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PARTIAL = ".partial-"  # before the name of what is being written


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Writes a file or a folder so that `path` never holds an incomplete one.

    Its content is on the disk before it gets its name, so that it is whole after a power cut too.

    Args:
        path: the path of the file, which is replaced if it exists, or of a new folder. Its parent
            folder is created.

    Yields:
        An unused path in the same folder, at which the caller writes the file or makes the folder.
        At the end it is renamed to `path`. After an error it is removed, and `path` is unchanged.
    """
    partial = partial_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove(partial)
        yield partial
        for written in (partial, *partial.rglob("*")):
            _sync(written)
        partial.replace(path)
        _sync(path.parent)
    finally:
        remove(partial)


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, whole or not at all."""
    with written_whole(path) as partial:
        partial.write_bytes(content)


def partial_path(path: Path) -> Path:
    """The name under which `written_whole` has this process write a file or folder."""
    return path.with_name(f"{_PARTIAL}{os.getpid()}-{path.name}")


def clear_leftovers(paths: Iterable[Path]) -> None:
    """Removes from these files and folders what killed processes have written in part."""
    for path in paths:
        if path.name.startswith(_PARTIAL):
            remove(path)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that it holds; one that is not there may be named."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Forces a file, or the names in a folder where the system can, from memory onto the disk."""
    if path.is_file() and not path.is_symlink():
        # safetensors writes for the user alone: give what open() gives, less the umask.
        umask = os.umask(0o077)
        os.umask(umask)
        path.chmod(path.stat().st_mode | (0o666 & ~umask))
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
