"""Starts processes that share one run, as torchrun does, on one machine or as if on several."""

import os
import subprocess
import sys
from pathlib import Path


def on_processes(number: int, *arguments: str | Path, timeout: int = 400) -> str:
    """Runs a script, or `-m` and a module, on the CPU; returns what it prints."""
    launched = launch("--standalone", f"--nproc-per-node={number}", *arguments)
    output, errors = launched.communicate(timeout=timeout)
    assert launched.returncode == 0, errors
    return output


def as_machine(rank: int, port: int, *arguments: str | Path) -> subprocess.Popen[str]:
    """Starts what one of two machines does, each with one process, in a group of its own."""
    where = (f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}")
    return launch("--nnodes=2", "--nproc-per-node=1", *where, *arguments)


def launch(*arguments: str | Path) -> subprocess.Popen[str]:
    """Starts torchrun on the CPU."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
