"""Trains several runs at a time, each in a process of its own.

A process serves one run. One that is killed, by the system when memory runs out for instance, takes
no other run with it, as it would in a pool, and a GPU's memory is free when its run is over.

The main process draws, since only one can: a run sends what it prints and how far it is. Its result
is in its folder. Ctrl-C reaches the main process alone, which has the others stop by SIGTERM; each
then writes a checkpoint, as a run in the main process does. They also stop when that has died, of
`kill -9` or since memory has run out.
"""

import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.progress import TaskID
from torch.multiprocessing import get_context

from headwise.files import NoSpaceError, no_space_told
from headwise.recipe.settings import Recipe
from headwise.runs.locking import locked
from headwise.runs.planned import Ended, Failure, PlannedRun
from headwise.tasks.task import Task
from headwise.training.interrupted import Interrupted
from headwise.training.progress import Position, Printed, Relay, RunBars, silence_libraries

# Libraries read them when they are loaded; the last is for tokenizers.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_GPUS = "CUDA_VISIBLE_DEVICES"
# Within which a run whose main process has died ends its step and writes its checkpoint.
_SECONDS_TO_STOP = 300.0


def train_side_by_side(
    planned: Sequence[PlannedRun[Any]], jobs: int, console: Console, ended: Ended[Any]
) -> None:
    """Trains runs, `jobs` at a time.

    Args:
        planned: the runs, none of them finished.
        jobs: how many at a time.
        console: for bars and notes.
        ended: called in this process when a run has ended, with its result or why it failed.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came, and all runs that were at work have stopped.
        NoSpaceError: the disk is full, and all runs that were at work have stopped.
    """
    with (
        TemporaryDirectory(prefix="headwise-") as scratch,
        RunBars(console, transient=True) as bars,
    ):
        _Processes(jobs, console, bars, Path(scratch)).train(planned, ended)


@dataclass(eq=False)
class _Worker:
    """A process and its run.

    Attributes:
        run: what it trains.
        slot: which of the places for `jobs` processes it has.
        process: that trains it.
        messages: what the run prints, how far it is, and at the end why it has not finished.
        bar: of the run.
        end: why the run has not finished: an error, a full disk, or where it stopped.
    """

    run: PlannedRun[Any]
    slot: int
    process: BaseProcess
    messages: Connection
    bar: TaskID
    end: Failure | NoSpaceError | str = ""

    def death(self) -> str:
        """Waits for the end of the process; returns what it died of, empty if it did not."""
        self.process.join()
        code = self.process.exitcode or 0
        if code == -signal.SIGKILL:
            return "SIGKILL, as when memory runs out"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}" if code else ""


