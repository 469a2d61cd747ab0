"""Writes files and folders whole or not at all: under another name first, then renamed."""

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PARTIAL = ".partial-"  # before the name of what is being written
_REPLACED = ".replaced-"  # before the name of what has to make room for it
# A full file system, a quota, and a file larger than `ulimit -f` or the file system allows.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NoSpaceError(OSError):
    """A file could not be written, since there is no space for it; the message says where."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Writes a file or a folder so that `path` never holds an incomplete one.

    Its content is on the disk before it gets its name, so that it is whole after a power cut too.
    A folder makes room for another under a third name. If the process is killed before the other
    has its name, the folder gets its own back here, or by `clear_leftovers`.

    Args:
        path: the path of the file or folder, which is replaced if it exists. Its parent folder is
            created.

    Yields:
        An unused path in the same folder, at which the caller writes the file or makes the folder.
        At the end it is renamed to `path`. After an error it is removed, and `path` is unchanged.
        What was written for the user alone gets the usual permissions, those of the umask.

    Raises:
        NoSpaceError: the disk is full.
    """
    partial = partial_path(path)
    try:
        with no_space_told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _end_replacement(path)
            remove(partial)
            yield partial
            _give_usual_permissions(partial)
            _sync(partial)
            if partial.is_dir() and os.path.lexists(path):
                # A folder cannot be renamed to the name of another that has files.
                path.rename(_aside(path))
            partial.replace(path)
            _sync_folder(path.parent)
    finally:
        _end_replacement(path)
        remove(partial)


@contextmanager
def no_space_told(path: Path) -> Iterator[None]:
    """While this context is open, errors of a full disk become one that says what to do.

    Raises:
        NoSpaceError: in place of the error of the library that writes.
    """
    try:
        yield
    except NoSpaceError:
        raise
    except Exception as error:
        if not _is_no_space(error, partial_path(path)):
            raise
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
        free = shutil.disk_usage(folder).free
        raise NoSpaceError(
            f"there is no space to write {path}: {free / 1e6:,.1f} MB are free on the file system "
            f"of {folder}, and a quota or `ulimit -f` may allow less. Free some space, and give "
            f"the same command again: what had been written before is whole"
        ) from error


def _is_no_space(error: BaseException | None, partial: Path) -> bool:
    """Whether an error came of a full disk, where a file or a folder was being written."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            number = error.errno
        else:  # safetensors and tokenizers, which are written in Rust, put the number into words
            said = re.search(r"\(os error (\d+)\)", str(error))
            number = int(said.group(1)) if said else 0
        if number in _NO_SPACE:
            return True
        # PyTorch and libsndfile give no reason.
        if isinstance(error, RuntimeError) and not number and not _can_grow(partial):
            return True
        error = error.__cause__ or error.__context__
    return False


def _can_grow(partial: Path) -> bool:
    """Whether there is space for more bytes in the file that has been written last."""
    files = [path for path in (partial, *partial.rglob("*")) if path.is_file()]
    new = partial.with_name(f"{partial.name}-more")
    last = max(files, key=lambda path: path.stat().st_mtime_ns, default=new)
    try:
        with last.open("ab") as file:
            file.write(bytes(2**16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in _NO_SPACE
    finally:
        remove(new)
    return True


def is_file(path: Path) -> bool:
    """Whether there is a file; False too for names that are too long for a file system.

    >>> is_file(Path("x" * 5000))
    False
    """
    try:
        return path.is_file()
    except OSError:
        return False


def check_can_be_written(path: Path) -> None:
    """Raises `ValueError` if no file can be written at a path of `--output`, before any work.

    >>> check_can_be_written(Path("missing/page.html"))
    >>> check_can_be_written(Path("/"))
    Traceback (most recent call last):
    ...
    ValueError: / is a folder, expected the name of a file to write; give another one by --output
    """
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, expected the name of a file to write; give another one by "
            f"--output"
        )
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file, expected a folder; give another one by --output")
    if not os.access(folder, os.W_OK):
        raise ValueError(
            f"{folder} is a folder in which nothing can be written; give another one by --output"
        )


def partial_path(path: Path) -> Path:
    """Returns the name under which `written_whole` has a file or folder written."""
    return path.with_name(f"{_PARTIAL}{path.name}")


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, whole or not at all."""
    with written_whole(path) as partial:
        partial.write_bytes(content)


def clear_leftovers(paths: Iterable[Path]) -> None:
    """Removes from these files and folders what killed writers have left, and puts back the rest.

    That is what they have written in part, and what a folder of theirs was to take the place of.
    """
    for path in paths:
        if path.name.startswith(_REPLACED):
            _end_replacement(path.with_name(path.name.removeprefix(_REPLACED)))
        elif path.name.startswith(_PARTIAL):
            remove(path)


def _aside(path: Path) -> Path:
    """The name of what stood at a path, until a folder has taken its place."""
    return path.with_name(f"{_REPLACED}{path.name}")


def _end_replacement(path: Path) -> None:
    """Removes what has made room for a folder, or puts it back if the folder never came."""
    if not os.path.lexists(_aside(path)):
        return
    if not os.path.lexists(path):
        _aside(path).rename(path)
        return
    # Under its new name it is not put back if this process is killed before all of it is removed.
    remove(partial_path(path))
    _aside(path).rename(partial_path(path))
    remove(partial_path(path))


def _give_usual_permissions(path: Path) -> None:
    """Gives files the permissions that `open` gives; safetensors writes for the user alone."""
    mask = os.umask(0o077)  # there is no other way to read it
    os.umask(mask)
    for file in [path, *path.rglob("*")]:
        if file.is_file() and not file.is_symlink():
            file.chmod(file.stat().st_mode | (0o666 & ~mask))


def _sync(path: Path) -> None:
    """Forces a file, or all files of a folder, from memory onto the disk."""
    for each in [path, *path.rglob("*")]:
        if each.is_dir():
            _sync_folder(each)
        elif each.is_file():
            with each.open("rb") as file:
                os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Forces the names in a folder onto the disk, where the system can do that."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that it holds; one that is not there may be named."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
