"""The process of one run: what it prints goes into its folder, and its input tells it to stop.

Nothing is written to its standard input. When that ends, the run writes a checkpoint and stops. So
it also stops when the process that has started it dies, in whatever way.

Workers of a Ray cluster import this module, which imports no PyTorch.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from headwise.runs.names import LAUNCHED, LOG, RECIPE

_LAST_LINES = 15  # of the log of a run that failed


def command(folder: Path, nproc: int = 1, modules: Sequence[str] = ()) -> list[str]:
    """Returns the command that trains the run of a folder, from wherever it got to."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    imports = [part for module in modules for part in ("--import", module)]
    train = ["-m", "headwise", "train", str(folder.resolve()), *imports]
    return [sys.executable, *(torchrun if nproc > 1 else []), *train]


class RunProcess:
    """Starts the command of a run, with something in its environment beside what this one has."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]):
        self._log = folder / LOG
        with self._log.open("ab") as log:
            self._start = log.tell()
            self._process = subprocess.Popen(
                command,
                env={**os.environ, LAUNCHED: "1", **environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,  # the terminal's Ctrl-C does not reach it
            )

    def end(self) -> str | None:
        """Returns why the run failed, or nothing if it did not; None while it is at work."""
        code = self._process.poll()
        if not code:
            return None if code is None else ""
        why = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        why += ", as when memory runs out" if code == -signal.SIGKILL else ""
        with self._log.open("rb") as log:
            log.seek(self._start)
            said = log.read().decode("utf-8", "replace").rstrip().splitlines()[-_LAST_LINES:]
        lines = [f"{why}: {said[-1].strip()}", f"{self._log} ends:", *said] if said else [why]
        return "\n  ".join(lines)

    def stop(self) -> None:
        """Has the run write a checkpoint and stop; does not wait for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()


def on_this_machine(
    command: Sequence[str], folder: Path, current_folder: Path, environment: Mapping[str, str]
) -> str:
    """Does the command of a run on a machine of a cluster; returns why it failed, or nothing."""
    if not (folder / RECIPE).is_file():
        return f"a machine does not see {folder}, expected an --output that all machines share"
    if current_folder.is_dir():
        os.chdir(current_folder)  # it may have modules of --import
    run = RunProcess([sys.executable, *command[1:]], folder, environment)
    while (why := run.end()) is None:
        try:
            time.sleep(0.2)
        except KeyboardInterrupt:  # of `ray.cancel`
            run.stop()
    return why


def end_with_parent() -> None:
    """Has this process stop when its input ends, if it is a `RunProcess`."""

    def stop_at_end() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    if LAUNCHED in os.environ:
        threading.Thread(target=stop_at_end, daemon=True).start()
