"""Rows on the disk are the rows that were written."""

import pickle
from typing import NamedTuple

import pyarrow as pa
import pytest

from headwise.data import rows as module
from headwise.data.rows import Rows, writing


class Row(NamedTuple):
    text: str
    other: str | None
    number: float


EXAMPLES = [Row(f"line {i} é", None if i % 3 else f"pair {i}", i / 7) for i in range(25)]


@pytest.fixture(params=[4, 5, 25, 100])
def written(tmp_path, monkeypatch, request):
    monkeypatch.setattr(module, "_BATCH", request.param)
    with writing(tmp_path / "rows", [str, str, float]) as add:
        for row in EXAMPLES:
            add(row)
    return Rows(tmp_path / "rows", Row, "digest")


def test_rows_are_those_that_were_written(written):
    assert len(written) == 25
    assert list(written) == EXAMPLES and written == EXAMPLES
    assert [written[i] for i in range(-25, 25)] == EXAMPLES * 2
    assert list(written.column(1)) == [row.other for row in EXAMPLES]
    with pytest.raises(IndexError):
        written[25]


@pytest.mark.parametrize(
    "piece", [slice(3, 17), slice(-2, None), slice(None, None, 6), slice(9, 2)]
)
def test_pieces_are_lists(written, piece):
    assert written[piece] == EXAMPLES[piece]


def test_a_worker_opens_the_file_itself(written):
    again = pickle.loads(pickle.dumps(written))
    assert (again, again.digest) == (EXAMPLES, "digest")
    assert len(pickle.dumps(written)) < 1000


def test_a_batch_may_have_more_than_2_gib_of_text(written):
    assert written._table.schema.types == [pa.large_string(), pa.large_string(), pa.float64()]


def test_no_rows_are_rows(tmp_path):
    with writing(tmp_path / "none", [str]):
        pass
    none = Rows(tmp_path / "none", lambda text: (text,), "")
    assert len(none) == 0 and list(none) == [] and none[0:5] == []
