"""Means over rows whose sequences are independent, against formulas and simulation."""

import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from scipy.stats import t

from headwise.analysis.decisions.sums import ClusterSums, TokenSums, difference
from headwise.analysis.statistics.estimates import Estimate


def test_the_interval_of_a_mean_over_single_rows_is_students() -> None:
    values = torch.tensor([0.3, 1.2, 0.7, 0.9, 2.0], dtype=torch.float64)
    sums = ClusterSums()
    sums.add(torch.stack([values, torch.ones(5)], 1))
    found = sums.estimate([(0, 1)])
    error = float(values.std()) / math.sqrt(5)
    assert found.value == pytest.approx(float(values.mean()))
    assert (found.error, found.freedom) == (pytest.approx(error), pytest.approx(4))
    assert found.low == pytest.approx(found.value - t.ppf(0.975, 4) * error)
    assert found.high == pytest.approx(found.value + t.ppf(0.975, 4) * error)


def test_the_variance_of_ratios_against_plain_loops() -> None:
    draws = np.random.default_rng(0)
    rows = draws.integers(1, 9, (40, 2)).astype(float)
    totals = rows * draws.gamma(2.0, size=(40, 2))
    sums = ClusterSums()
    # Two batches; the second brings the second ratio.
    sums.add(torch.tensor(np.stack([totals[:15, 0], rows[:15, 0]], 1)))
    both = np.stack([totals[:, 0], rows[:, 0], totals[:, 1], rows[:, 1]], 1)
    sums.add(torch.tensor(both[15:]))
    seen = rows[:, 1] * (np.arange(40) >= 15), totals[:, 1] * (np.arange(40) >= 15)
    for column, (counts, values) in enumerate([(rows[:, 0], totals[:, 0]), seen]):
        ratio = sum(values) / sum(counts)
        clusters = sum(counts > 0)
        residuals = [(s - ratio * n) / sum(counts) for s, n in zip(values, counts, strict=True)]
        variance = clusters / (clusters - 1) * sum(r**2 for r in residuals)
        found = sums.estimate([(2 * column, 2 * column + 1)])
        assert found.value == pytest.approx(ratio)
        assert found.error == pytest.approx(math.sqrt(variance))


def test_what_is_common_to_a_sequence_counts_in_a_mean_of_ratios() -> None:
    values = torch.randn(30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ones = torch.ones_like(values)
    alike, opposite = ClusterSums(), ClusterSums()
    alike.add(torch.cat([values, ones, values, ones], 1))
    opposite.add(torch.cat([values, ones, -values, ones], 1))
    single = alike.estimate([(0, 1)])
    assert alike.estimate([(0, 1), (2, 3)]).error == pytest.approx(single.error)
    assert opposite.estimate([(0, 1), (2, 3)]).error == pytest.approx(0, abs=1e-8)


def test_an_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    """Rows of a sequence share what is common to it, and long sequences differ from short ones."""
    draws = np.random.default_rng(1)
    held = naive = 0
    truth = (1 * 0.0 + 7 * 1.0) / 8  # half of the sequences have 1 row, half have 7
    for _ in range(400):
        is_long = draws.random(60) < 0.5
        rows = np.where(is_long, 7.0, 1.0)
        mean = is_long + draws.normal(size=60)
        sums = ClusterSums()
        sums.add(torch.tensor(np.stack([rows * mean, rows], 1)))
        found = sums.estimate([(0, 1)])
        assert found.low is not None and found.high is not None
        held += found.low <= truth <= found.high
        every = np.repeat(mean, rows.astype(int))
        naive += abs(every.mean() - truth) <= 1.96 * every.std() / math.sqrt(len(every))
    assert 0.92 < held / 400 < 0.98
    assert naive / 400 < 0.8  # as if rows were independent


def test_one_sequence_has_no_interval() -> None:
    sums = ClusterSums()
    sums.add(torch.tensor([[3.0, 2.0]], dtype=torch.float64))
    found = sums.estimate([(0, 1)])
    assert (found.value, found.error, found.low) == (1.5, None, None)
    assert difference(found, found) is None


def test_the_variances_of_two_runs_add_up() -> None:
    first = Estimate(value=1.9, error=0.03, freedom=50.0, source="items", seeds=1)
    second = Estimate(value=2.0, error=0.04, freedom=50.0, source="items", seeds=1)
    found = difference(first, second)
    assert found is not None
    assert (found.value, found.error) == (pytest.approx(-0.1), pytest.approx(0.05))
    freedom = 0.05**4 / (0.03**4 / 50 + 0.04**4 / 50)  # Welch's
    assert found.freedom == pytest.approx(freedom)
    assert found.high == pytest.approx(-0.1 + t.ppf(0.975, freedom) * 0.05)


def test_sums_of_tokens_as_in_a_dictionary() -> None:
    generator = torch.Generator().manual_seed(0)
    sums = TokenSums(2)
    expected: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for largest in (3, 50, 2, 400, 400):
        tokens = torch.randint(largest, (60,), generator=generator)
        values = torch.randint(9, (60, 2), generator=generator).double()
        sums.add(tokens, values)
        for token, row in zip(tokens.tolist(), values.tolist(), strict=True):
            expected[token] = [have + more for have, more in zip(expected[token], row, strict=True)]
    found = dict(zip(sums.tokens.tolist(), sums.sums.tolist(), strict=True))
    assert found == expected
