"""A folder into which nothing more can be written: read-only, or on a disk that is full."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_OF_NAMES = ("os.mkdir", "os.rename", "os.link", "os.symlink")
_failing: list["FailingDisk"] = []


class FailingDisk:
    """What is left of the room of a folder: `left` says how many writes."""

    def __init__(self, folder: Path, number: int, after: int) -> None:
        self.folder, self.number, self.left = str(folder), number, after

    def look(self, event: str, arguments: tuple) -> None:
        """Raises the error where Python is about to write, as its audit events tell."""
        writes = event in _OF_NAMES or (event == "open" and int(arguments[2] or 0) & _WRITES)
        # A temporary file may stand beside the folder, and be moved into it.
        names = [str(each) for each in arguments if isinstance(each, (str, os.PathLike))]
        if writes and any(name.startswith(self.folder) for name in names):
            self.left -= 1
            if self.left < 0:
                raise OSError(self.number, os.strerror(self.number), names[0])


def _look(event: str, arguments: tuple) -> None:
    for each in _failing:
        each.look(event, arguments)


@contextmanager
def failing(folder: Path, error: int = errno.EROFS, after: int = 0) -> Iterator[FailingDisk]:
    """While this context is open, this process can write nothing more in a folder.

    Args:
        folder: the folder, with all in it.
        error: the number of the error, `errno.EROFS` of what is read-only, `errno.ENOSPC` of what
            is full.
        after: how many files can still be opened, made or renamed.
    """
    if not hasattr(failing, "is_installed"):  # a hook cannot be taken away again
        sys.addaudithook(_look)
        failing.is_installed = True
    disk = FailingDisk(folder, error, after)
    _failing.append(disk)
    try:
        yield disk
    finally:
        _failing.remove(disk)
