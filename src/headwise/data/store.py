"""What is made of data once, and read by every run: folders in a cache.

A folder is found by what its content is made of: the files of a corpus, its settings, and the code
that reads it. It is written under another name and renamed, so that it is whole or not there. Of
several processes that need it at once one makes it, and the others wait.

The cache is `HEADWISE_CACHE`, or `headwise` in the user's folder of caches (`XDG_CACHE_HOME`, by
default `~/.cache`). It may be deleted whenever nothing runs: what is missing is made again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from filelock import FileLock

from headwise.files import written_whole

_SIZES = "sizes.json"  # of the files, by which one that was cut is noticed


def stored(kind: str, made_of: Iterable[object], make: Callable[[Path], None]) -> Path:
    """Returns a folder of the cache; makes it first if it is not there, or not whole.

    Args:
        kind: what it holds, the name of a folder in the cache.
        made_of: all that its content depends on, beside the code of `headwise.data`.
        make: writes the files into an empty folder, whose path it is given.

    Raises:
        ValueError: nothing can be written into the cache.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     os.environ["HEADWISE_CACHE"] = folder
    ...     made = stored("greetings", ["en"], lambda new: print((new / "a").write_text("hello")))
    ...     again = stored("greetings", ["en"], lambda new: print("is not called"))
    ...     del os.environ["HEADWISE_CACHE"]
    5
    """
    key = hashlib.sha256(repr((_code(), kind, *made_of)).encode("utf-8", "surrogatepass"))
    return kept(f"{kind}/{key.hexdigest()[:32]}", make)


def kept(place: str, make: Callable[[Path], None]) -> Path:
    """Returns the folder at a place in the cache; makes it first if it is not there, see `stored`.

    A run on another machine names by its place what was stored here.
    """
    folder = cache_folder() / place
    if _is_whole(folder):
        return folder
    with _locked(folder):
        if not _is_whole(folder):
            with written_whole(folder) as partial:
                partial.mkdir()
                make(partial)
                sizes = {
                    file.relative_to(partial).as_posix(): file.stat().st_size
                    for file in partial.rglob("*")
                    if file.is_file() and file.name != _SIZES
                }
                (partial / _SIZES).write_text(json.dumps(sizes), encoding="utf-8")
    return folder


def cache_folder() -> Path:
    """Returns the folder of the cache."""
    if given := os.environ.get("HEADWISE_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headwise"


def file_identity(path: Path) -> str:
    """Returns what tells a file from others, and from what stood at its path before.

    Nothing is read of the file: these are its path, its size and the time of its last change. Of a
    folder they are those of all files in it, which takes 1.2 s for 100,000 of them.
    """
    path = path.expanduser().absolute()
    if path.is_dir():
        digest = hashlib.sha256()
        for folder, below, names in os.walk(path):
            below.sort()
            for name in sorted(names):
                digest.update(os.fsencode(_identity(Path(folder, name))))
        return f"{path} {digest.hexdigest()}"
    return _identity(path)


def _identity(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return f"{path} missing"
    return f"{path} {found.st_size} {found.st_mtime_ns}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """While this context is open, no other process makes the folder."""
    lock = FileLock(folder.with_suffix(".lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise ValueError(
            f"the cache of prepared data is {cache_folder()}, expected a folder that can be "
            f"written ({error.strerror}); name another one by the environment variable "
            f"HEADWISE_CACHE"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _is_whole(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / _SIZES).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


@cache
def _code() -> str:
    """Returns a hash of the code that makes what is stored."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
