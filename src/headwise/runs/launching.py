"""Trains many runs: one after the other, several at a time, or on the machines of a Ray cluster.

The command `headwise train FOLDER` trains the run of a folder, from its last checkpoint. Many runs
are many such commands. The progress and the result of a run are in its folder, which the machines
of a cluster share.
"""

import gc
import os
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from headwise.analysis.results import RunResult
from headwise.recipes.recipe import Recipe
from headwise.runs.folder import distinct_names, read_result
from headwise.runs.process import RunProcess, train_command, train_on_worker
from headwise.runs.run import train_run
from headwise.tasks.task import Task
from headwise.training.console import StopSignal, bars, format_losses, last_progress, say
from headwise.training.trainer import Interrupted

# Libraries read them when they are loaded; the last is for tokenizers.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_GPUS = "CUDA_VISIBLE_DEVICES"


class Run(NamedTuple):
    """One of many runs: its folder, which `init_run_folder` has made, its recipe, and its data."""

    folder: Path
    recipe: Recipe
    task: Task | None = None

    def result(self) -> RunResult | None:
        """Returns the result; None before it is finished, also on new test sets of the recipe."""
        result = read_result(self.folder)
        if result is None or self.task is None or not self.recipe.evaluation.test:
            return result
        hashes = {name: self.task.content_hash(name) for name in self.recipe.data.tests}
        return result if hashes.items() <= result.test_hashes.items() else None


@dataclass(frozen=True)
class Launcher:
    """How runs are started.

    Args:
        jobs: how many runs to train at a time, each in a process with its share of this machine.
        ray: the value of `cluster`: runs are trained there, as many at a time as there is room for;
            at most `jobs`, if that is not 1.
        modules: what the processes import first, as by `--import`.
    """

    jobs: int = 1
    ray: Any = None
    modules: Sequence[str] = ()


# The name of each run that has ended, and the reason of its failure, if it has failed.
_Ends = Generator[tuple[str, str], None, None]


class RunsFailed(Exception):
    """Some runs failed; the others are finished, and the same command tries these again."""


def train_all(
    runs: Sequence[Run],
    console: Console,
    launcher: Launcher,
    *,
    after_each: Callable[[], None] = lambda: None,
) -> None:
    """Trains the runs that are not finished; a run that fails leaves the others alone.

    Args:
        after_each: is called whenever a run has ended.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came, and the runs at work have written checkpoints.
        RunsFailed: some runs failed.
    """
    names = distinct_names([run.folder for run in runs])
    waiting = {name: run for name, run in zip(names, runs, strict=True) if run.result() is None}
    failures: dict[str, str] = {}
    if launcher.ray is None and launcher.jobs == 1:
        ends = _one_by_one(waiting, console)
    else:
        ends = _side_by_side(waiting, launcher, console)
    with closing(ends):
        for name, reason in ends:
            result = waiting[name].result()
            if result is None:
                failures[name] = reason or "its process has ended before the run did"
                say(console, f"{name} failed: {failures[name]}", "red")
            elif result.scores:  # a trial of --tune has none
                score = result.scores[0]
                say(console, f"{name}: {score.name} {score.value:.{score.digits}f}")
            after_each()
    if failures:
        lines = [f"\n  {name}: {reason.splitlines()[0]}" for name, reason in failures.items()]
        raise RunsFailed(
            f"{len(failures)} of {len(runs)} runs failed, and the same command tries them "
            f"again:{''.join(lines)}"
        )


def _one_by_one(waiting: Mapping[str, Run], console: Console) -> _Ends:
    """Trains runs in this process."""
    for name, run in waiting.items():
        reason = ""
        try:
            train_run(run.folder, console, task=run.task)
        except (ValueError, OSError) as error:  # which says how to mend it
            reason = str(error)
        except Exception as error:
            reason = "".join([*traceback.format_exception_only(error), traceback.format_exc()])
        gc.collect()  # the next run needs the memory of this one's model
        yield name, reason


