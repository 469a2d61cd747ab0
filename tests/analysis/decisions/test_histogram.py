"""Spread from counts in bins, against the numbers themselves."""

import math

import numpy as np
import pytest
import torch

from headwise.analysis.decisions.histogram import STEP, Histogram


def filled(values: np.ndarray) -> Histogram:
    found = Histogram()
    found.add(torch.tensor(values))
    return found


def test_percentiles_are_those_of_the_numbers_but_for_the_width_of_a_bin() -> None:
    values = np.random.default_rng(0).beta(0.5, 2.0, 5001) * math.log(8)
    halves = Histogram.of([filled(values[:2000]), filled(values[2000:])])
    ordered = np.sort(values)
    for percent, found in halves.percentiles.items():
        assert found == pytest.approx(ordered[round(percent / 100 * 5000)], abs=STEP)
    assert halves.percentiles == pytest.approx(filled(values).percentiles)
    assert halves.count == 5001
    assert halves.deviation == pytest.approx(values.std())


def test_percentiles_of_equal_numbers_are_exact() -> None:
    values = np.array([0.0] * 6 + [math.log(2)] * 4)
    assert filled(values).percentiles == {10: 0.0, 50: 0.0, 90: pytest.approx(math.log(2))}
    assert filled(np.full(7, math.log(3))).deviation == pytest.approx(0, abs=1e-7)


def test_numbers_that_are_none_stay_so() -> None:
    found = filled(np.array([0.3, math.nan]))
    assert all(math.isnan(value) for value in found.percentiles.values())
    assert math.isnan(found.deviation)
