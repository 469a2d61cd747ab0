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
from typing import Any, NamedTuple

import torch
from rich.console import Console

from headwise.analysis.results import RunResult
from headwise.recipes.recipe import Recipe
from headwise.runs.folder import distinct_names, read_result
from headwise.runs.process import RunProcess, command, on_this_machine
from headwise.runs.run import train_run
from headwise.tasks.task import Task
from headwise.training.trainer import Interrupted
from headwise.training.watching import StopSignal, bars, figures_of, last_progress, say

# Libraries read them when they are loaded; the last is for tokenizers.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_GPUS = "CUDA_VISIBLE_DEVICES"


class Run(NamedTuple):
    """A run of many: its folder, which `claim` has made, its recipe, and its data if known."""

    folder: Path
    recipe: Recipe
    task: Task | None = None

    def result(self) -> RunResult | None:
        """Returns its result; None before it is finished, also with new test sets of its recipe."""
        return read_result(self.folder, self.recipe)


# The name of each run that has ended, and why it has failed; nothing if it has not.
_Ends = Generator[tuple[str, str], None, None]


class RunsFailed(Exception):
    """Some runs failed; the others are finished, and the same command tries these again."""


def train_all(
    runs: Sequence[Run],
    console: Console,
    *,
    jobs: int = 1,
    nproc: int = 1,
    ray: Any = None,
    modules: Sequence[str] = (),
    after_each: Callable[[], None] = lambda: None,
) -> None:
    """Trains the runs that are not finished; one that fails takes no other with it.

    Args:
        jobs: how many runs to train at a time, each in a process with its share of this machine.
        nproc: how many processes share each run.
        ray: what `cluster` yields: runs are trained there, as many at a time as there is room for;
            at most `jobs`, if that is not 1.
        modules: what processes import first, as by `--import`.
        after_each: called whenever a run has ended.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came, and the runs at work have written checkpoints.
        RunsFailed: some runs failed.
    """
    names = distinct_names([run.folder for run in runs])
    waiting = {name: run for name, run in zip(names, runs, strict=True) if run.result() is None}
    failures: dict[str, str] = {}
    if ray is None and jobs == nproc == 1:
        ends = _one_by_one(waiting, console)
    else:
        number = len(runs) if ray is not None and jobs == 1 else jobs
        shares = _shares(number, nproc) if ray is None else [{} for _ in range(number)]
        start = RunProcess if ray is None else _tasks_of(ray, nproc)
        commands = {name: command(run.folder, nproc, modules) for name, run in waiting.items()}
        ends = _side_by_side(waiting, commands, shares, start, console)
    with closing(ends):
        for name, why in ends:
            result = waiting[name].result()
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
            f"{len(failures)} of {len(runs)} runs failed, and the same command tries them "
            f"again:{reasons}"
        )


def _one_by_one(waiting: Mapping[str, Run], console: Console) -> _Ends:
    """Trains runs in this process."""
    for name, run in waiting.items():
        why = ""
        try:
            train_run(run.folder, console, task=run.task)
        except (ValueError, OSError) as error:  # which says how to mend it
            why = str(error)
        except Exception as error:
            why = "".join([*traceback.format_exception_only(error), traceback.format_exc()])
        gc.collect()  # the next run needs the memory of this one's model
        yield name, why


def _side_by_side(
    runs: Mapping[str, Run],
    commands: Mapping[str, list[str]],
    shares: list[dict[str, str]],
    start: Callable[[list[str], Path, dict[str, str]], Any],
    console: Console,
) -> _Ends:
    """Has processes train runs, as many at a time as there are shares of this machine."""
    waiting, at_work, is_stopping = list(runs), dict[str, Any](), False
    with StopSignal() as signal, bars(console, transient=True) as shown:
        try:
            while at_work or (waiting and not is_stopping):
                while waiting and shares and not is_stopping:
                    name, share = waiting.pop(0), shares.pop(0)
                    row = shown.add_task(name, total=None, figures="waits")
                    at_work[name] = start(commands[name], runs[name].folder, share), share, row
                    if not console.is_terminal:
                        say(console, f"{name}: waits for its first step")
                time.sleep(0.5)
                if signal.came and not is_stopping:
                    is_stopping = True
                    for run, _, _ in at_work.values():
                        run.stop()
                for name, (run, share, row) in list(at_work.items()):
                    if (why := run.end()) is not None:
                        del at_work[name]
                        shares.append(share)
                        shown.remove_task(row)
                        if not is_stopping:
                            yield name, why
                    elif now := last_progress(runs[name].folder):
                        known = {"total": now["total"], "figures": figures_of(now)}
                        shown.update(row, completed=now["step"], **known)
        except BaseException:  # a second Ctrl-C, or pages that cannot be written
            for run, _, _ in at_work.values():
                run.stop()
            raise
    if is_stopping:
        raise Interrupted("the runs at work have written checkpoints")


def _shares(jobs: int, nproc: int) -> list[dict[str, str]]:
    """Returns the environments of runs that share the CPU threads and the GPUs of this machine."""
    of_each = max(1, torch.get_num_threads() // (jobs * nproc))
    threads = dict.fromkeys(_THREADS, str(of_each))
    visible = os.environ.get(_GPUS) or ",".join(map(str, range(torch.cuda.device_count())))
    gpus = visible.split(",")
    if len(gpus) == 1:
        return [threads] * jobs
    of_jobs = [range(first, first + nproc) for first in range(0, jobs * nproc, nproc)]
    own = [dict.fromkeys(gpus[each % len(gpus)] for each in of_job) for of_job in of_jobs]
    return [{**threads, _GPUS: ",".join(each)} for each in own]


@contextmanager
def cluster(address: str | None) -> Iterator[Any]:
    """Connects to a Ray cluster, and yields the module of Ray; None without an address.

    Raises:
        ValueError: no cluster answers at the address.
    """
    if address is None:
        yield None
        return
    try:
        import ray

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
        ray.shutdown()


def _tasks_of(ray: Any, nproc: int) -> Callable[[list[str], Path, dict[str, str]], Any]:
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

    def stop(self) -> None:
        self._ray.cancel(self._task)
