"""How soon a system learns what the baseline does, from the records of their runs.

**Steps.** The target is the lowest validation loss of a run of the baseline, which is its final one
as long as it still learns. A run reaches the target at the first validation with a loss at or below
it; between this validation and the one before, the loss is taken to fall along a straight line. The
step, divided by the step at which the baseline's own run has the target, is the share of the
baseline's steps. A run that never gets there is one that would need more than its budget.

**Time.** The share of steps times the time of a step over the baseline's, which is measured in
turns: the clock on the wall tells little where runs had the machine at different times.

**Loss at equal training loss.** For each validation the training loss at the same step is read off
a straight line through the records around it, since a single one is noisy. The validation loss is
then a function of the training loss, with straight lines between its points. The number is the mean
difference of two such functions over the training losses that both runs have. It says whether a
system generalises better for what it has fitted, as figure 2 of Ahmed et al. 2017,
https://arxiv.org/abs/1711.02132, does. Training losses hold dropout, label smoothing and auxiliary
losses, so that a system with losses of its own is moved by them.

**Seeds.** Runs of two systems are independent, also those of one seed. So each run of the system is
compared with each of the baseline: n × m figures. Their mean varies with the systems' runs, seen in
the n means of rows, and with the baseline's, seen in the m means of columns. The interval is that
of Welch's test on these two samples. Shares are averaged as logarithms. With a single run of either
there is no interval. A run that diverged is no target, and has no loss at equal training loss; if
it did not reach the target before, it never does.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from headwise.analysis.speed import DecodingSpeed, OverRounds
from headwise.analysis.statistics.seeds_and_items import Resampled, difference
from headwise.tasks.scores import Record

History = Sequence[Mapping[str, float]]  # of a run, see `RunResult.history`
Curve = dict[int, float]  # step to value


def curve(history: History, key: str) -> Curve:
    """Returns the finite values under a key by step.

    >>> curve([{"step": 50.0, "loss": 3.0}, {"step": 50.0, "eval_loss": 2.5}], "eval_loss")
    {50: 2.5}
    """
    return {
        int(record["step"]): record[key]
        for record in history
        if key in record and math.isfinite(record[key])
    }


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Returns the mean of curves, at those steps that all of them have.

    At a step that some lack, the mean would be over fewer curves, and would jump.

    >>> mean_curve([{100: 3.0, 200: 2.0}, {100: 5.0}])
    {100: 4.0}
    """
    shared = set.intersection(*map(set, curves)) if curves else set()
    return {step: fmean(each[step] for each in curves) for step in sorted(shared)}


class OverSeeds(Record):
    """The mean over the pairs of a system's run and one of the baseline, with its 95% interval."""

    value: float
    low: float | None = None  # None with a single run of either system
    high: float | None = None


class HowSoon(Record):
    """How soon a system learns what the baseline does, and how fast it decodes."""

    # Number of pairs of a run of the system and one of the baseline; 0 for the baseline
    # itself.
    pairs: int = 0
    reached: int = 0  # in how many pairs the system reaches the baseline's loss
    # Steps to reach the baseline's lowest validation loss over the baseline's own. If not all
    # pairs reach it, or some at step 0, the median over the pairs, without an interval; None if
    # the median pair does not.
    steps: OverSeeds | None = None
    time: OverSeeds | None = None  # the same in time: `steps` times the time of a step
    # The least share of the baseline's steps after which a run that never reached it ended;
    # None if all did.
    waited: float | None = None
    # Mean difference of the validation loss to the baseline's at equal training loss; None if
    # no training loss is common to all pairs.
    equal_training_loss: OverSeeds | None = None
    decoding: DecodingSpeed | None = None  # None of tasks that generate nothing


class Target(NamedTuple):
    """The lowest validation loss of a run, and the step at which the run has it."""

    step: int
    loss: float


