"""Trains the runs of a comparison, one after the other or side by side.

Side by side, a process serves one run. One that is killed, by the system when memory runs out for
instance, takes no other run with it, as it would in a pool of processes, and a GPU's memory is free
when its run is over. A thread of the main process starts each and follows it.

The main process draws, since only one can: a run sends what it prints and how far it is. Its result
is in its folder. Ctrl-C reaches the main process alone, which has the others stop by SIGTERM; each
then writes a checkpoint, as a run in the main process does. They also stop when that has died, of
`kill -9` or since memory has run out.

A run on another machine is followed in the same way, see `Worker` and `headwise.runs.cluster`.
"""

import errno
import os
import signal
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from rich.console import Console
from torch.multiprocessing import get_context

from headwise.analysis.results import RunResult, Tries
from headwise.recipes.recipe import Recipe
from headwise.runs.folder import launched_processes
from headwise.runs.locking import LockedError, locked
from headwise.runs.preparing import check_folder, check_start
from headwise.tasks.task import Task
from headwise.training.interrupted import Interrupted
from headwise.training.progress import Position, Printed, Relay, RunBars, silence_libraries

# Libraries read them when they are loaded; the last is for tokenizers.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_GPUS = "CUDA_VISIBLE_DEVICES"
# Within which a run whose main process has died ends its step and writes its checkpoint.
_SECONDS_TO_STOP = 300.0
_one_at_a_time = threading.Lock()  # the environment is that of all threads

Runs = dict[str, list[RunResult]]  # by system, a run for each seed
Result = TypeVar("Result")


@dataclass(frozen=True)
class PlannedRun(ABC, Generic[Result]):
    """A run before it is trained, of a system or of one of its tries."""

    recipe: Recipe  # of the run, with its seed
    system: str  # name of the system
    folder: Path  # of the run
    task: Task  # the data
    label: str  # what bars and messages call the run

    @abstractmethod
    def train(self, console: Console) -> Result:
        """Trains the run in its folder, from wherever an earlier start got to.

        Raises:
            FolderError: the folder is that of another run.
            Interrupted: Ctrl-C came; the next call goes on.
        """

    @abstractmethod
    def finished(self, console: Console) -> Result | None:
        """Returns the result that the folder has, or None while the run is not finished.

        What is damaged is said, and made again.
        """

    def make(self, console: Console) -> Result:
        """Trains the run in its folder, which is locked against other processes."""
        for module in self.recipe.own_modules():  # the process that has sent the run has them
            import_module(module)
        with locked(self.folder):
            return self.train(console)

    def result(self, console: Console) -> Result | None:
        """Returns the result of the run, or None while it is not finished.

        What a process that was killed has left is removed. A run that another process has at work
        is not finished, whatever stands in its folder.
        """
        held = locked(self.folder) if self.folder.is_dir() else nullcontext()
        try:
            with held:
                return self.finished(console)
        except LockedError:  # to be said when it is the run's turn
            if launched_processes() > 1:
                raise  # the other processes do not know of it
            return None

    def warn(self, console: Console, said: str) -> None:
        """Prints what was found in the folder and is mended."""
        said = f"{self.label}: {said}"
        console.print(said, style="yellow", highlight=False, markup=False, soft_wrap=True)


