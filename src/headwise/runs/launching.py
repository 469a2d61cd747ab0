"""Trains many runs: one after the other, several at a time, or on the machines of a Ray cluster.

To train a run is a command over its folder, which goes on where it was: `headwise train FOLDER`.
Many runs are many such commands. How far each of them is, and what came of it, stands in its
folder, which the machines of a cluster share.
"""

import gc
import os
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from headwise.runs.folder import distinct_names, read_recipe, read_result
from headwise.runs.process import RunProcess, command, on_this_machine
from headwise.runs.run import train_run
from headwise.tasks.task import Task
from headwise.training.trainer import Interrupted
from headwise.training.watching import StopSignal, bars, figures_of, last_progress, say

# Libraries read them when they are loaded; the last is for tokenizers.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_GPUS = "CUDA_VISIBLE_DEVICES"
_Start = Callable[[list[str], Path, dict[str, str]], "RunProcess | _RunTask"]
# Each run that has ended, and why it has failed; nothing if it has not.
_Ends = Generator[tuple[Path, str], None, None]


class RunsFailed(Exception):
    """Some runs failed; the others are finished, and the same command tries these again."""


def train_all(
    folders: Sequence[Path],
    console: Console,
    *,
    jobs: int = 1,
    on: str | None = None,
    nproc: int = 1,
    modules: Sequence[str] = (),
    tasks: Mapping[Path, Task] | None = None,
    after_each: Callable[[], None] = lambda: None,
) -> None:
    """Trains what folders hold and is not finished; a run that fails takes no other with it.

    Args:
        folders: of runs, which `claim` has made.
        jobs: how many runs to train at a time, each in a process with its share of this machine.
        on: the address of a Ray cluster, which has as many at work as it has room for; at most
            `jobs`, if that is not 1.
        nproc: how many processes share each run.
        modules: what processes import first, as by `--import`.
        tasks: data that have been read already, for runs in this process.
        after_each: called whenever a run has ended.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came, and the runs at work have written checkpoints. A second
            Ctrl-C ends them at once.
        RunsFailed: some runs failed.
        ValueError: no cluster answers at the address.
    """
    names = dict(zip(folders, distinct_names(folders), strict=True))
    recipes = {folder: read_recipe(folder, keys=()) for folder in folders}
    waiting = [folder for folder in folders if read_result(folder, recipes[folder]) is None]
    if not waiting:
        return
    failures: dict[str, str] = {}
    with cluster(on) as ray:
        if ray is None and jobs == nproc == 1:
            ends = _one_by_one(waiting, tasks or {}, console)
        else:
            start: _Start = RunProcess if ray is None else _in_tasks(ray, nproc)
            number = len(folders) if ray is not None and jobs == 1 else min(jobs, len(folders))
            shares = _shares(number, nproc) if ray is None else [{} for _ in range(number)]
            commands = {folder: command(folder.resolve(), nproc, modules) for folder in waiting}
            ends = _side_by_side(commands, names, shares, start, console)
        with closing(ends):
            for folder, why in ends:
                name, result = names[folder], read_result(folder, recipes[folder])
                if result is None:
                    failures[name] = why or "its process has ended before the run did"
                    say(console, f"{name} failed: {failures[name]}", "red")
                elif result.scores:  # a try of --tune has none
                    score = result.scores[0]
                    say(console, f"{name}: {score.name} {score.value:.{score.digits}f}")
                after_each()
    if failures:
        reasons = "".join(f"\n  {name}: {why.splitlines()[0]}" for name, why in failures.items())
        raise RunsFailed(
            f"{len(failures)} of {len(folders)} runs failed, and the same command tries them "
            f"again:{reasons}"
        )


def _one_by_one(waiting: Sequence[Path], tasks: Mapping[Path, Task], console: Console) -> _Ends:
    """Trains runs in this process."""
    for folder in waiting:
        why = ""
        try:
            train_run(folder, console, task=tasks.get(folder))
        except (ValueError, OSError) as error:  # which says how to mend it
            why = str(error)
        except Exception as error:
            why = "".join([*traceback.format_exception_only(error), traceback.format_exc()])
        gc.collect()  # the next run needs the memory of this one's model
        yield folder, why


