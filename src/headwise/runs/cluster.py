"""Trains the runs of a comparison on the machines of a Ray cluster, which share no folder.

An actor of Ray holds the CPUs or the GPU of a run on one of the machines. It starts the same
process for the run as `--jobs` does here, and answers when it is asked what is new: what the run
prints, how far it is, and files. The folder of the run here stays a copy of that there. So a run
whose machine is lost goes on from its last checkpoint on another one, and Ctrl-C and the next
command work as without a cluster.
"""

import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import mkdtemp
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rich.console import Console

from headwise.analysis.results import versions
from headwise.runs.locking import locked
from headwise.runs.running import (
    THREADS,
    Failure,
    PlannedRun,
    Process,
    check_shares_no_run,
    is_full,
)
from headwise.runs.sending import (
    MODULES,
    Pickled,
    Piece,
    SentRun,
    Whole,
    forget_half,
    modules,
    news,
    pieces,
    states,
    take,
    write,
)
from headwise.training.checkpoints import checkpoints
from headwise.training.progress import Printed

_STARTS = 4  # of a run whose workers are lost, without a new checkpoint between them
_SECONDS_BETWEEN = 2.0  # two looks at what is new in the folder of a run
_SECONDS_TO_CONNECT = 10.0


class _Ended(NamedTuple):
    """The process of a run has ended."""

    death: str  # what it died of


@contextmanager
def connected(address: str, console: Console) -> Iterator["Cluster"]:
    """While this context is open, runs can be trained on a cluster.

    Args:
        address: `ray://HOST:PORT`, of the cluster's head and its port for clients.
        console: on which the runs print.

    Raises:
        ValueError: no such address, no cluster there, or other versions than here.
    """
    try:
        import ray
    except ImportError:
        raise ValueError(
            f"--on is {address}, which needs Ray, expected it to be installed: "
            f'pip install "headwise[cluster]"'
        ) from None
    _check_address(address)
    for name in ("ray.client_builder", "ray.util.client.logsclient"):  # of no use to our users
        logging.getLogger(name).disabled = True
    try:
        ray.init(address, log_to_driver=False)
    except (RuntimeError, ConnectionError) as error:
        raise ValueError(
            f"--on is {address}, where no cluster could be used, expected one with the versions of "
            f"Ray and Python that this machine has: {error}"
        ) from error
    try:
        cluster = Cluster(ray, console.is_terminal)
        cluster.check(address)
        yield cluster
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    check_shares_no_run("--on", address)
    try:
        url = urlsplit(address)
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
    if host is None or port is None or url.scheme != "ray":
        raise ValueError(f"--on is {address!r}, expected ray://HOST:PORT, such as ray://head:10001")
    try:
        socket.create_connection((host, port), _SECONDS_TO_CONNECT).close()
    except OSError as error:
        raise ValueError(
            f"--on is {address}, where nothing answers ({error}), expected the head of a cluster, "
            f"as `ray start --head` starts it, and its port for clients"
        ) from None