def _side_by_side(runs: Mapping[str, Run], launcher: Launcher, console: Console) -> _Ends:
    """Trains runs in processes, on this machine or on a cluster."""
    ray, jobs = launcher.ray, launcher.jobs
    shares = _shares(jobs) if ray is None else [{}] * (len(runs) if jobs == 1 else jobs)
    waiting, at_work, is_stopping = list(runs), dict[str, Any](), False
    losses_said = dict[str, Any]()  # the last of each run, where no bars show them
    with StopSignal() as signal, bars(console, transient=True) as progress:
        try:
            while at_work or (waiting and not is_stopping):
                while waiting and shares and not is_stopping:
                    name, share = waiting.pop(0), shares.pop(0)
                    folder = runs[name].folder
                    arguments = train_command(folder, launcher.modules)
                    if ray is None:
                        process: Any = RunProcess(arguments, folder, share)
                    else:
                        process = _RunTask(ray, arguments, folder)
                    bar = progress.add_task(name, total=None, figures="waits")
                    at_work[name] = process, share, bar
                    if not console.is_terminal:
                        say(console, f"{name}: waits for its first step")
                time.sleep(0.5)
                if signal.came and not is_stopping:
                    is_stopping = True
                    for process, _, _ in at_work.values():
                        process.stop()
                for name, (process, share, bar) in list(at_work.items()):
                    if (reason := process.poll()) is not None:
                        del at_work[name]
                        shares.append(share)
                        progress.remove_task(bar)
                        if not is_stopping:
                            yield name, reason
                    elif state := last_progress(runs[name].folder):
                        step, total, figures = state["step"], state["total"], format_losses(state)
                        progress.update(bar, completed=step, total=total, figures=figures)
                        loss = state.get("eval_loss")
                        if not console.is_terminal and loss not in (None, losses_said.get(name)):
                            losses_said[name] = loss
                            say(console, f"{name}: step {step}/{total} {figures}")
        except BaseException:  # a second Ctrl-C, or pages that cannot be written
            for process, _, _ in at_work.values():
                process.stop()
            raise
    if is_stopping:
        raise Interrupted("the runs at work have written checkpoints")


def threads_per_run(jobs: int) -> int:
    """Returns the number of CPU threads of each run, if so many share this machine."""
    return max(1, torch.get_num_threads() // jobs)


def _shares(jobs: int) -> list[dict[str, str]]:
    """Returns the environments of runs that share the CPU threads and the GPUs of this machine."""
    threads = dict.fromkeys(_THREADS, str(threads_per_run(jobs)))
    visible = os.environ.get(_GPUS) or ",".join(map(str, range(torch.cuda.device_count())))
    gpus = visible.split(",")
    if len(gpus) == 1:
        return [threads] * jobs
    return [{**threads, _GPUS: gpus[job % len(gpus)]} for job in range(jobs)]


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
        raise ValueError(
            f'--ray-address {address} needs Ray: pip install "headwise[cluster]"'
        ) from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"--ray-address is {address}, where no cluster could be used, expected "
            f"ray://HOST:PORT, or auto for the one of this machine, with the same versions of Ray "
            f"and Python: {error}"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


class _RunTask:
    """A run that a task of Ray trains on some machine; it has the methods of `RunProcess`."""

    def __init__(self, ray: Any, arguments: list[str], folder: Path) -> None:
        threads = os.environ.get("OMP_NUM_THREADS") or "1"
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        # A run whose machine is lost resumes elsewhere.
        options = {"num_cpus": int(threads), "num_gpus": gpus, "max_retries": 3}
        train = ray.remote(**options)(train_on_worker)
        share = dict.fromkeys(_THREADS, threads)
        self._task = train.remote(arguments, folder.resolve(), Path.cwd(), share)
        self._ray = ray

    def poll(self) -> str | None:
        if not self._ray.wait([self._task], timeout=0)[0]:
            return None
        try:
            return str(self._ray.get(self._task))
        except self._ray.exceptions.RayError as error:
            return str(error)

    def stop(self) -> None:
        self._ray.cancel(self._task)
