"""Scores of tasks as tests see them: values, intervals, and the rows from which both follow.

How a task is evaluated, and what computes a score from rows, is known here and nowhere else.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from support.road import Road

from headwise.recipes.catalogue import task_class
from headwise.tasks.bleu import TranslationEvaluation, corpus_scores
from headwise.tasks.metrics import pesq_score, si_sdr
from headwise.tasks.outcome import Score
from headwise.tasks.significance import bootstrap_interval, resampled_scores, score_of

__all__ = ["pesq_score", "si_sdr"]  # of two waveforms


class Scored(NamedTuple):
    """A score, the ends of its interval (None if there is none), and a row for each item."""

    value: float
    low: float | None
    high: float | None
    higher_is_better: bool
    note: str
    rows: np.ndarray


def _scored(score: Score, rows: Any) -> Scored:
    given = (score.value, score.low, score.high, score.higher_is_better, score.note)
    return Scored(*given, np.asarray(rows, dtype=np.float64))


def evaluated(own: Road, model: torch.nn.Module, part: str = "test") -> dict[str, Scored]:
    """The scores of a model on a part, in their order; the first is the one that ranks systems."""
    items, settings = own.items(part), own.recipe.evaluation
    outcome = own.task.evaluate(model.eval(), items, settings, lambda number: None)
    return {score.name: _scored(score, outcome.items[score.name]) for score in outcome.scores}


def drawn(own: Road, part: str, index: int, draw: int) -> dict[str, torch.Tensor]:
    """A block of masked language modelling with the masks of a draw of the evaluation."""
    return own.task.collate([own.items(part).draw(index, draw)])


def translations(
    made: Sequence[str], references: Sequence[str], kind: str = "sacrebleu", language: str = ""
) -> dict[str, Scored]:
    """BLEU and chrF of translations, counted as `evaluation.bleu` of a recipe says."""
    settings = TranslationEvaluation(bleu=kind)
    found = corpus_scores(made, references, settings, language=language or None)
    return {score.name: _scored(score, rows) for score, rows in found}


def statistic(task: str, name: str, **evaluation: Any) -> Callable[..., np.ndarray]:
    """What computes a score from rows of items and how often each resample has each item."""
    settings = TranslationEvaluation(**evaluation) if task == "translation" else None
    return task_class(task).statistic(name, settings)


def value(task: str, name: str, rows: Any, **evaluation: Any) -> float:
    """The score of rows, each of them once."""
    return score_of(rows, statistic(task, name, **evaluation))


def resampled(task: str, name: str, runs: Sequence[Any], number: int = 1000) -> np.ndarray:
    """The scores of several runs on the same resamples of their items, (runs, resamples)."""
    return resampled_scores(runs, statistic(task, name), resamples=number)


def interval(task: str, name: str, rows: Any) -> tuple[float, float]:
    """The 95% interval of a score over its items."""
    return bootstrap_interval(rows, statistic(task, name))
