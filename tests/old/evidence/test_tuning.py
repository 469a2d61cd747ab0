"""In which order values are tried, and which are chosen."""

import math

import pytest

from evidence.experiments import MOST_BEYOND, Key
from evidence.tuning import search

RATE = Key(key="training.learning_rate", values=(1.0, 2.0, 4.0), factor=2.0)
DROPOUT = Key(key="model.dropout", values=(0.1, 0.2, 0.3))


def searched(keys, loss):
    """What is tried, a round at a time, if values have these losses, and what is chosen."""
    known, rounds = {}, []
    while (found := search(keys, known)).chosen is None:
        rounds.append(list(found.wanted))
        known |= {values: loss(*values) for values in found.wanted}
    assert not found.wanted
    return rounds, found.chosen


def test_keys_are_tried_one_after_the_other():
    rounds, chosen = searched([RATE, DROPOUT], lambda rate, dropout: (rate - 2) ** 2 + dropout)
    # Dropouts stand at their middle first, and what is known then is not tried again.
    assert rounds == [[(1.0, 0.2), (2.0, 0.2), (4.0, 0.2)], [(2.0, 0.1), (2.0, 0.3)]]
    assert chosen == (2.0, 0.1)


@pytest.mark.parametrize(
    ("best", "tried", "chosen"),
    [(8.0, [8.0, 16.0], 8.0), (0.5, [0.5, 0.25], 0.5), (1e9, [8.0, 16.0, 32.0], 32.0)],
)
def test_values_widen_until_the_best_lies_inside(best, tried, chosen):
    rounds, found = searched([RATE], lambda rate: abs(math.log(rate / best)))
    assert rounds[1:] == [[(rate,)] for rate in tried]
    assert len(tried) <= MOST_BEYOND
    assert found == (chosen,)


def test_of_equal_losses_the_smallest_value_is_chosen():
    losses = {1.0: 0.52, 2.0: 0.5, 4.0: 0.6}
    assert searched([RATE], losses.get)[1] == (2.0,)
    equal = RATE.model_copy(update={"equal_within": 0.03})
    assert searched([equal], losses.get)[1] == (1.0,)


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_tries_that_diverge_are_not_chosen(lost):
    rounds, chosen = searched([RATE], lambda rate: 1.0 if rate < 0.6 else lost)
    assert (rounds[1:], chosen) == ([[(0.5,)], [(0.25,)], [(0.125,)]], (0.125,))


def test_a_first_try_that_diverges_is_not_chosen():
    losses = {1.0: math.nan, 2.0: 0.5, 4.0: 0.6}
    assert searched([RATE], losses.get)[1] == (2.0,)