def how_soon(
    runs: Sequence[History],
    baseline: Sequence[History],
    step_time: OverRounds | None,
    decoding: DecodingSpeed | None = None,
) -> HowSoon:
    """Compares the runs of a system with those of the baseline.

    Args:
        runs, baseline: the histories of their runs, also of those that diverged.
        step_time: the time of a step over the baseline's.
        decoding: how fast the system decodes.
    """
    goals = targets(baseline)
    if not goals or not runs:
        return HowSoon(decoding=decoding)
    shares = [[_share(run, goal) for _, goal in goals] for run in runs]
    flat = [share for row in shares for share in row]
    reached = sum(share is not None for share in flat)
    ends = [
        _last_step(run) / goal.step
        for run, row in zip(runs, shares, strict=True)
        for share, (_, goal) in zip(row, goals, strict=True)
        if share is None
    ]
    steps = _steps(shares)
    return HowSoon(
        pairs=len(flat),
        reached=reached,
        steps=steps,
        time=None if steps is None or step_time is None else _times(steps, step_time),
        waited=min(ends, default=None),
        equal_training_loss=_equal_training_loss(
            [run for run in runs if not ended_without_a_loss(run)], [own for own, _ in goals]
        ),
        decoding=decoding,
    )


def targets(baseline: Sequence[History]) -> list[tuple[History, Target]]:
    """Returns, of each run of the baseline, its history and the loss that other runs are to reach.

    A run that diverged is left out, and one whose loss is lowest at step 0, of which nothing is a
    share.
    """
    found = [(own, target(own)) for own in baseline if not ended_without_a_loss(own)]
    return [(own, goal) for own, goal in found if goal is not None and goal.step > 0]


def target(history: History) -> Target | None:
    """Returns the lowest validation loss of a run; None if no loss is finite."""
    found = [Target(step, loss) for step, loss in validations(history) if math.isfinite(loss)]
    return min(found, key=lambda each: each.loss, default=None)


def validations(history: History) -> list[tuple[int, float]]:
    """Returns the steps of the validations and their losses."""
    return [(int(r["step"]), r["eval_loss"]) for r in history if "eval_loss" in r]


def step_of(history: History, loss: float) -> float | None:
    """Returns the first step at which the validation loss is down to `loss`; None if it never is.

    The loss before the first validation is not known: a run that is there by then has the step of
    this validation.
    """
    before: tuple[int, float] | None = None
    for step, found in validations(history):
        if found <= loss:
            if before is None or not math.isfinite(before[1]):
                return float(step)
            return step - (step - before[0]) * (loss - found) / (before[1] - found)
        before = (step, found)
    return None


def by_training_loss(history: History) -> np.ndarray:
    """Returns a row for each validation: the training loss there, and the validation loss.

    The shape is `(validations, 2)`.

    A validation has a training loss if two finite ones were recorded around it: within half the
    distance to the validation before, or within the distance of two records if that is more.
    """
    steps, losses = _training_records(history)
    if len(steps) < 2:
        return np.empty((0, 2))
    least = 2 * float(np.median(np.diff(steps)))
    points = []
    before = 0
    for step, loss in validations(history):
        near = np.abs(steps - step) <= max((step - before) / 2, least)
        before = step
        if near.sum() >= 2 and math.isfinite(loss):
            # A mean would lag behind at the end of training, where records are on one side alone.
            line = np.polynomial.Polynomial.fit(steps[near] - step, losses[near], deg=1)
            points.append((float(line(0.0)), loss))
    return np.array(points).reshape(-1, 2)


def difference_at_equal_training_loss(run: np.ndarray, baseline: np.ndarray) -> float | None:
    """Returns by how much a run's validation loss exceeds the baseline's at equal training loss.

    Returns:
        The mean of this difference over the training losses that both reach; None if there are
        none.

    >>> run, baseline = np.array([[4.0, 4.5], [2.0, 2.5]]), np.array([[3.0, 4.0], [1.0, 2.0]])
    >>> difference_at_equal_training_loss(run, baseline)
    -0.5
    """
    if len(run) < 2 or len(baseline) < 2:
        return None
    low = max(run[:, 0].min(), baseline[:, 0].min())
    high = min(run[:, 0].max(), baseline[:, 0].max())
    if not low < high:
        return None
    inner = np.concatenate([run[:, 0], baseline[:, 0]])
    grid = np.unique([low, high, *inner[(inner > low) & (inner < high)]])
    apart = _interpolated(grid, run) - _interpolated(grid, baseline)
    # Both are straight between the points of the grid, so that the trapezoids are exact.
    return float(((apart[1:] + apart[:-1]) / 2 * np.diff(grid)).sum() / (high - low))


