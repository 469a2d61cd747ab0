"""How long forward and backward of a training step take, system against system."""

import statistics
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.training.block_coordinate_descent import expert_step, gate_step, has_experts
from headwise.training.settings import GateSettings

Batch = dict[str, Tensor]


def relative_step_times(
    models: Mapping[str, PreTrainedModel],
    gates: Mapping[str, GateSettings],
    batches: Sequence[Batch],
    *,
    repetitions: int = 7,
) -> dict[str, float]:
    """The time of each model's forward and backward pass over that of the first.

    A round runs every model forward and backward on the same batches, one model after the other;
    the ratio is taken within each round, so that a machine whose speed drifts does not matter, and
    the median over rounds counts. For MAE it is an F step plus the share of a G step that its
    schedule asks for. Parameters do not change, but the running statistics of gates do.

    Args:
        models: name to model; the first is the baseline.
        gates: name to how often gates learn, for models that have them.
        batches: keyword arguments of forward, with labels.
        repetitions: rounds; one more goes first and is not counted.
    """
    ratios: dict[str, list[float]] = {name: [] for name in models}
    for repetition in range(repetitions + 1):
        seconds = {
            name: sum(_step_seconds(model, gates[name], batch) for batch in batches)
            for name, model in models.items()
        }
        if repetition:
            first = next(iter(seconds.values()))
            for name, time_taken in seconds.items():
                ratios[name].append(time_taken / first)
    return {name: statistics.median(of_name) for name, of_name in ratios.items()}


def _step_seconds(model: PreTrainedModel, gates: GateSettings, batch: Batch) -> float:
    if not has_experts(model) or gates.method == "joint":
        return _forward_backward(model, batch)
    with expert_step(model):
        seconds = _forward_backward(model, batch)
    with gate_step(model) as learning:
        return seconds + (_forward_backward(model, batch) / gates.period if learning else 0.0)


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
