"""How long forward and backward of a training step take, system against system."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.training.rules import TrainingRules

Batch = dict[str, Tensor]


def relative_step_times(
    models: Mapping[str, PreTrainedModel],
    settings: Mapping[str, Mapping[str, Any]],
    batches: Sequence[Batch],
    *,
    repetitions: int = 7,
) -> dict[str, float]:
    """The time of each model's forward and backward pass over that of the first.

    A round runs every model forward and backward on the same batches, one model after the other;
    the ratio is taken within each round, so that a machine whose speed drifts does not matter, and
    the median over rounds counts. Where a system's rule of training takes further passes, their
    share is part of the time. Parameters do not change, but running statistics do.

    Args:
        models: name to model; the first is the baseline.
        settings: name of a model to the settings of its systems' rules of training.
        batches: keyword arguments of forward, with labels.
        repetitions: rounds; one more goes first and is not counted.
    """
    rules = {name: TrainingRules(model, settings[name]) for name, model in models.items()}
    ratios: dict[str, list[float]] = {name: [] for name in models}
    for repetition in range(repetitions + 1):
        seconds = {
            name: sum(_step_seconds(model, rules[name], batch) for batch in batches)
            for name, model in models.items()
        }
        if repetition:
            first = next(iter(seconds.values()))
            for name, time_taken in seconds.items():
                ratios[name].append(time_taken / first)
    return {name: statistics.median(of_name) for name, of_name in ratios.items()}


def _step_seconds(model: PreTrainedModel, rules: TrainingRules, batch: Batch) -> float:
    return rules.step_seconds(lambda: _forward_backward(model, batch))


def _forward_backward(model: PreTrainedModel, batch: Batch) -> float:
    model.train()
    # The random state of the caller's run is none of a measurement's business.
    with torch.random.fork_rng():
        _synchronize(model)
        start = time.perf_counter()
        model(**batch).loss.backward()
        _synchronize(model)
        seconds = time.perf_counter() - start
    model.zero_grad(set_to_none=True)
    return seconds


def _synchronize(model: PreTrainedModel) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
