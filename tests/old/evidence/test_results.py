"""What is kept of a run: read back, replaced, and named where it is damaged."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny_results

from evidence.results import Run, Table, check_data, small_rows


def made(seed=1, **others):
    (run,) = tiny_results.system("mae", [2.0]).runs
    return run.model_copy(update={"seed": seed, **others})


def test_a_record_takes_the_place_of_one_of_the_same_run(tmp_path):
    table = Table(tmp_path / "counting.jsonl")
    assert table.find(Run, at="", system="mae") == []
    for run in (made(2), made(1), made(1, at="length/3"), made(2, loss=9.0)):
        table.put(run)
    found = table.find(Run, at="", system="mae")
    assert [(run.seed, run.loss) for run in found] == [(1, 2.0), (2, 9.0)]
    assert table.find(Run, at="length/3", system="mae") == [made(1, at="length/3")]
    assert len(table.path.read_text().splitlines()) == 3


def test_several_write_one_table_at_once(tmp_path):
    path = tmp_path / "counting.jsonl"

    def put_all(seeds):
        for seed in seeds:
            Table(path).put(made(seed))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(put_all, [range(5), range(5, 10), range(10, 15)]))
    assert [run.seed for run in Table(path).find(Run, system="mae")] == list(range(15))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_rows_are_the_same_numbers_again(tmp_path, dtype):
    rows = (np.random.default_rng(0).normal(size=(50, 2)) * 100).astype(dtype)
    table = Table(tmp_path / "counting.jsonl")
    table.put(made(rows={"BLEU": small_rows(rows)}))
    (run,) = table.find(Run, at="", system="mae")
    assert np.array_equal(run.rows_of("BLEU"), rows.astype(np.float64))
    assert run.rows_of("loss") is None


@pytest.mark.parametrize("damaged", ["{", "\xff", '{"kind": "run", "system": "standard"}'])
def test_a_damaged_line_is_named(tmp_path, damaged):
    table = Table(tmp_path / "counting.jsonl")
    table.put(made())
    with table.path.open("a") as file:
        file.write(damaged)
    with pytest.raises(ValueError, match=r"counting\.jsonl, line 2, cannot be read"):
        table.find(Run, at="", system="mae")


def test_no_test_rests_on_different_data():
    with pytest.raises(ValueError, match="mae seed 1 and mae seed 2 were made on different data"):
        check_data([made(1), made(2, data="others")])
