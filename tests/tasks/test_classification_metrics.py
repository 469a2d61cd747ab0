"""Scores of predictions: accuracy, and the correlations of Pearson and Spearman."""

import numpy as np
import pytest

from headwise.tasks.classification_metrics import pearson, spearman


def ranks(column):
    """Counted one by one; equal values have the mean of their ranks."""
    return [(column < value).sum() + ((column == value).sum() + 1) / 2 for value in column]


@pytest.mark.parametrize("decimals", [0, 1, 6])  # with many ties, with some, without
def test_correlations(decimals):
    rows = np.random.default_rng(0).normal(size=(50, 2)).round(decimals)
    assert pearson(rows) == pytest.approx(100 * np.corrcoef(*rows.T)[0, 1])
    by_hand = np.corrcoef(ranks(rows[:, 0]), ranks(rows[:, 1]))[0, 1]
    assert spearman(rows) == pytest.approx(100 * by_hand)


def test_what_is_constant_correlates_with_nothing():
    constant = np.array([[1.0, 0.1 + 0.2], [2.0, 0.3]])
    assert pearson(constant) == spearman(np.array([[1.0, 5.0], [2.0, 5.0]])) == 0


@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_the_predictions_of_a_model_that_diverged_have_no_correlation(correlation):
    assert np.isnan(correlation(np.array([[1.0, np.nan], [2.0, 3.0]])))
    assert np.isnan(correlation(np.array([[1.0, np.nan], [2.0, 3.0], [3.0, 5.0]])))
