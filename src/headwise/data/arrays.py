"""Arrays that grow in a file, and are mapped into memory when they are read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray


@contextmanager
def growing(
    path: Path, dtype: DTypeLike, row: tuple[int, ...] = ()
) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Yields a function that adds rows to a new `.npy` file, of shape `(rows, *row)` in the end."""
    number = 0
    with path.open("wb") as file:
        _write_header(file, dtype, (0, *row))

        def add(rows: NDArray[Any]) -> None:
            nonlocal number
            number += len(rows)
            file.write(np.ascontiguousarray(rows, dtype).data)

        yield add
        file.seek(0)
        _write_header(file, dtype, (number, *row))


def mapped(path: Path) -> NDArray[Any]:
    """Opens an array that stays on the disk; all processes of a machine share what is read of it.

    Where a process writes to it, it has a copy of its own of what it has written.
    """
    return np.load(path, mmap_mode="c")


def pieces(array: NDArray[Any], size: int = 1000) -> Iterator[NDArray[Any]]:
    """Yields the rows of an array, so many at a time."""
    for start in range(0, len(array), size):
        yield array[start : start + size]


def _write_header(file: BinaryIO, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    """Writes the header, whose size does not depend on the number of rows."""
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
