"""Processes that tests fork: to be killed, interrupted or refused space, and ranks of one training.

They are forked, since to import anew what tests have imported takes seconds.

ended = forked(lambda: train(folder), killed_at(7, folder))
figures = on_ranks(2, course, folder)
"""

import errno
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.optim import optimizer as of_optimizers

FORK = multiprocessing.get_context("fork")
# What Python does with files, as its audit events name it.
_CHANGES_NAMES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir")
_TAKES_ROOM = ("os.mkdir", "os.rename", "os.link", "os.symlink")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SECONDS = 300  # after which a process that hangs fails the test


class Ended(NamedTuple):
    """The status of a process, negative for a signal that has ended it, and what it printed."""

    status: int
    said: str


def begun(work: Callable[[], Any], said: Path) -> Any:
    """Begins work in a process of its own; all that it prints goes into a file."""
    process = FORK.Process(target=_work, args=(work, said))
    process.start()
    return process


def wait_for(is_there: Callable[[], bool], process: Any) -> None:
    """Waits for what a process makes that was begun."""
    deadline = time.monotonic() + SECONDS
    while not is_there():
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.05)


def forked(work: Callable[[], Any], *before: Callable[[], Any]) -> Ended:
    """Does work in a process of its own, which first calls what is given behind it."""

    def prepare_and_work() -> None:
        for prepare in before:
            prepare()
        work()

    with tempfile.TemporaryDirectory() as folder:
        process = begun(prepare_and_work, Path(folder, "said"))
        process.join(SECONDS)
        _end(process)
        return Ended(process.exitcode, Path(folder, "said").read_text(encoding="utf-8"))


def killed_at(moment: int, folder: Path) -> Callable[[], Any]:
    """`kill -9` comes when the process does the n-th thing with files, from 1.

    It opens one in the folder, or makes, renames or removes one anywhere.
    """
    left = moment

    def watch(event: str, arguments: tuple) -> None:
        nonlocal left
        if event in _CHANGES_NAMES or (event == "open" and str(folder) in str(arguments[0])):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return lambda: sys.addaudithook(watch)


def unwritable(folder: Path, error: int = errno.EROFS, after: int = 0) -> Callable[[], Any]:
    """The process can write nothing more in a folder: it is read-only or, with `ENOSPC`, full.

    Args:
        after: how many files can still be opened, made or renamed.
    """
    left = after

    def watch(event: str, arguments: tuple) -> None:
        nonlocal left
        writes = event in _TAKES_ROOM or (event == "open" and int(arguments[2] or 0) & _WRITES)
        # A temporary file may stand beside the folder, and be moved into it.
        names = [str(each) for each in arguments if isinstance(each, (str, os.PathLike))]
        if writes and any(name.startswith(str(folder)) for name in names):
            left -= 1
            if left < 0:
                raise OSError(error, os.strerror(error), names[0])

    return lambda: sys.addaudithook(watch)


def signalled_at(step: int, number: int) -> Callable[[], Any]:
    """A signal comes before the optimizer takes its n-th step, from 1."""
    left = step

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            signal.raise_signal(number)

    return lambda: of_optimizers.register_optimizer_step_pre_hook(count)


def on_ranks(number: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Calls a function in processes that share a training; returns what each returns, by rank.

    They have the environment that torchrun gives, and meet by gloo, without a GPU.
    """
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    where |= {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number), "GROUP_RANK": "0"}

    def work_on(rank: int, result: Path) -> None:
        os.environ.update(**where, RANK=str(rank), LOCAL_RANK=str(rank), CUDA_VISIBLE_DEVICES="")
        for state in (AcceleratorState, PartialState, GradientState):
            state._shared_state.clear()  # noqa: SLF001 - that of the process which forked this one
        result.write_bytes(pickle.dumps(work(*arguments)))
        torch.distributed.destroy_process_group()

    with tempfile.TemporaryDirectory() as folder:
        paths = [(Path(folder, f"found {n}"), Path(folder, f"said {n}")) for n in range(number)]
        processes = [
            begun(lambda rank=rank, result=result: work_on(rank, result), said)
            for rank, (result, said) in enumerate(paths)
        ]
        until = time.monotonic() + SECONDS
        while any(process.is_alive() for process in processes) and time.monotonic() < until:
            if any(process.exitcode for process in processes):
                break  # the others would wait for it
            time.sleep(0.02)
        for process in processes:
            _end(process)
        if any(process.exitcode for process in processes):
            raise AssertionError("\n".join(said.read_text("utf-8") for _, said in paths))
        return [pickle.loads(result.read_bytes()) for result, _ in paths]


def _end(process: Any) -> None:
    if process.is_alive():
        process.kill()
    process.join()


def _work(work: Callable[[], Any], said: Path) -> None:
    with said.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)
    try:
        work()
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        sys.stdout.flush()
