"""In one process; `tests/training` and `tests/runs` cover several."""

import pytest
import torch

from headwise.ops import replicas


def test_one_process_is_alone():
    assert replicas.replicas() == 1
    x = torch.randn(3)
    assert replicas.sum_over_replicas(x) is x


@pytest.mark.parametrize("rows", [(2, 3), (3, 2)])
def test_noise_follows_the_sequence_not_the_process(monkeypatch, rows):
    """Two processes with consecutive rows of one batch draw what one process draws for all."""
    times = (4, 6)  # each pads to its own longest sequence
    torch.manual_seed(1)
    alone = replicas.uniform_noise(sum(rows), max(times), torch.device("cpu"))

    def all_gather(sizes, mine):
        for size, batch, time in zip(sizes, rows, times, strict=True):
            size.copy_(torch.tensor([batch, time]))

    monkeypatch.setattr(replicas, "replicas", lambda: 2)
    monkeypatch.setattr(replicas.dist, "all_gather", all_gather)
    shares = []
    for rank in range(2):
        monkeypatch.setattr(replicas.dist, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(1)
        shares.append(replicas.uniform_noise(rows[rank], times[rank], torch.device("cpu")))
    torch.testing.assert_close(shares[0], alone[: rows[0], : times[0]])
    torch.testing.assert_close(shares[1], alone[rows[0] :, : times[1]])


def test_what_one_process_does_alone_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(replicas.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(replicas.dist, "get_world_size", lambda: 2)
    x = torch.randn(3)
    with replicas.alone():
        with replicas.alone():
            pass
        assert replicas.replicas() == 1
        assert replicas.sum_over_replicas(x) is x
    assert replicas.replicas() == 2


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_each_process_computes_its_share_and_gets_all_in_order(monkeypatch, count):
    batches = [[0], [1, 2], [3], [4, 5, 6], [7]]
    shares = {}

    def run(rank, gathered):
        monkeypatch.setattr(replicas, "replicas", lambda: 1 if replicas._alone else count)
        monkeypatch.setattr(replicas.dist, "get_rank", lambda: rank)
        monkeypatch.setattr(replicas, "gathered", gathered)
        seen, done = [], []

        def compute(batch):
            assert replicas.replicas() == 1  # what a model sums over processes it sums alone
            seen.append(batch)
            return sum(batch)

        return replicas.divided(batches, compute, done.append), seen, done

    for rank in range(count):
        run(rank, lambda mine, rank=rank: [shares.setdefault(rank, mine) + [None] * 5] * count)
    for rank in range(count):
        found, seen, done = run(rank, lambda mine: [shares[rank] for rank in range(count)])
        assert found == [0, 3, 3, 15, 7]
        assert seen == batches[rank::count]
        assert done == batches
