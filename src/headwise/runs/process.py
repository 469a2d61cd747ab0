"""The process of one run: its output goes into the folder of the run, and its input stops it.

Nothing is written to its standard input. When that is closed, the run writes a checkpoint and
stops. So the run also stops when the process that has started it dies, in whatever way.

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


def train_command(folder: Path, modules: Sequence[str] = ()) -> list[str]:
    """Returns the arguments of Python that train the run of a folder, from its last checkpoint."""
    imports = [word for module in modules for word in ("--import", module)]
    return ["-m", "headwise", "train", str(folder.resolve()), *imports]


class RunProcess:
    """A process of Python that trains a run.

    Args:
        arguments: of Python, see `train_command`.
        folder: of the run.
        environment: is added to that of this process.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]):
        self._log = folder / LOG
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, LAUNCHED: "1", **environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,  # the terminal's Ctrl-C does not reach it
            )

    def poll(self) -> str | None:
        """Returns the reason of a failure, "" after a success, and None before the end."""
        status = self._process.poll()
        if not status:
            return None if status is None else ""
        reason = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        reason += ", as when memory runs out" if status == -signal.SIGKILL else ""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            last = log.read().decode("utf-8", "replace").rstrip().splitlines()[-_LAST_LINES:]
        lines = [f"{reason}: {last[-1].strip()}", f"{self._log} ends:", *last] if last else [reason]
        return "\n  ".join(lines)

    def stop(self) -> None:
        """Makes the run write a checkpoint and stop, without waiting for its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()


def train_on_worker(
    arguments: Sequence[str], folder: Path, current_folder: Path, environment: Mapping[str, str]
) -> str:
    """Trains a run on a machine of a cluster; returns the reason of a failure, or an empty text."""
    if not (folder / RECIPE).is_file():
        return f"a machine does not see {folder}, expected an --output that all machines share"
    if current_folder.is_dir():
        os.chdir(current_folder)  # it may have modules of --import
    run = RunProcess(arguments, folder, environment)
    while (reason := run.poll()) is None:
        try:
            time.sleep(0.2)
        except KeyboardInterrupt:  # of `ray.cancel`
            run.stop()
    return reason


def end_with_parent() -> None:
    """Makes this process stop when its input is closed, if it is a `RunProcess`."""

    def stop_at_end() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    if LAUNCHED in os.environ:
        threading.Thread(target=stop_at_end, daemon=True).start()
