"""How the threads of PyTorch wait for each other; this has to be set before it is loaded.

A step of training consists of many small computations that threads share, and at the end of each
the threads wait for the last one. By default they wait in a loop, which is fastest on a machine
that does nothing else. Beside other programs the loop takes the processor from the thread that is
waited for. Threads that sleep leave it free: `benchmarks/busy.py` measures the difference.
"""

import os

# What OpenMP (the first), GNU's library (in PyTorch for Linux) and LLVM's (macOS) read.
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


def sleep_while_waiting() -> None:
    """Lets threads sleep while they wait, in this process and in those that it starts.

    The libraries read it once, when they are loaded. What the user has set stays as it is.
    """
    if not any(name in os.environ for name in VARIABLES):
        # For GNU's library that is GOMP_SPINCOUNT=0, for LLVM's KMP_BLOCKTIME=0.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
