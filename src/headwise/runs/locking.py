"""One process at a time writes into the folder of a run, of a comparison or of an analysis."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import SoftFileLock, Timeout

from headwise.checksums import SUMS
from headwise.files import check_can_be_written, no_space_told, remove_partial
from headwise.runs.folder import FolderError, is_main_process

LOCK = ".lock"
# Long enough for filelock to find and remove the mark of a process that has died.
_SECONDS = 0.2


class LockedError(FolderError):
    """Another process is at work in a folder; the message says which, and what to do."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While this context is open, another process that calls this for the folder gets an error.

    The mark of it, the file `.lock`, has the process and the computer in its first two lines. The
    mark of a process that was killed is removed if it ran on this computer, and with it the files
    that it had written in part, also those in folders inside that are not locked themselves. Of
    the processes that `torchrun` has started, only the main one takes the folder, for all.

    Raises:
        LockedError: another process has it.
        ValueError: nothing can be written there.
    """
    if not is_main_process():
        yield
        return
    check_can_be_written(folder / LOCK, "--output")
    is_new = not folder.exists()
    with no_space_told(folder / LOCK):
        folder.mkdir(parents=True, exist_ok=True)
        # A mark, not a lock of the system: not every shared folder has those.
        lock = SoftFileLock(folder / LOCK, timeout=_SECONDS)
        try:
            lock.acquire()
        except Timeout:
            raise LockedError(_in_use(folder)) from None
    try:
        _remove_what_was_left(folder)
        yield
    finally:
        lock.release()
        if is_new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _remove_what_was_left(folder: Path) -> None:
    """Removes what killed processes had written in part, and nothing that is being written.

    A process that writes in a folder inside has locked it before. Both are seen in one listing.
    """
    for place, folders, files in os.walk(folder):
        if LOCK in files and Path(place) != folder:
            folders.clear()  # the next start of this run does it
            continue
        remove_partial(Path(place, name) for name in (*folders, *files))
        if not (folder / SUMS).is_file():
            return  # it may hold anything


def _in_use(folder: Path) -> str:
    path = folder / LOCK
    try:
        process, host, *_ = path.read_text(encoding="utf-8").split()
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
        holder = f"process {process} on the computer {host}, since {since}"
    except (OSError, ValueError):  # it is being written, or was cut by a crash
        holder = "another process"
    return (
        f"{folder} is in use by {holder}: wait until it has ended, or stop it. If that computer or "
        f"that process is no more, delete {path}"
    )