class Cluster:
    """The machines of a cluster.

    Attributes:
        room: for so many runs at a time, each with a GPU if there are any, else with CPUs.
    """

    def __init__(self, ray: Any, is_terminal: bool) -> None:
        self.ray = ray
        self.threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
        self.nodes = {
            node["NodeID"]: node["Resources"]
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= self.threads
        }
        gpus = sum(int(has.get("GPU", 0)) for has in self.nodes.values())
        self.room = gpus or sum(int(has["CPU"]) // self.threads for has in self.nodes.values())
        self._actors = ray.remote(num_cpus=self.threads, num_gpus=min(gpus, 1))(_There)
        self._is_terminal = is_terminal

    def check(self, address: str) -> None:
        """Raises `ValueError` if no machine has room for a run, or one has other versions."""
        if not self.nodes:
            raise ValueError(
                f"--on is {address}, whose machines have fewer than {self.threads} CPUs each, "
                f"expected one with so many for a run: set OMP_NUM_THREADS to a smaller number"
            )
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        ours = {name: version for name, version in versions().items() if name != "python"}

        def look() -> tuple[str, dict[str, str]]:  # sent by its code: headwise may be missing there
            there = {each.metadata["Name"]: each.version for each in metadata.distributions()}
            return socket.gethostname(), {name: there.get(name, "missing") for name in ours}

        remote = self.ray.remote(num_cpus=0)(look)
        looks = [remote.options(scheduling_strategy=On(node, soft=False)) for node in self.nodes]
        for host, found in self.ray.get([each.remote() for each in looks]):
            for name, version in ours.items():
                if found[name].partition("+")[0] != version.partition("+")[0]:  # 2.13.0+cpu
                    raise ValueError(
                        f"--on is {address}, whose machine {host} has {name} {found[name]}, "
                        f"expected {version} as on this machine: install the same versions on all"
                    )

    def start(self, run: PlannedRun[Any], place: int) -> "_RunThere":
        """Trains a run on one of the machines when one is free; see `running.Start`."""
        return _RunThere(self, run)

    def begin(self, run: PlannedRun[Any]) -> tuple[Any, Any]:
        """Returns the actor of a run, and a reference to its answer that the run has begun."""
        files = [self.ray.put(piece) for piece in pieces(run.folder)]
        actor = self._actors.remote(run.folder.name, self.threads, self._is_terminal)
        own = list(modules(Path.cwd())) if run.recipe.own_modules() else []
        return actor, actor.begin.remote(Pickled.of(run), files, own)


class _RunThere:
    """A run on a machine of the cluster, followed from here; a `Worker`."""

    def __init__(self, cluster: Cluster, run: PlannedRun[Any]) -> None:
        self.cluster = cluster
        self.errors = cluster.ray.exceptions
        self.run = run
        self._stopping = self._at_once = False
        self._death = ""

    def stop(self, *, at_once: bool = False) -> None:
        self._stopping, self._at_once = True, at_once

    def death(self) -> str:
        return self._death

    def messages(self) -> Iterator[object]:
        try:
            with locked(self.run.folder):
                yield from self._until_it_ends()
        except Exception as error:
            yield error if is_full(error) else Failure.of(error)

    def _until_it_ends(self) -> Iterator[object]:
        """Starts the run anew whenever its worker is lost, though not for ever."""
        left = _STARTS
        while left and not self._stopping:
            before = checkpoints(self.run.folder)
            self._death = ""
            try:
                yield from self._on_one_machine()
            except self.errors.RayTaskError as error:  # of the actor's own
                raise error.cause from None
            except self.errors.RayError as error:
                self._death = f"its worker was lost: {str(error).splitlines()[0]}"
            if not self._death:
                return
            now = checkpoints(self.run.folder)
            left = left - 1 if now == before else _STARTS - 1
            if left and not self._stopping:
                start = f"goes on from {now[-1].name}" if now else "starts anew"
                said = f"{self.run.label}: {self._death}; it {start} on another"
                yield Printed((said,), {"style": "yellow", "highlight": False, "soft_wrap": True})

    def _on_one_machine(self) -> Iterator[object]:
        forget_half(self.run.folder)  # from a worker that was lost
        actor, begun = self.cluster.begin(self.run)
        try:
            has_begun = self._answer(begun, may_leave=True)
            while has_begun and not self._at_once:
                for message in self._answer(actor.news.remote(self._stopping)) or ():
                    if isinstance(message, _Ended):
                        self._death = message.death
                        return
                    if isinstance(message, (Piece, Whole)):
                        take(message, self.run.folder)
                    else:
                        yield message
        finally:
            self.cluster.ray.kill(actor)

    def _answer(self, reference: Any, *, may_leave: bool = False) -> Any:
        """Waits for an answer; returns None if it is to be waited for no more."""
        while not (self._at_once or (may_leave and self._stopping)):
            try:
                return self.cluster.ray.get(reference, timeout=1)
            except self.errors.GetTimeoutError:
                pass
        return None


class _There:
    """The actor: what there is of a run on the machine that trains it."""

    def __init__(self, name: str, threads: int, is_terminal: bool) -> None:
        self.folder = Path(mkdtemp(prefix="headwise-")) / name
        self.threads = threads
        self.is_terminal = is_terminal
        self._said: SimpleQueue[object] = SimpleQueue()
        self._files: Iterator[object] = iter(())
        self._looked = time.monotonic()
        self._is_stopping = False

    def begin(
        self,
        run: Pickled,
        files: list[Any],
        own: list[Piece],
    ) -> bool:
        """Starts the process of a run, which goes on from the files that it has elsewhere.

        Args:
            run: the run.
            files: references to pieces of the files in its folder.
            own: the modules that the recipe names.
        """
        import ray

        self.folder.mkdir()
        write(map(ray.get, files), self.folder)
        self._known = states(self.folder)
        write(own, self.folder.parent / MODULES)
        environment = dict.fromkeys(THREADS, str(self.threads))
        sent_run = SentRun(run, self.folder)
        self._process = Process(sent_run, self.threads, environment, self.is_terminal)
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()
        return True

    def _listen(self) -> None:
        for message in self._process.messages():
            self._said.put(message)

    def news(self, is_stopping: bool) -> list[object]:
        """Returns what is new since the last call; waits up to a second for it."""
        if is_stopping and not self._is_stopping:
            self._process.stop()
        self._is_stopping = is_stopping
        has_ended = not self._listener.is_alive()
        found = []
        try:
            found.append(self._said.get(timeout=0 if has_ended else 1))
            while True:
                found.append(self._said.get_nowait())
        except Empty:
            pass
        piece = next(self._files, None)
        if piece is None and (has_ended or time.monotonic() - self._looked > _SECONDS_BETWEEN):
            self._files = news(self.folder, self._known)
            piece = next(self._files, None)
            self._looked = time.monotonic()
        if piece is not None:
            found.append(piece)
        elif has_ended:
            shutil.rmtree(self.folder.parent, ignore_errors=True)
            found.append(_Ended(self._process.death()))
        return found
