"""The tables of an experiment on the page: what its systems are, and how they differ."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headwise.analysis.statistics.estimates import Difference
from headwise.claims.evidence.quantities import Found
from headwise.claims.evidence.records import StoredRun
from headwise.claims.page.convergence import convergence, in_a_sentence
from headwise.claims.page.experiment_results import ExperimentResult, SystemResult
from headwise.report.formatting import NONE, count, p_value, signed

LOSS_DIGITS = 3


class SystemRow(NamedTuple):
    """A system as the table shows it."""

    name: str
    seeds: str
    parameters: str
    macs: str
    rate: str
    score: str
    of_seeds: str
    loss: str
    training: str
    lowest: str
    last: str
    minutes: str


class DifferenceRow(NamedTuple):
    """The differences of a system from the baseline as the table shows them."""

    name: str
    score: str
    loss: str


class ExperimentTables(NamedTuple):
    """What the page says of an experiment on one data set, besides pictures."""

    dataset: str | None
    score_name: str
    better: str
    loss_name: str
    items: int
    baseline: str
    systems: Sequence[SystemRow]
    differences: Sequence[DifferenceRow]
    ending: str


def experiment_tables(result: ExperimentResult) -> ExperimentTables:
    """Returns the tables of an experiment on one data set."""
    scores = [system.score for system in result.systems if system.score is not None]
    losses = [system.loss for system in result.systems if system.loss is not None]
    baseline = next((s for s in result.systems if s.name == result.baseline), None)
    return ExperimentTables(
        dataset=result.dataset,
        score_name=scores[0].unit if scores else "score",
        better="higher" if not scores or scores[0].higher_is_better else "lower",
        loss_name=result.loss_name,
        items=max((of.values.items for of in (*scores, *losses)), default=0),
        baseline=result.baseline,
        systems=[_row(system) for system in result.systems],
        differences=_differences(result, scores[0].digits if scores else 1),
        ending=""
        if baseline is None
        else in_a_sentence(
            baseline.name,
            convergence(baseline.curves),
            to_zero=baseline.recipe.training.schedule in ("linear", "cosine"),
        ),
    )


def _row(system: SystemResult) -> SystemRow:
    runs = [each.run for each in system.runs]
    curves = [curve for curve in system.curves if curve]
    rate = system.recipe.training.learning_rate
    return SystemRow(
        name=system.name + (" (stale)" if system.is_stale else ""),
        seeds=f"{len(runs)}" + (f", {system.diverged} diverged" if system.diverged else ""),
        parameters=count(runs[0].parameters),
        macs=count(runs[0].macs),
        rate=f"{rate:g}" + ("" if system.is_tuned else " (given)"),
        score=_of_found(system.score),
        of_seeds=_of_each_seed(system.score),
        loss=_of_found(system.loss),
        training=_mean([_last_training_loss(run) for run in runs]),
        lowest=_mean([min(curve.values()) for curve in curves]),
        last=_mean([curve[max(curve)] for curve in curves]),
        minutes=f"{np.median([run.minutes for run in runs]):.1f}",
    )


def _last_training_loss(run: StoredRun) -> float:
    """The mean training loss of the last tenth of the steps."""
    losses = [r["loss"] for r in run.history if "loss" in r and r["step"] > 0.9 * run.steps]
    return float(np.mean(losses)) if losses else float("nan")


def _differences(result: ExperimentResult, digits: int) -> list[DifferenceRow]:
    rows = []
    for system in result.systems:
        score, loss = result.scores.get(system.name), result.losses.get(system.name)
        if score is not None or loss is not None:
            rows.append(
                DifferenceRow(system.name, _difference(score, digits), _difference(loss, 3))
            )
    return rows


def _difference(found: Difference | None, digits: int) -> str:
    if found is None:
        return NONE
    value, low, high = (signed(x, digits) for x in (found.value, found.low, found.high))
    said = f"{value} [{low}, {high}], {p_value(found.corrected_p_value)}"
    return f"**{said}**" if found.significant else said


def _of_found(found: Found | None) -> str:
    return NONE if found is None else mean_and_deviation(found.values.scores, found.digits)


def _of_each_seed(found: Found | None) -> str:
    # A mean hides a single seed that fell far behind.
    if found is None:
        return NONE
    return ", ".join(f"{score:.{found.digits}f}" for score in found.values.scores)


def mean_and_deviation(values: np.ndarray | Sequence[float], digits: int) -> str:
    """Returns the mean of seeds and, if there are several, their standard deviation.

    >>> mean_and_deviation([26.0, 27.0, 28.0], 1), mean_and_deviation([2.5], 3)
    ('27.0 ± 1.0', '2.500')
    """
    text = f"{np.mean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {np.std(values, ddof=1):.{digits}f}"


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.{LOSS_DIGITS}f}" if values else NONE
