"""Rows of texts and numbers that stand on the disk, in files of Arrow.

The system's memory of files holds what of them is read, once for all processes of a machine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import pyarrow as pa

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


@contextmanager
def writing(path: Path, columns: Sequence[type]) -> Iterator[Callable[[Iterable[Value]], None]]:
    """Yields a function that adds a row to a new file, whose columns are of type `str` or `float`.

    A value may also be None.
    """
    kinds = [pa.string() if column is str else pa.float64() for column in columns]
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
