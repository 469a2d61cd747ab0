"""How the threads of PyTorch wait, which has to be said before it is loaded.

A step of training is many small parts that threads share, and at the end of each a thread waits for
the others. By default it spins for a while, which answers fastest on a machine that has nothing
else to do. Beside other programs it burns the time in which the thread that it waits for could run.
Threads that sleep give that time up: `benchmarks/busy.py` measures the difference.
"""

import os

# What OpenMP (the first), GNU's library (in PyTorch for Linux) and LLVM's (macOS) read of waiting.
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


def sleep_while_waiting() -> None:
    """Has threads sleep while they wait, here and in processes started from here.

    The libraries read it once, when they are loaded. What the user has set stays as it is.
    """
    if not any(name in os.environ for name in CHOICES):
        # For GNU's library that is GOMP_SPINCOUNT=0, for LLVM's KMP_BLOCKTIME=0.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
