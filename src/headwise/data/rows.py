"""Rows that stand on the disk: of texts and numbers in files of Arrow, and arrays in `.npy` files.

The system's memory of files holds what of them is read, once for all processes of a machine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, overload

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

_BATCH = 10_000  # rows that are written at once

Row = TypeVar("Row", bound=tuple)
Value = str | float | None


class Rows(Sequence[Row], Generic[Row]):
    """The rows of a file; `kind` makes a row of its values, and `digest` is a hash of the rows."""

    def __init__(self, path: Path, kind: Callable[..., Row], digest: str) -> None:
        self.path = path
        self.kind = kind
        self.digest = digest
        self._table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.path, self.kind, self.digest)  # a worker opens the file itself

    def __len__(self) -> int:
        return self._table.num_rows

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            wanted = range(len(self))[index]
            if wanted.step == 1:
                return list(self.between(wanted.start, wanted.stop))
            return [self[i] for i in wanted]
        index = range(len(self))[index]
        return next(self.between(index, index + 1))

    def __iter__(self) -> Iterator[Row]:
        return self.between(0, len(self))

    def between(self, start: int, stop: int) -> Iterator[Row]:
        """Yields the rows from `start` up to `stop`."""
        for batch in self._table.slice(start, max(0, stop - start)).to_batches():
            yield from map(self.kind, *(column.to_pylist() for column in batch.columns))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def column(self, number: int) -> Iterator[Any]:
        """Yields the values of one column."""
        for chunk in self._table.column(number).chunks:
            yield from chunk.to_pylist()


def write_rows(path: Path, columns: Sequence[type], rows: Iterable[Iterable[Value]]) -> None:
    """Writes rows into a new file; see `writing`."""
    with writing(path, columns) as add:
        for row in rows:
            add(row)


def write_known(
    path: Path,
    columns: Sequence[type],
    rows: Iterable[tuple[Iterable[Value], tuple[int, ...]]],
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Writes rows into a new file; returns what is known of each, which `rows` has beside it."""
    with writing(path, columns) as add:

        def each() -> Iterator[tuple[int, ...]]:
            for row, known in rows:
                add(row)
                yield known

        return np.fromiter(each(), dtype)


@contextmanager
def writing(path: Path, columns: Sequence[type]) -> Iterator[Callable[[Iterable[Value]], None]]:
    """Yields a function that adds a row to a new file, whose columns are of type `str` or `float`.

    A value may also be None.
    """
    # A large string, since a batch may have more than 2 GiB of text.
    kinds = [pa.large_string() if column is str else pa.float64() for column in columns]
    schema = pa.schema([(str(number), kind) for number, kind in enumerate(kinds)])
    waiting: list[list[Value]] = [[] for _ in columns]

    def flush() -> None:
        arrays = [pa.array(values, kind) for values, kind in zip(waiting, kinds, strict=True)]
        file.write_batch(pa.record_batch(arrays, schema=schema))
        for values in waiting:
            values.clear()

    def add(row: Iterable[Value]) -> None:
        for values, value in zip(waiting, row, strict=True):
            values.append(value)
        if len(waiting[0]) == _BATCH:
            flush()

    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, schema) as file:
        yield add
        if waiting[0]:
            flush()


# --- arrays -----------------------------------------------------------------------------------


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