def over_pairs(figures: np.ndarray) -> OverSeeds:
    """Returns the mean of figures of pairs with its interval, by Welch's test, if it has one."""
    mean = float(figures.mean())
    rows, columns = figures.mean(1), mean - figures.mean(0)
    found = difference(Resampled(rows, None, 0), Resampled(columns, None, 0))
    if found is None:
        return OverSeeds(value=mean)
    return OverSeeds(value=found.value, low=found.low, high=found.high)


def _share(run: History, goal: Target) -> float | None:
    step = step_of(run, goal.loss)
    return None if step is None else step / goal.step


def ended_without_a_loss(history: History) -> bool:
    """Whether a run has no validation loss at its end, or none that is finite: it is no target."""
    found = validations(history)
    return not found or not math.isfinite(found[-1][1])


def _last_step(history: History) -> int:
    return max((step for step, _ in validations(history)), default=0)


def _steps(shares: Sequence[Sequence[float | None]]) -> OverSeeds | None:
    """The mean of the shares' logarithms, or where some are missing or 0 the median of them."""
    known = [[math.inf if share is None else share for share in row] for row in shares]
    table = np.array(known)
    if (np.isfinite(table) & (table > 0)).all():
        return _changed(over_pairs(np.log(table)), math.exp)
    # The larger of two in the middle, where a mean of them would count on a step never reached.
    middle = float(np.sort(table, axis=None)[table.size // 2])
    return OverSeeds(value=middle) if math.isfinite(middle) else None


def _times(steps: OverSeeds, factor: OverRounds) -> OverSeeds:
    """Steps times the time of a step, with the intervals of both.

    Distances from the estimates to their ends are added as squares, on the scale of logarithms:
    Zou & Donner 2008, *Construction of confidence limits about effect measures*,
    https://doi.org/10.1002/sim.3095.
    """
    value = steps.value * factor.value
    if steps.low is None or steps.high is None:
        return OverSeeds(value=value)
    below = math.hypot(math.log(steps.value / steps.low), math.log(factor.value / factor.low))
    above = math.hypot(math.log(steps.high / steps.value), math.log(factor.high / factor.value))
    return OverSeeds(value=value, low=value * math.exp(-below), high=value * math.exp(above))


def _changed(mean: OverSeeds, change: Callable[[float], float]) -> OverSeeds:
    ends = {
        name: None if end is None else change(end)
        for name, end in (("low", mean.low), ("high", mean.high))
    }
    return OverSeeds(value=change(mean.value), **ends)


def _equal_training_loss(runs: Sequence[History], baseline: Sequence[History]) -> OverSeeds | None:
    """How much higher the validation loss of each pair's first run is; None if unknown."""
    ours, theirs = ([by_training_loss(run) for run in of] for of in (runs, baseline))
    found = [[difference_at_equal_training_loss(own, other) for other in theirs] for own in ours]
    if not found or any(each is None for row in found for each in row):
        return None
    return over_pairs(np.array(found, dtype=float))


def _training_records(history: History) -> tuple[np.ndarray, np.ndarray]:
    """The middle of the steps that each record of the training loss is a mean of, and the mean."""
    middles, losses = [], []
    before = 0
    for record in history:
        if "loss" in record and record["step"] > before:
            if math.isfinite(record["loss"]):
                middles.append((before + 1 + record["step"]) / 2)
                losses.append(record["loss"])
            before = int(record["step"])
    return np.array(middles), np.array(losses)


def _interpolated(grid: np.ndarray, points: np.ndarray) -> np.ndarray:
    order = np.argsort(points[:, 0], kind="stable")
    return np.interp(grid, points[order, 0], points[order, 1])