def _side_by_side(
    commands: Mapping[Path, list[str]],
    names: Mapping[Path, str],
    shares: list[dict[str, str]],
    start: _Start,
    console: Console,
) -> _Ends:
    """Has processes train runs, as many at a time as there are shares of this machine."""
    waiting, at_work, is_stopping = list(commands), dict[Path, Any](), False
    with StopSignal() as signal, bars(console, transient=True) as shown:
        try:
            while at_work or (waiting and not is_stopping):
                while waiting and shares and not is_stopping:
                    folder, share = waiting.pop(0), shares.pop(0)
                    row = shown.add_task(names[folder], total=None, figures="waits")
                    at_work[folder] = start(commands[folder], folder, share), share, row
                    if not console.is_terminal:
                        say(console, f"{names[folder]}: waits for its first step")
                time.sleep(0.5)
                came = signal.came
                for folder, (run, share, row) in list(at_work.items()):
                    if (why := run.end()) is not None:
                        del at_work[folder]
                        shares.append(share)
                        shown.remove_task(row)
                        if not came:
                            yield folder, why
                    elif came and not is_stopping:
                        run.stop()
                    elif now := last_progress(folder):
                        known = {"total": now["total"], "figures": figures_of(now)}
                        shown.update(row, completed=now["step"], **known)
                is_stopping = came
        except BaseException:  # a second Ctrl-C, or pages that cannot be written
            for run, _, _ in at_work.values():
                run.stop(at_once=signal.came)
            raise
    if is_stopping:
        raise Interrupted("the runs at work have written checkpoints")


def threads_of(processes: int) -> int:
    """Returns how many CPU threads each of several processes has."""
    return max(1, torch.get_num_threads() // processes)


def _shares(jobs: int, nproc: int) -> list[dict[str, str]]:
    """Returns the environments of runs that share the CPU threads and the GPUs of this machine."""
    threads = dict.fromkeys(_THREADS, str(threads_of(jobs * nproc)))
    visible = os.environ.get(_GPUS) or ",".join(map(str, range(torch.cuda.device_count())))
    gpus = visible.split(",")
    if len(gpus) == 1:
        return [threads] * jobs
    of_jobs = [range(first, first + nproc) for first in range(0, jobs * nproc, nproc)]
    own = [dict.fromkeys(gpus[each % len(gpus)] for each in of_job) for of_job in of_jobs]
    return [{**threads, _GPUS: ",".join(each)} for each in own]


@contextmanager
def cluster(address: str | None) -> Iterator[Any]:
    """Connects to a Ray cluster, and yields the module of Ray; to none without an address.

    Raises:
        ValueError: no cluster answers at the address.
    """
    if address is None:
        yield None
        return
    try:
        import ray

        is_connected = ray.is_initialized()  # by `compare`, to which both of its rounds belong
        if not is_connected:
            ray.init(address, log_to_driver=False)
    except ImportError:
        raise ValueError(f'--on {address} needs Ray: pip install "headwise[cluster]"') from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"--on is {address}, where no cluster could be used, expected ray://HOST:PORT, or auto "
            f"for the one of this machine, with the same versions of Ray and Python: {error}"
        ) from error
    try:
        yield ray
    finally:
        if not is_connected:
            ray.shutdown()


def _in_tasks(ray: Any, nproc: int) -> _Start:
    """Returns what starts a run on a machine of a Ray cluster."""
    threads = os.environ.get("OMP_NUM_THREADS") or "1"
    gpus = nproc if ray.cluster_resources().get("GPU") else 0
    # A run whose machine is lost goes on elsewhere.
    options = {"num_cpus": int(threads) * nproc, "num_gpus": gpus, "max_retries": 3}
    train, share = ray.remote(**options)(on_this_machine), dict.fromkeys(_THREADS, threads)
    return lambda command, folder, _: _RunTask(
        ray, train.remote(command, folder.resolve(), Path.cwd(), share)
    )


class _RunTask:
    """Watches and stops a run that a task of Ray trains, as `RunProcess` does on this machine."""

    def __init__(self, ray: Any, task: Any) -> None:
        self._ray, self._task = ray, task

    def end(self) -> str | None:
        if not self._ray.wait([self._task], timeout=0)[0]:
            return None
        try:
            return str(self._ray.get(self._task))
        except self._ray.exceptions.RayError as error:
            return str(error)

    def stop(self, *, at_once: bool = False) -> None:
        self._ray.cancel(self._task, force=at_once)