class _Processes:
    """The main process's side."""

    def __init__(self, jobs: int, console: Console, bars: RunBars, scratch: Path) -> None:
        self.jobs = jobs
        self.console = console
        self.bars = bars
        self.scratch = scratch
        self.workers: list[_Worker] = []
        self.stopping = False
        self.stops: list[str] = []

    def train(self, planned: Sequence[PlannedRun[Any]], ended: Ended[Any]) -> None:
        waiting, free = list(planned), list(range(self.jobs))
        with self._stop_on_interrupt():
            try:
                self._start_as_many_as_fit(waiting, free)
                while self.workers:
                    gone = self._read_messages()
                    results = [(worker.run, self._result(worker)) for worker in gone]
                    free += [worker.slot for worker in gone]
                    self._start_as_many_as_fit(waiting, free)
                    for run, result in results:
                        if result is not None:
                            ended(run, result)
            except BaseException as error:
                self._give_up(at_once=isinstance(error, KeyboardInterrupt))
                raise
        if self.stopping:
            raise Interrupted(", ".join(self.stops) or "stopped")

    def _start_as_many_as_fit(self, waiting: list[PlannedRun[Any]], free: list[int]) -> None:
        while waiting and free and not self.stopping:
            self._start(waiting.pop(0), free.pop(0))

    def _start(self, run: PlannedRun[Any], slot: int) -> None:
        threads = max(1, torch.get_num_threads() // self.jobs)
        context = get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        arguments = (
            *(theirs, self._written(run)),
            *(run.train, run.recipe, run.system, run.folder, run.label),
            *(threads, self.console.is_terminal),
        )
        with _environment(_for_process(slot, threads)), _ctrl_c_held_back():
            process = context.Process(target=_train, args=arguments)
            process.start()
        theirs.close()  # so that the messages end when the process does
        bar = self.bars.begin(run.label, None, figures="starting")
        self.workers.append(_Worker(run, slot, process, ours, bar))
        if self.stopping:  # the signal came while it was being started
            process.terminate()

    def _written(self, run: PlannedRun[Any]) -> Path:
        """A file with the run's data. To read and encode them again would take up to 10 s."""
        path = self.scratch / f"{id(run.task)}.pickle"
        if not path.is_file():
            with no_space_told(path):
                path.write_bytes(pickle.dumps(run.task))
        return path

    def _read_messages(self) -> list[_Worker]:
        """Waits for messages, shows them, and returns the workers whose processes have ended."""
        gone = []
        ready = wait([worker.messages for worker in self.workers])
        for worker in [worker for worker in self.workers if worker.messages in ready]:
            try:
                self._show(worker, worker.messages.recv())
            except (EOFError, OSError):  # also in the middle of a message
                self.bars.remove_task(worker.bar)
                self.workers.remove(worker)
                gone.append(worker)
        return gone

    def _show(
        self, worker: _Worker, message: Printed | Position | Failure | NoSpaceError | str
    ) -> None:
        if isinstance(message, Printed):
            self.console.print(*message.objects, **message.options)
        elif isinstance(message, Position):
            self.bars.show(worker.bar, message)
        else:
            worker.end = message

    def _result(self, worker: _Worker) -> Any:
        """What became of a run whose process has ended; None if it was stopped as asked."""
        death = worker.death()
        worker.messages.close()
        if isinstance(worker.end, NoSpaceError):
            raise worker.end
        if isinstance(worker.end, Failure):
            return worker.end  # what stands in its folder may be of another process that has it
        if (result := worker.run.result(self.console)) is not None:
            return result
        if self.stopping:
            self.stops += [f"{worker.run.label} {worker.end}"] if worker.end else []
            return None
        return Failure(f"its process ended before the run did: {death or worker.end or 'SIGTERM'}")

    def _give_up(self, *, at_once: bool) -> None:
        for worker in self.workers:
            worker.messages.close()  # or a process might wait for its messages to be read
            worker.process.kill() if at_once else worker.process.terminate()
        for worker in self.workers:
            worker.process.join()

    @contextmanager
    def _stop_on_interrupt(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM has all runs stop, the second ends them at once."""
        before: dict[int, Any] = {}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def stop(number: int, frame: FrameType | None) -> None:
            self.stopping = True
            restore()
            for worker in self.workers:
                worker.process.terminate()

        if threading.current_thread() is threading.main_thread():  # others may set no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # a shell does that for `... &`
                    before[number] = signal.signal(number, stop)
        try:
            yield
        finally:
            restore()


def _for_process(slot: int, threads: int) -> dict[str, str]:
    """What a process has to know before it loads torch: its CPU threads and its GPU."""
    changes = dict.fromkeys(_THREADS, str(threads))
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


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Holds Ctrl-C back, also from a process that is started here, which is to take it up again."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _train(
    messages: Connection,
    task: Path,
    train: Callable[[Recipe, str, Path, Task, Console, str], object],
    recipe: Recipe,
    system: str,
    folder: Path,
    label: str,
    threads: int,
    is_terminal: bool,
) -> None:
    """Trains one run in the process that was started for it."""
    os.setpgid(0, 0)  # the terminal's Ctrl-C goes to the group of the main process

    def send(message: object) -> None:
        with suppress(BrokenPipeError):  # the main process has died, and this one is stopping
            messages.send(message)

    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        threading.Thread(target=_stop_when_orphaned, args=(task.parent,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        silence_libraries()
        torch.set_num_threads(threads)
        console = Relay(send, is_terminal)
        with locked(folder):
            train(recipe, system, folder, pickle.loads(task.read_bytes()), console, label)
    except Interrupted as stop:
        send(str(stop))
    except KeyboardInterrupt:
        pass  # it was stopped when it was not training, and goes on from there
    except NoSpaceError as error:
        send(error)
    except Exception as error:
        send(Failure.of(error))


def _stop_when_orphaned(scratch: Path) -> None:
    """Has this process stop when the one that started it has died, and removes what that left."""
    main = parent_process()
    assert main is not None
    wait([main.sentinel])  # a pipe, which the system closes however the process has died
    shutil.rmtree(scratch, ignore_errors=True)
    while True:  # Python prints and forgets what a signal raises while an object is deleted
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_SECONDS_TO_STOP)
