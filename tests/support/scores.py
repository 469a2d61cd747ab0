"""Scores of tasks as tests see them: values, intervals, and the rows from which both follow.

How a task is evaluated, and what computes a score from rows, is known here and nowhere else.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from support.road import Road

from headwise.tasks.bleu import scores_of
from headwise.tasks.enhancing import pesq_score, si_sdr
from headwise.tasks.scores import Score, resampled_scores
from headwise.tasks.task import Each

__all__ = ["pesq_score", "si_sdr"]  # of two waveforms

_OF_PAPERS = {"smooth_method": "none", "force": True}
_BLEU: dict[str, dict[str, Any]] = {
    "sacrebleu": {},
    "tokenized": _OF_PAPERS,
    "pretokenized": {"tokenize": "none", **_OF_PAPERS},
}
_STATISTICS = {
    "BLEU": "bleu",
    "chrF": "chrf",
    "accuracy": "accuracy",
    "PESQ": "ratio",
    "Pearson": "pearson",
    "Spearman": "spearman",
    "bits per byte": "bits",
    **dict.fromkeys(("word perplexity", "token perplexity", "perplexity"), "perplexity"),
}


class Scored(NamedTuple):
    """A score, the ends of its interval (None if there is none), and a row for each item."""

    value: float
    low: float | None
    high: float | None
    higher_is_better: bool
    note: str
    rows: np.ndarray


def _scored(score: Score) -> Scored:
    given = (score.value, score.low, score.high, not score.lower_is_better, score.note)
    return Scored(*given, np.asarray(score.rows, dtype=np.float64))


def evaluated(own: Road, model: torch.nn.Module, part: str = "test") -> dict[str, Scored]:
    """The scores of a model on a part, in their order; the first is the one that ranks systems."""
    outcome = own.task.evaluate(model.eval(), part, own.recipe.evaluation, Each())
    return {score.name: _scored(score) for score in outcome.scores}


def translations(
    made: Sequence[str], references: Sequence[str], kind: str = "sacrebleu", language: str = ""
) -> dict[str, Scored]:
    """BLEU and chrF of translations, counted as `evaluation.bleu` of a recipe says."""
    found = scores_of(made, references, _BLEU[kind], language or None)
    return {score.name: _scored(score) for score in found}


def _made(name: str, rows: Any, kind: str = "sacrebleu") -> Score:
    """A score of rows: of classes a row is the label and what is predicted."""
    table = np.asarray(rows, dtype=np.float64)
    if name == "accuracy" and table.shape[-1] == 2:
        table = np.column_stack([table[:, 0] == table[:, 1], np.ones(len(table))])
    elif name == "PESQ":
        table = np.column_stack([np.nan_to_num(table[:, 0]), ~np.isnan(table[:, 0])])
    smooth = _BLEU[kind].get("smooth_method")
    options = {"smooth_method": smooth} if name == "BLEU" and smooth else {}
    return Score.of(name, table, _STATISTICS[name], options=options)


def statistic(task: str, name: str, bleu: str = "sacrebleu") -> Callable[..., np.ndarray]:
    """What computes a score from rows of items and how often each resample has each item."""
    return lambda rows, counts: _made(name, rows, bleu).of_resamples(rows, counts)


def value(task: str, name: str, rows: Any) -> float:
    """The score of rows, each of them once."""
    return _made(name, rows).value


def resampled(task: str, name: str, runs: Sequence[Any], number: int = 1000) -> np.ndarray:
    """The scores of several runs on the same resamples of their items, (runs, resamples)."""
    return resampled_scores([_made(name, rows) for rows in runs], number)


def interval(task: str, name: str, rows: Any) -> tuple[float | None, float | None]:
    """The 95% interval of a score over its items."""
    made = _made(name, rows)
    return made.low, made.high
