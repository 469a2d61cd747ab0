"""Bootstrap intervals and the paired test, against closed forms and their meaning."""

import math

import numpy as np
import pytest

from headwise.tasks.significance import bootstrap_interval, paired_bootstrap


def mean(rows):
    return float(rows[:, 0].mean())


def ratio(rows):
    return float(rows[:, 0].sum() / rows[:, 1].sum())


def test_the_interval_of_a_mean_is_the_normal_one():
    values = np.random.default_rng(0).normal(5.0, 2.0, size=(2000, 1))
    low, high = bootstrap_interval(values.tolist(), mean, num_bootstrap=2000)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=0.02)
    assert high == pytest.approx(values.mean() + half, abs=0.02)


def test_it_draws_whole_rows():
    rows = [[2.0 * n, float(n)] for n in range(1, 50)]  # any draw has the ratio 2
    assert bootstrap_interval(rows, ratio) == (2.0, 2.0)


def test_the_same_seed_gives_the_same_interval():
    rows = np.random.default_rng(1).random((50, 1)).tolist()
    assert bootstrap_interval(rows, mean) == bootstrap_interval(rows, mean)
    assert bootstrap_interval(rows, mean) != bootstrap_interval(rows, mean, seed=1)


def test_a_shift_of_every_item_is_as_sure_as_it_gets():
    rows = np.random.default_rng(2).normal(size=(100, 1))
    difference, p = paired_bootstrap(rows, rows + 0.5, mean, num_bootstrap=999)
    assert difference == pytest.approx(0.5)
    assert p == pytest.approx(1 / 1000)


def test_it_is_paired():
    generator = np.random.default_rng(3)
    rows = generator.normal(0, 10, size=(200, 1))
    other = rows + generator.normal(0.5, 1, size=(200, 1))
    assert paired_bootstrap(rows, other, mean)[1] < 0.01
    shuffled = generator.permutation(other)
    assert paired_bootstrap(rows, shuffled, mean)[1] > 0.1


def test_p_is_uniform_where_there_is_no_difference():
    generator = np.random.default_rng(4)
    below = 0
    for trial in range(200):
        one, two = generator.normal(size=(2, 60, 1))
        below += paired_bootstrap(one, two, mean, num_bootstrap=200, seed=trial)[1] < 0.1
    assert 8 <= below <= 34  # 20 expected


def test_no_difference_is_no_difference():
    assert paired_bootstrap([[1.0], [2.0]], [[2.0], [1.0]], mean) == (0.0, 1.0)


@pytest.mark.parametrize("items", [[], [1.0, 2.0]])
def test_what_is_no_list_of_rows_is_refused(items):
    with pytest.raises(ValueError, match="items has the shape"):
        bootstrap_interval(items, mean)


def test_different_numbers_of_items_are_refused():
    with pytest.raises(ValueError, match="other has 1 items, expected 2"):
        paired_bootstrap([[1.0], [2.0]], [[1.0]], mean)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_few_items_judge_nothing(count):
    difference, p = paired_bootstrap([[1.0]] * count, [[2.0]] * count, mean)
    assert difference == 1.0
    assert math.isnan(p)
