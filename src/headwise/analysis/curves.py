"""A figure over the steps of training: of one run, and the mean of several."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

Curve = dict[int, float]  # step to value


def curve(history: Sequence[Mapping[str, float]], key: str) -> Curve:
    """Returns the finite values under a key by step.

    Args:
        history: the records of a run, see `RunResult.history`.
        key: such as loss, eval_loss, or what a task measures.

    >>> curve([{"step": 50.0, "loss": 3.0}, {"step": 50.0, "eval_loss": 2.5}], "eval_loss")
    {50: 2.5}
    """
    return {
        int(record["step"]): record[key]
        for record in history
        if key in record and math.isfinite(record[key])
    }


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Returns the mean at the steps that all curves have: another would jump where one ends.

    >>> mean_curve([{100: 3.0, 200: 2.0}, {100: 5.0}])
    {100: 4.0}
    """
    shared = set.intersection(*map(set, curves)) if curves else set()
    return {step: fmean(each[step] for each in curves) for step in sorted(shared)}
