"""Outputs that are whole or not there: written under another name, then renamed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PARTIAL = ".partial-"


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Write a file or a folder such that nobody ever sees half of it.

    Args:
        path: where the file or folder is to be; what is there is replaced. Its parent is created.

    Yields:
        A path beside it, at which nothing is. The caller writes a file or makes a folder there,
        which gets its own name at the end; after an error it is removed, and `path` stays as it
        was.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with written_whole(Path(folder) / "run") as partial:
    ...         partial.mkdir()
    ...         _ = (partial / "figures.txt").write_text("1, 2, 3")
    ...     (Path(folder) / "run" / "figures.txt").read_text()
    '1, 2, 3'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{_PARTIAL}{path.name}")
    _remove(partial)
    try:
        yield partial
        if partial.is_dir():
            _remove(path)  # a folder can only be renamed to one that is not there
        partial.replace(path)
    finally:
        _remove(partial)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 such that nobody ever sees half of it."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file such that nobody ever sees half of it."""
    with written_whole(path) as partial:
        partial.write_bytes(content)


def remove_partial(folder: Path) -> None:
    """Remove what interrupted writers have left behind in a folder."""
    for left_over in folder.glob(f"{_PARTIAL}*"):
        _remove(left_over)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
