"""Scores of runs against a number in their recipes: how much data, how wide a model, ..."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headwise.analysis.how_soon import target
from headwise.analysis.results import RunResult, diverged
from headwise.analysis.statistics.estimates import Estimate
from headwise.analysis.statistics.seeds_and_items import Resampled, estimate
from headwise.messages import one_of

VALIDATION_LOSS = "validation loss"


class CurvePoint(NamedTuple):
    """The runs of one system with one value of the key, over their seeds."""

    system: str
    value: float  # of the key
    score: float  # the mean; NaN without a finite score
    low: float | None  # end of the 95% interval of the mean (Student's t); None with one seed
    high: float | None
    seeds: int  # number of runs; those that diverged or have no finite score are left out
    trained: int  # number of parameters that learned
    best_step: float  # mean number of steps to the lowest validation loss


class ScoreCurve(NamedTuple):
    """The score of each system against the values of a key."""

    key: str
    score: str  # its name
    digits: int  # digits after the point that are worth showing
    points: list[CurvePoint]  # in the order of the systems, and of the values of each

    @property
    def systems(self) -> list[str]:
        """The names of the systems, each once."""
        return list(dict.fromkeys(point.system for point in self.points))

    def of(self, system: str) -> list[CurvePoint]:
        """Returns the points of a system."""
        return [point for point in self.points if point.system == system]


def score_curve(
    key: str, runs: Sequence[tuple[float, RunResult]], score: str | None = None
) -> ScoreCurve:
    """Returns the curve of runs.

    Raises:
        ValueError: a run has no such score, or none is sound; or runs of one system with one value
            have the same seed, so that they differ in something else.
    """
    sound = [(value, run) for value, run in runs if not diverged(run)]
    if not sound:
        raise ValueError(f"{len(runs)} runs were given and all diverged, expected sound ones")
    name = score or sound[0][1].scores[0].name
    found: dict[tuple[str, float], list[RunResult]] = {}
    for value, run in sound:
        found.setdefault((run.system, value), []).append(run)
    for (system, value), same in found.items():
        seeds = [run.seed for run in same]
        if len(set(seeds)) < len(seeds):
            raise ValueError(
                f"runs of {system} with {key} = {value:g} have the seeds "
                f"{', '.join(map(str, sorted(seeds)))}, expected each once: they differ in another "
                f"key than --over; name the folders of runs that do not"
            )
    order = list(dict.fromkeys(run.system for _, run in sound))
    points = [
        _point(system, value, found[system, value], name)
        for system, value in sorted(found, key=lambda at: (order.index(at[0]), at[1]))
    ]
    digits = next((s.digits for s in sound[0][1].scores if s.name == name), 3)
    return ScoreCurve(key, name, digits, points)


def _point(system: str, value: float, runs: Sequence[RunResult], name: str) -> CurvePoint:
    scores = np.array([_score(run, name) for run in runs])
    finite = scores[np.isfinite(scores)]
    mean = estimate(Resampled(finite, None, 0)) or Estimate(value=math.nan, source="seeds", seeds=0)
    trained = runs[0].trained_parameters
    bests = [target(run.history) for run in runs]
    return CurvePoint(
        system,
        value,
        mean.value,
        mean.low,
        mean.high,
        len(finite),
        runs[0].parameters if trained is None else trained,
        float(np.mean([best.step if best else 0 for best in bests])),
    )


def _score(run: RunResult, name: str) -> float:
    if name == VALIDATION_LOSS:
        return run.validation_loss
    values = {score.name: score.value for score in run.scores}
    if name not in values:
        raise ValueError(f"--score is {name!r}, {one_of(name, [*values, VALIDATION_LOSS])}")
    return values[name]
