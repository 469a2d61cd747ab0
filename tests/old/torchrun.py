"""Processes that share one run: of torchrun, or started as it does, on one machine or several."""

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

CPU = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
# A server has imported once what takes each process of torchrun seconds, and copies itself.
COPIES = multiprocessing.get_context("forkserver")
COPIES.set_forkserver_preload(
    ["headwise.cli", "headwise.runs.comparing", "headwise.training.trainer", "transformers.trainer"]
)


def on_processes(number: int, *arguments: str | Path, timeout: int = 400) -> str:
    """Has torchrun run a script, or `-m` and a module, on the CPU; returns what it prints."""
    launched = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={number}", *map(str, arguments)),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **CPU},
        timeout=timeout,
    )
    assert launched.returncode == 0, launched.stderr
    return launched.stdout


def on_copies(number: int, script: str, *arguments: str | Path, timeout: int = 400) -> str:
    """Runs a script as torchrun does, without the imports; returns what its processes print."""
    port = free_port()
    return end_well(
        [
            Copy(port, rank, number, script, *arguments, LOCAL_RANK=str(rank), GROUP_RANK="0")
            for rank in range(number)
        ],
        timeout,
    )


class Copy:
    """One of several processes, with the environment that torchrun gives to it."""

    def __init__(
        self,
        port: int,
        rank: int,
        number: int,
        script: str,
        *arguments: str | Path,
        **environment: str,
    ) -> None:
        self._said = tempfile.TemporaryDirectory()
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        where |= {"RANK": str(rank), "WORLD_SIZE": str(number)}
        known = {**os.environ, **CPU, **where, **environment}
        command = [script, *map(str, arguments)]
        self.process = COPIES.Process(target=_run, args=(known, command, self._said.name))
        self.process.start()

    def said(self, name: str) -> str:
        """What it has printed, as `output` or `errors`."""
        return Path(self._said.name, name).read_text(encoding="utf-8")


def end_well(copies: list[Copy], timeout: int) -> str:
    """Waits for processes; returns what they print. Those that wait for another are killed."""
    until = time.monotonic() + timeout
    while any(copy.process.exitcode is None for copy in copies) and time.monotonic() < until:
        if any(copy.process.exitcode for copy in copies):
            break
        time.sleep(0.05)
    codes = [copy.process.exitcode for copy in copies]
    for copy in copies:
        copy.process.kill()
        copy.process.join()
    assert codes == [0] * len(copies), "".join(copy.said("errors") for copy in copies)
    return "".join(copy.said("output") for copy in copies)


def free_port() -> int:
    """A port where the processes may meet."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _run(environment: Mapping[str, str], command: list[str], said: str) -> None:
    os.environ.update(environment)
    os.fsync = lambda descriptor: None  # see conftest.py
    for number, name in ((1, "output"), (2, "errors")):
        with Path(said, name).open("wb") as file:
            os.dup2(file.fileno(), number)
    import torch

    torch.set_num_threads(1)
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
