"""Batches under a budget of tokens."""

import random

import numpy as np
import pytest
import torch

from headwise.training.batching import BatchLoader, TokenBudgetSampler

BUDGET = 50


@pytest.fixture(scope="module")
def lengths():
    draw = random.Random(0)
    return [(draw.randrange(1, 20), draw.randrange(1, 20)) for _ in range(200)]


def epoch_of(sampler, epoch):
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("shuffle", [True, False])
def test_padded_batches_stay_within_the_budget(lengths, shuffle):
    for batch in TokenBudgetSampler(lengths, BUDGET, shuffle=shuffle):
        assert len(batch) * max(max(lengths[i]) for i in batch) <= BUDGET


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_every_sequence_comes_once_in_each_epoch(lengths, epoch):
    batches = epoch_of(TokenBudgetSampler(lengths, BUDGET), epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))


def test_no_seed_repeats_the_epochs_of_another(lengths):
    """Runs of neighbouring seeds that share orders would differ less than their number says."""
    orders = {
        (seed, epoch): tuple(
            map(tuple, epoch_of(TokenBudgetSampler(lengths, BUDGET, seed=seed), epoch))
        )
        for seed in range(4)
        for epoch in range(4)
    }
    assert orders[1, 1] != orders[2, 0]
    assert len(set(orders.values())) == len(orders)


def test_without_shuffling_lengths_ascend_and_epochs_are_alike(lengths):
    sampler = TokenBudgetSampler(lengths, BUDGET, shuffle=False)
    batches = list(sampler)
    longest = [max(lengths[i]) for batch in batches for i in batch]
    assert longest == sorted(longest)
    assert batches == epoch_of(sampler, 1)


def test_sequences_alike_on_both_sides_come_together():
    # All have a longest side of 9; sorted by that alone, short sources would mix with long ones.
    lengths = [(9, 1), (9, 8), (1, 9), (9, 9)] * 6
    for batch in TokenBudgetSampler(lengths, batch_tokens=54):
        shorter = [min(lengths[i]) for i in batch]
        assert max(shorter) - min(shorter) <= 1


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_each_batch_in_consecutive_rows(lengths, processes):
    whole = list(TokenBudgetSampler(lengths, 200, seed=2))
    shares = [
        list(TokenBudgetSampler(lengths, 200, seed=2, rank=rank, world_size=processes))
        for rank in range(processes)
    ]
    for batch, *parts in zip(whole, *shares, strict=True):
        assert [i for part in parts for i in part] == batch
        sizes = [len(part) for part in parts]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("lengths", "batch_tokens"),
    [([4] * 7, 12)],
    ids=["one is left over"],
)
def test_no_process_is_left_without_a_sequence(lengths, batch_tokens):
    shares = [
        list(TokenBudgetSampler(lengths, batch_tokens, rank=rank, world_size=2)) for rank in (0, 1)
    ]
    assert len(shares[0]) == len(shares[1])
    assert all(batch for share in shares for batch in share)
    taken = [i for share in shares for batch in share for i in batch]
    assert sorted(taken) == list(range(len(lengths)))


def test_a_sequence_above_the_budget_is_an_error_that_gives_both_numbers():
    with pytest.raises(ValueError, match="batch_tokens is 10, expected at least 11"):
        TokenBudgetSampler([(3, 11), (4, 4)], batch_tokens=10)


def test_loader_joins_items_and_follows_the_epoch():
    dataset = [10, 20, 30, 40, 50, 60]
    sampler = TokenBudgetSampler([1] * 6, batch_tokens=2)
    loader = BatchLoader(dataset, sampler, lambda items: {"x": torch.tensor(items)})
    epochs = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        epochs.append([batch["x"].tolist() for batch in loader])
    assert sorted(x for batch in epochs[0] for x in batch) == dataset
    assert epochs[0] == epochs[2] != epochs[1]


class Drawn:
    """Items that are drawn anew in each epoch, by index and epoch alone."""

    lengths = (1, 1, 2, 2, 3, 3)
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return np.random.default_rng((self.epoch, index)).random(2)


def joined(items):
    return {"x": torch.from_numpy(np.stack(items))}


def test_workers_give_the_same_batches_and_draw_nothing_either():
    found = []
    for workers in (0, 2):
        torch.manual_seed(4)
        sampler = TokenBudgetSampler(Drawn.lengths, batch_tokens=4, seed=3)
        loader = BatchLoader(Drawn(), sampler, joined, workers)
        made = []
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            made += [batch["x"] for batch in loader]
        found.append([*made, torch.rand(3)])
    assert len(found[0]) == len(found[1]) > 6
    assert all(map(torch.equal, *found))