class Failure(NamedTuple):
    """Why a run failed."""

    reason: str  # in a line or a few
    traceback: str = ""  # empty if the reason says all, as of bad input and of a killed process

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Why a run failed that an exception has ended."""
        if isinstance(error, (ValueError, OSError)):  # says how to mend it
            return cls(str(error))
        reason = "".join(traceback.format_exception_only(error)).strip()
        return cls(reason, "".join(traceback.format_exception(error)))


class RunsFailed(Exception):
    """Some runs of a comparison failed; those that could be finished are.

    Attributes:
        failures: label of a run to why it failed.
    """

    def __init__(self, failures: dict[str, Failure], planned: int) -> None:
        self.failures = failures
        reasons = "".join(f"\n  {label}: {f.reason}" for label, f in failures.items())
        others = "; the others are finished" if len(failures) < planned else ""
        super().__init__(f"{len(failures)} of {planned} runs failed{others}:{reasons}")


# Why a run has not finished, as its process says: an error, a full disk, or where it stopped.
Said = Failure | OSError | str
Ended = Callable[[PlannedRun[Result], Result | Failure], None]  # called when a run has ended


class Worker(Protocol):
    """Trains one run, in a process of this machine or of another."""

    def messages(self) -> Iterator[object]:
        """Yields what the run prints, where it is, and why it has not finished, until it ends."""

    def stop(self, *, at_once: bool = False) -> None:
        """Has the run stop, with a checkpoint or at once; does not wait for its end."""

    def death(self) -> str:
        """Returns what the process of a run that has ended died of; empty if it did not."""


# Starts a run, which is told its place among those that are at work.
Start = Callable[[PlannedRun[Any], int], Worker]


class Experiment(NamedTuple):
    """What is to be compared on one data set, and where."""

    folder: Path
    task: Task
    recipes: dict[str, Recipe]  # by system
    matched: dict[str, str]  # what --match chose for them, in words
    tries: Mapping[str, Tries]  # what --tune tried and chose for them


def train_runs(
    planned: Sequence[PlannedRun[Result]],
    console: Console,
    *,
    jobs: int = 1,
    start: Start | None = None,
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
        start: starts a run elsewhere, see `headwise.runs.cluster`.
        after_each: called whenever a run has ended, with the results so far in the order of
            `planned`: None for a run that is not finished.

    Returns:
        The results, in the order of `planned`.

    Raises:
        FolderError: a folder is that of another run, or of one that was started from other weights;
            nothing has been trained.
        Interrupted: Ctrl-C came; the next call goes on with all runs that were at work.
        RunsFailed: some runs failed; the next call tries them again.
        OSError: the disk is full.
    """
    check_jobs(jobs)
    for run in planned:
        check_folder(run.folder, run.recipe)
        check_start(run.folder, run.recipe)
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
    if jobs == 1 and start is None:
        _train_one_by_one(waiting, console, ended)
    elif waiting:
        jobs = min(jobs, len(planned))
        start = start or _starting_here(jobs, console)
        _train_side_by_side(waiting, jobs, start, console, ended)
    if failures:
        raise RunsFailed(failures, len(planned))
    return [result for result in results if result is not None]


def is_full(error: Exception) -> bool:
    """Whether an error says that there is no space left on the disk, or no quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def check_jobs(jobs: int) -> None:
    """Raises `ValueError` if so many runs cannot be trained at a time."""
    if jobs < 1:
        raise ValueError(f"--jobs is {jobs}, expected a whole number from 1")
    if jobs > 1:
        check_shares_no_run("--jobs", jobs)


def check_shares_no_run(option: str, value: object) -> None:
    """Raises `ValueError`, which names the option, if several processes share every run."""
    if (processes := launched_processes()) > 1:
        raise ValueError(
            f"{option} is {value} within {processes} processes that share every run, expected one "
            f"of the two: leave {option} out, or start headwise without torchrun"
        )


def _train_one_by_one(
    planned: Sequence[PlannedRun[Any]], console: Console, ended: Ended[Any]
) -> None:
    for run in planned:
        try:
            result = run.make(console)
        except Interrupted:
            raise
        except Exception as error:
            # With a full disk the others would find no space either; several processes that share
            # a run would wait for this one for ever.
            if is_full(error) or launched_processes() > 1:
                raise
            result = Failure.of(error)
        ended(run, result)


def _train_side_by_side(
    planned: Sequence[PlannedRun[Any]],
    jobs: int,
    start: Start,
    console: Console,
    ended: Ended[Any],
) -> None:
    """Trains runs, `jobs` at a time."""
    with (
        RunBars(console, transient=True) as bars,
        ThreadPoolExecutor(jobs, initializer=_hold_ctrl_c_back) as pool,
    ):
        workers = _Workers(jobs, start, console, bars)
        with workers.stopped_by_signals():
            runs = {pool.submit(workers.train, run): run for run in planned}
            for future in as_completed(runs):
                result = workers.result(runs[future], *future.result())
                if result is not None:
                    ended(runs[future], result)
    if workers.stopping:
        raise Interrupted(", ".join(workers.stops) or "stopped")


class Process:
    """A process of this machine that trains one run; a `Worker`.

    Args:
        run: has the method `make` of a `PlannedRun`, and is sent with its data: to read and encode
            them would take up to 10 s.
        threads: of the CPU.
        environment: what the process has to know before it loads torch.
        is_terminal: whether what it prints is shown in a terminal.
    """

    def __init__(
        self, run: object, threads: int, environment: Mapping[str, str], is_terminal: bool
    ) -> None:
        context = get_context("spawn")
        self._run = run
        self._messages, theirs = context.Pipe()
        self._process = context.Process(target=_train, args=(theirs, threads, is_terminal))
        with _one_at_a_time, _environment(environment):
            self._process.start()
        theirs.close()  # so that the messages end when the process does

    def messages(self) -> Iterator[object]:
        with self._messages:
            with suppress(OSError):  # it has died, and may have said why
                self._messages.send(self._run)
            with suppress(EOFError, OSError):  # its end, also in the middle of a message
                while True:
                    yield self._messages.recv()
        self._process.join()

    def stop(self, *, at_once: bool = False) -> None:
        self._process.kill() if at_once else self._process.terminate()

    def death(self) -> str:
        return _death(self._process.exitcode or 0)


def _starting_here(jobs: int, console: Console) -> Start:
    """Starts runs in processes of this machine, `jobs` at a time."""
    threads = max(1, torch.get_num_threads() // jobs)
    return lambda run, place: Process(
        run, threads, _for_process(place, threads), console.is_terminal
    )


class _Workers:
    """The workers of the runs that are at work.

    Attributes:
        stopping: whether those that are at work are to stop, and no other is started.
        stops: where runs have stopped, in words.
    """

    def __init__(self, jobs: int, start: Start, console: Console, bars: RunBars) -> None:
        self.console = console
        self.bars = bars
        self.start = start
        self.stopping = False
        self.stops: list[str] = []
        self._free = list(range(jobs))  # the places for runs
        self._at_work: list[Worker] = []

    def train(self, run: PlannedRun[Any]) -> tuple[Said, str]:
        """Has a worker train a run; called in a thread for it, which shows what the worker sends.

        Returns why the run has not finished, and what its process died of; empty for neither.
        """
        said: Said = ""
        if self.stopping:
            return said, ""
        bar = self.bars.begin(run.label, None, figures="starting")
        place = self._free.pop()
        worker = self.start(run, place)
        self._at_work.append(worker)
        if self.stopping:  # the signal came while it was being started
            worker.stop()
        for message in worker.messages():
            if isinstance(message, Printed):
                self.console.print(*message.objects, **message.options)
            elif isinstance(message, Position):
                self.bars.show(bar, message)
            elif isinstance(message, (Failure, OSError, str)):
                said = message
        self._at_work.remove(worker)
        self._free.append(place)
        self.bars.remove_task(bar)
        return said, worker.death()

    def result(self, run: PlannedRun[Any], said: Said, death: str) -> Any:
        """What became of a run whose process has ended; None if it was stopped as asked."""
        if isinstance(said, OSError):
            raise said
        if isinstance(said, Failure):
            return said  # what stands in its folder may be of another process that has it
        if (result := run.result(self.console)) is not None:
            return result
        if self.stopping:
            self.stops += [f"{run.label} {said}"] if said else []
            return None
        why = death or said or "SIGTERM"
        return Failure(f"its process ended before the run did: {why}")

    def stop(self, *, at_once: bool = False) -> None:
        """Has all runs stop: with a checkpoint, or at once."""
        self.stopping = True
        for worker in list(self._at_work):
            worker.stop(at_once=at_once)

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM has all runs stop, the second ends them at once."""
        before: dict[int, Any] = {}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def stop(number: int, frame: FrameType | None) -> None:
            restore()
            self.stop()

        if threading.current_thread() is threading.main_thread():  # others may set no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # a shell does that for `... &`
                    before[number] = signal.signal(number, stop)
        try:
            yield
        except BaseException as error:
            self.stop(at_once=isinstance(error, KeyboardInterrupt))
            raise
        finally:
            restore()


