"""Rows of texts and numbers that stand on the disk, in files of Arrow.

The system's memory of files holds what of them is read, once for all processes of a machine.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import pyarrow as pa

_BATCH = 10_000  # rows that are written, and read, at once

Row = TypeVar("Row", bound=tuple)
Value = str | float | None


class Rows(Sequence[Row], Generic[Row]):
    """The rows of a file; `kind` makes a row of its values, and `digest` is a hash of the rows."""

    def __init__(self, path: Path, kind: Callable[..., Row], digest: str) -> None:
        self.path = path
        self.kind = kind
        self.digest = digest
        self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        number = self._file.num_record_batches
        last = self._file.get_batch(number - 1).num_rows if number else 0
        self._length = max(0, number - 1) * _BATCH + last

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.path, self.kind, self.digest)  # a worker opens the file itself

    def __len__(self) -> int:
        return self._length

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
        batch = self._file.get_batch(index // _BATCH)
        return self.kind(*(_value(column[index % _BATCH].as_py()) for column in batch.columns))

    def __iter__(self) -> Iterator[Row]:
        return self.between(0, len(self))

    def between(self, start: int, stop: int) -> Iterator[Row]:
        """Yields the rows from `start` up to `stop`."""
        for number in range(start // _BATCH, -(-stop // _BATCH)):
            first = number * _BATCH
            batch = self._file.get_batch(number)
            skipped = max(0, start - first)
            piece = batch.slice(skipped, min(stop - first, _BATCH) - skipped)
            columns = [map(_value, column.to_pylist()) for column in piece.columns]
            yield from map(self.kind, *columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def column(self, number: int) -> Iterator[Any]:
        """Yields the values of one column."""
        for index in range(self._file.num_record_batches):
            yield from map(_value, self._file.get_batch(index).column(number).to_pylist())


@contextmanager
def writing(path: Path, columns: Sequence[type]) -> Iterator[Callable[[Iterable[Value]], None]]:
    """Yields a function that adds a row to a new file, whose columns are of type `str` or `float`.

    A value may also be None.
    """
    # Bytes and no strings, since Arrow has none with half a surrogate pair, which JSON can hold.
    kinds = [pa.binary() if column is str else pa.float64() for column in columns]
    schema = pa.schema([(str(number), kind) for number, kind in enumerate(kinds)])
    waiting: list[list[bytes | float | None]] = [[] for _ in columns]

    def flush() -> None:
        arrays = [pa.array(values, kind) for values, kind in zip(waiting, kinds, strict=True)]
        file.write_batch(pa.record_batch(arrays, schema=schema))
        for values in waiting:
            values.clear()

    def add(row: Iterable[Value]) -> None:
        for values, value in zip(waiting, row, strict=True):
            values.append(_bytes(value) if isinstance(value, str) else value)
        if len(waiting[0]) == _BATCH:
            flush()

    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, schema) as file:
        yield add
        if waiting[0]:
            flush()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _value(value: bytes | float | None) -> Value:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value
