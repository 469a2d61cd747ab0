"""Scores and plots of predictions, from rows of label and prediction."""

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from headwise.tasks.outcome import Picture


def accuracy(rows: np.ndarray) -> float:
    """Returns the percentage of rows `(label, prediction)` whose two numbers are equal."""
    return float(100 * (rows[:, 0] == rows[:, 1]).mean())


def pearson(rows: np.ndarray) -> float:
    """Returns Pearson's correlation of labels and predictions × 100; 0 if one is constant."""
    from scipy.stats import pearsonr  # imported here: it takes a second

    # A column that varies only within rounding would give the correlation of the rounding.
    if _is_constant(rows, tolerance=1e-9):
        return 0.0
    if np.isnan(rows).any():  # the predictions of a model that has diverged; scipy raises an error
        return math.nan
    return 100 * float(pearsonr(*rows.T).statistic)


def spearman(rows: np.ndarray) -> float:
    """Returns Spearman's correlation of labels and predictions × 100; 0 if one is constant."""
    from scipy.stats import spearmanr  # imported here: it takes a second

    return 0.0 if _is_constant(rows) else 100 * float(spearmanr(*rows.T).statistic)


def _is_constant(rows: np.ndarray, tolerance: float = 0.0) -> bool:
    """Returns whether the values of a column are equal, up to a share of the largest of them."""
    return any(np.ptp(column) <= tolerance * np.abs(column).max() for column in rows.T)


def draw_confusions(rows: np.ndarray, classes: Sequence[str]) -> Picture:
    """Draws how often examples of one class are taken for another, from rows as in `accuracy`."""
    from sklearn.metrics import confusion_matrix  # imported here: it takes a second

    labels, predictions = rows.astype(int).T
    numbers = range(len(classes))
    # (label, prediction); a class without examples has a row of zeros
    shares = 100 * confusion_matrix(labels, predictions, labels=numbers, normalize="true")
    side = 2.4 + 0.42 * len(classes)
    figure, axes = _axes(side + 0.8, side)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right")
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    for (row, column), share in np.ndenumerate(shares):
        colour = "white" if share > 60 else "black"
        axes.text(column, row, f"{share:.0f}", ha="center", va="center", color=colour, fontsize=8)
    caption = "Of 100 test examples with the label at the left, how many get each prediction."
    return Picture.of("Confusions", _png(figure), caption)


def draw_predictions(rows: np.ndarray) -> Picture:
    """Draws predictions over labels."""
    figure, axes = _axes(4.2, 4.2)
    axes.scatter(rows[:, 0], rows[:, 1], s=8, alpha=0.4, linewidths=0)
    ends = [rows[:, 0].min(), rows[:, 0].max()]
    axes.plot(ends, ends, color="grey", linewidth=1)
    axes.set_xlabel("label")
    axes.set_ylabel("predicted")
    caption = "Each point is a test example; on the line, the prediction is equal to the label."
    return Picture.of("Predictions", _png(figure), caption)


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # imported here: it takes a second

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
