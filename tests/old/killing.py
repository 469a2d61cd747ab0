"""Work in a folder that is killed at chosen moments, by `kill -9`, and started again."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# What Python does with files, as its audit hooks name it.
_OF_NAMES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir")


def done_in_spite_of_kills(
    work: Callable[[Path], Any], folder: Path, moments: Iterable[int], *, seconds: float = 120
) -> list[int]:
    """Does work that goes on where it was stopped, in processes that are killed but for the last.

    Args:
        work: what is done; it is given the folder, and forked from this process.
        folder: in which it writes.
        moments: for each process before the last, at which of the things that it does with files
            (opens one in the folder, renames, removes or makes one) it is killed: from 1.
        seconds: after which a process that hangs fails the test.

    Returns:
        The moments at which processes were killed; the others came after their work had ended.
    """
    killed = []
    for moment in moments:
        if _run(work, folder, moment, seconds) == 0:
            break
        killed.append(moment)
    else:
        assert _run(work, folder, None, seconds) == 0
    return killed


def _run(work: Callable[[Path], Any], folder: Path, moment: int | None, seconds: float) -> int:
    process = multiprocessing.get_context("fork").Process(target=_work, args=(work, folder, moment))
    process.start()
    process.join(seconds)
    assert process.exitcode in (0, -signal.SIGKILL), (process.exitcode, moment)
    return process.exitcode


def _work(work: Callable[[Path], Any], folder: Path, moment: int | None) -> None:
    count = 0

    def watch(event: str, arguments: tuple) -> None:
        nonlocal count
        if event in _OF_NAMES or (event == "open" and str(folder) in str(arguments[0])):
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    work(folder)
