"""Scores of predictions, from rows of label and prediction."""

import math

import numpy as np


def accuracy(rows: np.ndarray) -> float:
    """Returns the percentage of rows whose prediction is equal to the label.

    Args:
        rows: labels and predictions, of shape `(examples, 2)`.

    >>> accuracy(np.array([[0, 0], [1, 1], [2, 1], [1, 1]]))
    75.0
    """
    return float(100 * (rows[:, 0] == rows[:, 1]).mean())


def pearson(rows: np.ndarray) -> float:
    """Returns Pearson's correlation of labels and predictions × 100; 0 if one of them is constant.

    Args:
        rows: labels and predictions, of shape `(examples, 2)`.

    >>> round(pearson(np.array([[0.0, 1.0], [1.0, 1.5], [2.0, 2.0]])), 6)
    100.0
    """
    from scipy.stats import pearsonr  # imported here: it takes a second

    # A column that varies only within rounding would give the correlation of the rounding.
    if _is_constant(rows, tolerance=1e-9):
        return 0.0
    if np.isnan(rows).any():  # the predictions of a model that has diverged; scipy raises an error
        return math.nan
    return 100 * float(pearsonr(*rows.T).statistic)


def spearman(rows: np.ndarray) -> float:
    """Returns Spearman's correlation of labels and predictions × 100; 0 if one of them is constant.

    Args:
        rows: labels and predictions, of shape `(examples, 2)`.

    >>> round(spearman(np.array([[0.0, 1.0], [1.0, 10.0], [2.0, 100.0]])), 6)
    100.0
    """
    from scipy.stats import spearmanr  # imported here: it takes a second

    return 0.0 if _is_constant(rows) else 100 * float(spearmanr(*rows.T).statistic)


def _is_constant(rows: np.ndarray, tolerance: float = 0.0) -> bool:
    """Returns whether the values of a column are equal, up to a share of the largest of them."""
    return any(np.ptp(column) <= tolerance * np.abs(column).max() for column in rows.T)
