"""One process at a time writes into the folder of a run, of a comparison or of an analysis.

Of the processes that `torchrun` has started it is the main one, or the first of each machine.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from filelock import SoftFileLock, Timeout

from headwise.files import clear_leftovers, partial_path
from headwise.runs.folder import (
    FolderError,
    check_can_be_written,
    is_main_process,
    is_writer,
    launched_processes,
    set_machines_apart,
)
from headwise.training.processes import gathered, replicas

LOCK = ".lock"
# Long enough for filelock to find and remove the mark of a process that has died.
_SECONDS = 0.2
# Within which another machine sees a new file in a folder that it shares.
_SECONDS_TO_SEE = 3.0
# Processes wait so long for the others: one machine may prepare data that another one has.
_TIMEOUT = timedelta(hours=3)

_met = False


class LockedError(FolderError):
    """Another process is at work in a folder; the message says which, and what to do."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While this context is open, another process that calls this for the folder gets an error.

    The mark of it, the file `.lock`, has the process and the computer in its first two lines. The
    mark of a process that was killed is removed if it ran on this computer, and with it the files
    that it had written in part, also those in folders inside that are not locked themselves. Of
    the processes that `torchrun` has started, only those that write take the folder, for all.

    Raises:
        LockedError: another process has it.
        ValueError: nothing can be written there, or some machines share the folder and others not.
    """
    meet(folder)
    if not is_writer():
        yield
        return
    check_can_be_written(folder / LOCK)
    new = [each for each in (folder, *folder.parents) if not each.exists()]
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
        with suppress(OSError):  # one is not empty
            for each in new:
                each.rmdir()


def join() -> None:
    """Has the processes that `torchrun` has started for this command find one another."""
    if launched_processes() == 1:
        return
    import torch
    from accelerate import PartialState

    PartialState(cpu=not torch.accelerator.is_available(), timeout=_TIMEOUT)


def meet(folder: Path) -> None:
    """Settles which processes of this command write into a folder and those inside, once for all.

    Where machines share the folder, the main process does. Where they do not, one process of each
    machine does, so that each has a copy of all that the run leaves, its checkpoints included.

    Raises:
        ValueError: some machines share the folder with the main process, and others do not.
    """
    global _met
    if _met or launched_processes() == 1:
        return
    join()
    if replicas() == 1:
        return
    mark = partial_path(folder / gathered(uuid4().hex)[0])
    if is_main_process():
        check_can_be_written(mark)
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    gathered(None)  # the mark is there
    until = time.monotonic() + _SECONDS_TO_SEE
    while not (seen := mark.exists()) and time.monotonic() < until:
        time.sleep(0.1)
    # torchrun numbers the machines, and other launchers do not.
    machines = gathered((os.environ.get("GROUP_RANK", socket.gethostname()), seen))
    if is_main_process():
        mark.unlink()
    others = {seen for machine, seen in machines if machine != machines[0][0]}
    if len(others) > 1:
        raise ValueError(
            f"--output is {folder}, which some of the machines of this command share with the "
            f"first and others do not, expected a folder that all of them share, or one that each "
            f"has for itself"
        )
    set_machines_apart(False in others)
    _met = True


def _remove_what_was_left(folder: Path) -> None:
    """Removes what killed processes had written in part, and nothing that is being written.

    A process that writes in a folder inside has locked it before. Both are seen in one listing.
    """
    for place, folders, files in os.walk(folder):
        if LOCK in files and Path(place) != folder:
            folders.clear()  # the next start of this run does it
            continue
        clear_leftovers(Path(place, name) for name in (*folders, *files))
        if not any(folder.glob("*.yaml")):
            return  # it has no recipe, and may hold anything


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
