"""Starts two processes that share one run, as torchrun does."""

import os
import subprocess
import sys
from pathlib import Path


def on_two_processes(*arguments: str | Path, timeout: int = 400) -> str:
    """Runs a script, or `-m` and a module, on the CPU; returns what it prints."""
    launched = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc_per_node", "2", *map(str, arguments)),
        ],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )
    assert launched.returncode == 0, launched.stderr
    return launched.stdout
