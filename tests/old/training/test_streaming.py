"""Batches of a stream: none is lost or repeated when a run goes on, and little is in memory."""

import json
from itertools import chain, islice

import pytest
from datasets import IterableDataset

from headwise.training.streaming import ROW, StreamedItems

SHARDS, ROWS = 4, 50
READ = []


def numbers(shards):
    for shard in shards:
        for number in range(ROWS):
            READ.append((shard, number))
            yield {ROW: shard * ROWS + number}


class Numbers:
    """Items that are numbers with the window in which they were drawn, from 1 to 4 tokens long."""

    def __init__(self, rows):
        self.rows = rows
        self.lengths = [1 + row % 4 for row in rows]

    def __len__(self):
        return len(self.rows)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return self.rows[index], self.epoch


def stream(shards=SHARDS, window=30):
    rows = IterableDataset.from_generator(numbers, gen_kwargs={"shards": list(range(shards))})
    return StreamedItems(rows, Numbers, window)


def batches(items=None, **options):
    return (items or stream()).batches(list, 20, **options)


def take(streamed, number):
    return list(islice(streamed.loader(), number))


def test_a_pass_has_every_row_once_in_another_order_than_the_next():
    given = take(batches(seed=3), 90)
    rows = [row for batch in given for row, _ in batch]
    first, second = rows[: SHARDS * ROWS], rows[SHARDS * ROWS : 2 * SHARDS * ROWS]
    assert sorted(first) == sorted(second) == list(range(SHARDS * ROWS))
    assert first != second != sorted(second)
    assert take(batches(seed=3), 90) == given != take(batches(seed=4), 90)
    # Items that are random are drawn anew in each window.
    assert len({window for batch in given for _, window in batch}) > 2 * SHARDS * ROWS // 30
    for batch in given:
        assert len(batch) * max(1 + row % 4 for row, _ in batch) <= 20


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("before", [1, 2, 5, 7, 18, 40, 61])
def test_a_run_goes_on_with_the_batches_that_it_would_have_had(before, world_size):
    share = {"seed": 1, "rank": world_size - 1, "world_size": world_size}
    whole = take(batches(**share), before + 20)
    stopped = batches(**share)
    assert take(stopped, before) == whole[:before]
    position = json.loads(json.dumps(stopped.state_dict()))
    resumed = batches(**share)
    resumed.load_state_dict(position)
    READ.clear()
    assert take(resumed, before + 20) == [None] * before + whole[before:]
    assert stopped.state_dict() == position


@pytest.mark.parametrize(("shards", "world_size"), [(4, 2), (4, 4), (1, 2), (4, 3)])
def test_processes_have_rows_of_their_own(shards, world_size):
    share = shards * ROWS // world_size
    found = []
    for rank in range(world_size):
        given = take(batches(stream(shards), rank=rank, world_size=world_size, seed=2), 160)
        found.append({row for row, _ in list(chain.from_iterable(given))[:share]})
    assert [len(rows) for rows in found] == [share] * world_size
    assert len(set.union(*found)) == share * world_size


def test_no_more_than_a_window_is_read_ahead():
    READ.clear()
    loader = iter(batches(stream(window=10)).loader())
    rows = 0
    for _ in range(30):
        rows += len(next(loader))
        assert rows <= len(READ) <= rows + 10


def test_what_cannot_be_streamed_says_so():
    with pytest.warns(UserWarning, match="longer than a batch of one process, 2 tokens: they are"):
        assert len(next(iter(stream().batches(list, 2).loader())))
    with pytest.raises(ValueError, match="stream, and this process finds no row in it"):
        next(iter(batches(stream(window=1), rank=200, world_size=201).loader()))
