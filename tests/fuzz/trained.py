"""Trains a run in a process of its own, which can be killed.

The processes are forked from one that has imported everything, and has done nothing else: each
starts at once, where a fresh interpreter would take longer to start than the run to be trained.
"""

import contextlib
import multiprocessing
import time
from pathlib import Path

from headwise.cli import app

_context = multiprocessing.get_context("forkserver")
# Names of the package: before Python 3.12.7 the server does not look where the tests are.
_context.set_forkserver_preload(["headwise.runs.one_run", "headwise.tasks.translation"])


def train(recipe: Path, folder: Path, kill_after: float | None = None) -> float:
    """Starts the training of a run, or goes on with it.

    Args:
        recipe: a recipe file, whose system `mae` is trained.
        folder: of the run.
        kill_after: seconds after which the process gets SIGKILL; None lets it finish.

    Returns:
        How many seconds the process took.
    """
    line = ["train", str(recipe), "--system", "mae", "--output", str(folder)]
    process = _context.Process(target=_run, args=(line, folder.with_suffix(".log")))
    start = time.monotonic()
    process.start()
    process.join(kill_after)
    process.kill()
    process.join()
    seconds = time.monotonic() - start
    if kill_after is None and process.exitcode != 0:
        raise RuntimeError(folder.with_suffix(".log").read_text(encoding="utf-8"))
    return seconds


def _run(line: list[str], log: Path) -> None:
    with (
        log.open("w", encoding="utf-8") as text,
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(text),
    ):
        app(line)
