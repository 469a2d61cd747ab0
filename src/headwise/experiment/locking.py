"""One process at a time writes into the folder of a run, of a comparison or of an analysis."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import SoftFileLock, Timeout

from headwise.experiment.folders import FolderError, is_main_process
from headwise.files import check_can_be_written, no_space_told, remove_partial

LOCK = ".lock"
# Within it the mark of a process that has died is found and removed.
_SECONDS = 0.2


class LockedError(FolderError):
    """Another process is at work in a folder; the message says which, and what to do."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While this context is open, no other process that asks for it gets the folder.

    Its mark, the file `.lock`, has process and computer in its first two lines. One that a killed
    process has left is removed, where that process was of this computer; so is what it had written
    in part. Of the processes that `torchrun` has started, the main one asks for all.

    Args:
        folder: which is made if there is none.

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
        remove_partial(folder)
        yield
    finally:
        lock.release()
        if is_new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _in_use(folder: Path) -> str:
    path = folder / LOCK
    try:
        process, host, *_ = path.read_text(encoding="utf-8").split()
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
        holder = f"process {process} on the computer {host}, since {since}"
    except (OSError, ValueError):
        return f"{folder} is in use by another process: wait until it has ended, and try again"
    return (
        f"{folder} is in use by {holder}: wait until it has ended, or stop it. If that computer or "
        f"that process is no more, delete {path}"
    )
