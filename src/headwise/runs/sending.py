"""Sends a run to another machine, and its files to and fro, where no folder is shared.

Data are not sent: the other machine reads them itself, from the same paths or the same dataset of
the hub, and it is checked that they are those that are here. Files of the run go in pieces, so that
a large one is never in memory as a whole.
"""

import os
import pickle
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.console import Console

from headwise.files import partial_path, remove, written_whole
from headwise.recipes.recipe import task_class
from headwise.runs.running import PlannedRun

MODULES = "modules"  # beside the folder of a run on another machine
_PIECE = 2**24  # bytes


class Pickled(NamedTuple):
    """A run on its way to another machine, without its data."""

    run: bytes  # with the recipe of its task in place of the task
    data: str  # what tells its data from others, see `Task.digest`

    @classmethod
    def of(cls, run: PlannedRun[Any]) -> "Pickled":
        sent: Any = replace(run, task=run.task.recipe)
        return cls(pickle.dumps(sent), run.task.digest())


class SentRun(NamedTuple):
    """A run on another machine, where it is trained in another folder."""

    pickled: Pickled
    folder: Path

    def make(self, console: Console) -> object:
        """Trains the run, see `PlannedRun`.

        Raises:
            ValueError: the data cannot be read on this machine, or are others there.
        """
        sys.path.append(str(self.folder.parent / MODULES))  # at the end, as of this folder here
        run = pickle.loads(self.pickled.run)
        task = task_class(run.task.task)(run.task)
        if task.digest() != self.pickled.data:
            raise ValueError(
                f"on {gethostname()} the data are others than where the runs were started, "
                f"expected the same on all machines: give all the same files, and the same "
                f"versions of headwise and its libraries"
            )
        return replace(run, folder=self.folder, task=task).make(console)


class Piece(NamedTuple):
    """A piece of a file; those of one file follow each other."""

    path: str  # in the folder
    content: bytes


class Whole(NamedTuple):
    """All has been sent that was new in a folder, which has entries of these names."""

    names: list[str]


def pieces(folder: Path) -> Iterator[Piece]:
    """Yields what is in a folder, but for locks and what is half written."""
    for path in sorted(path for entry in folder.glob("[!.]*") for path in _within(entry)):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            with path.open("rb") as file:
                yield Piece(name, file.read(_PIECE))
                yield from (Piece(name, more) for more in iter(lambda: file.read(_PIECE), b""))


def modules(folder: Path) -> Iterator[Piece]:
    """Yields the modules and packages in a folder."""
    packages = [init.parent for init in folder.glob("[!.]*/__init__.py")]
    files = [*folder.glob("*.py"), *(path for each in packages for path in each.rglob("*.py"))]
    for path in sorted(files):
        yield Piece(path.relative_to(folder).as_posix(), path.read_bytes())


def write(sent: Iterable[Piece], folder: Path) -> None:
    """Writes what `pieces` has yielded into a folder that has none of it."""
    for piece in sent:
        path = folder / piece.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(piece.content)


def states(folder: Path) -> dict[str, object]:
    """Returns what tells whether the entries of a folder have changed, by their names."""
    return {
        entry.name: [
            (str(path), found.st_size, found.st_mtime_ns)
            for path in _within(entry)
            if (found := path.stat())
        ]
        for entry in folder.glob("[!.]*")
    }


def news(folder: Path, known: dict[str, object]) -> Iterator[Piece | Whole]:
    """Yields the entries of a folder whose states are not as they are known; nothing if all are.

    What is there now is sent, also if the run removes it while it is being sent. At the end their
    states are known.
    """
    with TemporaryDirectory(dir=folder.parent) as copy:
        try:
            now = states(folder)
            for name in now:
                if now[name] != known.get(name):
                    _link(folder / name, Path(copy, name))
        except (FileNotFoundError, shutil.Error):
            return  # the run has just removed something; the next look finds all
        if now != known:
            yield from pieces(Path(copy))
            known.clear()
            known.update(now)
            yield Whole(list(now))


def take(sent: Piece | Whole, folder: Path) -> None:
    """Makes a folder a copy of the one whose `news` are sent; nothing half written shows in it."""
    if isinstance(sent, Piece):
        write([sent], _incoming(folder))
        return
    for path in sorted(_incoming(folder).glob("*")):
        with written_whole(folder / path.name) as new:
            path.rename(new)
    for path in folder.glob("[!.]*"):
        if path.name not in sent.names:
            remove(path)
    forget_half(folder)


def forget_half(folder: Path) -> None:
    """Forgets news of which only a part has come."""
    remove(_incoming(folder))


def _incoming(folder: Path) -> Path:
    return partial_path(folder / "incoming")


def _within(entry: Path) -> list[Path]:
    return sorted([entry, *entry.rglob("*")])


def _link(source: Path, target: Path) -> None:
    """Gives a file, or the files of a folder, another name: none is changed once it is written."""
    if source.is_dir():
        shutil.copytree(source, target, copy_function=os.link)
    else:
        os.link(source, target)