def _death(code: int) -> str:
    if code == -signal.SIGKILL:
        return "SIGKILL, as when memory runs out"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}" if code else ""


def _for_process(slot: int, threads: int) -> dict[str, str]:
    """What a process has to know before it loads torch: its CPU threads and its GPU."""
    changes = dict.fromkeys(THREADS, str(threads))
    count = torch.cuda.device_count()
    if count > 1:
        visible = os.environ.get(_GPUS) or ",".join(map(str, range(count)))
        changes[_GPUS] = visible.split(",")[slot % count].strip()
    return changes


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _hold_ctrl_c_back() -> None:
    """Holds Ctrl-C back from this thread and the processes that it starts, which take it up."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _train(messages: Connection, threads: int, is_terminal: bool) -> None:
    """Trains one run, which it is sent, in the process that was started for it."""
    os.setpgid(0, 0)  # the terminal's Ctrl-C goes to the group of the main process

    def send(message: object) -> None:
        with suppress(ConnectionError):  # the main process has died, and this one is stopping
            messages.send(message)

    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        threading.Thread(target=_stop_when_orphaned, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        silence_libraries()
        torch.set_num_threads(threads)
        messages.recv().make(Relay(send, is_terminal))
    except Interrupted as stop:
        send(str(stop))
    except KeyboardInterrupt:
        pass  # it was stopped when it was not training, and goes on from there
    except Exception as error:
        send(error if is_full(error) else Failure.of(error))


def _stop_when_orphaned() -> None:
    """Has this process stop when the one that started it has died."""
    main = parent_process()
    assert main is not None
    wait([main.sentinel])  # a pipe, which the system closes however the process has died
    while True:  # Python prints and forgets what a signal raises while an object is deleted
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_SECONDS_TO_STOP)
