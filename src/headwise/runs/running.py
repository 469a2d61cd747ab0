"""Trains the runs of a comparison, one after the other or side by side."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from headwise.files import NoSpaceError
from headwise.runs.folders import check_folder, launched_processes
from headwise.runs.locking import locked
from headwise.runs.planned import Ended, Failure, PlannedRun, Result, RunsFailed
from headwise.runs.side_by_side import train_side_by_side
from headwise.training.interrupted import Interrupted


def train_runs(
    planned: Sequence[PlannedRun[Result]],
    console: Console,
    *,
    jobs: int = 1,
    after_each: Callable[[list[Result | None]], None] = lambda results: None,
) -> list[Result]:
    """Trains runs; what their folders already hold is not trained again.

    A run that fails leaves the others alone, and so does one whose process is killed. A full disk
    ends them all.

    Args:
        planned: the runs.
        console: for bars and notes.
        jobs: how many runs to train at a time. More than one are trained in processes of their
            own, each with its share of the CPU threads and, of several GPUs, with one of them.
        after_each: called whenever a run has ended, with the results so far in the order of
            `planned`: None for a run that is not finished.

    Returns:
        The results, in the order of `planned`.

    Raises:
        FolderError: a folder is that of another run; nothing has been trained.
        Interrupted: Ctrl-C came; the next call goes on with all runs that were at work.
        RunsFailed: some runs failed; the next call tries them again.
        NoSpaceError: the disk is full.
    """
    check_jobs(jobs)
    for run in planned:
        check_folder(run.folder, run.recipe)
    results = [run.result(console) for run in planned]
    folders = [run.folder for run in planned]
    failures: dict[str, Failure] = {}

    def ended(run: PlannedRun[Result], result: Result | Failure) -> None:
        if isinstance(result, Failure):
            failures[run.label] = result
            said = f"{run.label} failed: {result.reason}\n{result.traceback}".rstrip()
            console.print(said, style="red", highlight=False, markup=False, soft_wrap=True)
        else:
            results[folders.index(run.folder)] = result
        after_each(results)

    waiting = [run for run, result in zip(planned, results, strict=True) if result is None]
    if jobs == 1:
        _train_one_by_one(waiting, console, ended)
    elif waiting:
        train_side_by_side(waiting, min(jobs, len(planned)), console, ended)
    if failures:
        raise RunsFailed(failures, len(planned))
    return [result for result in results if result is not None]


def check_jobs(jobs: int) -> None:
    """Raises `ValueError` if so many runs cannot be trained at a time."""
    if jobs < 1:
        raise ValueError(f"--jobs is {jobs}, expected a whole number from 1")
    if jobs > 1 and launched_processes() > 1:
        raise ValueError(
            f"--jobs is {jobs} within {launched_processes()} processes that share every run, "
            f"expected one of the two: leave --jobs out, or start headwise without torchrun"
        )


def _train_one_by_one(
    planned: Sequence[PlannedRun[Any]], console: Console, ended: Ended[Any]
) -> None:
    for run in planned:
        try:
            with locked(run.folder):
                result = run.train(run.recipe, run.system, run.folder, run.task, console, run.label)
        except (Interrupted, NoSpaceError):  # the others would find no space either
            raise
        except Exception as error:
            if launched_processes() > 1:
                raise  # the others wait for this process, and would wait for ever
            result = Failure.of(error)
        ended(run, result)
