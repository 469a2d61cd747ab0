"""Snapshots of what a model decides, taken while it is trained.

Each is made of one forward pass over the same few sequences. A run has them in its log, and its
result holds them as a `DecisionCourse` for each place.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from headwise.analysis.behaviour.observing import Observed, observe
from headwise.analysis.behaviour.where import Where
from headwise.heads.attention import MultiHeadAttention
from headwise.models.decisions import record
from headwise.models.sites import attention_sites
from headwise.tasks.task import Task
from headwise.training.batching import Items

MOST_SEQUENCES = 32
LOWEST = 0.1  # the quantile of the entropies that is kept beside their mean
_DIGITS = 5  # behind the point, so that a snapshot stays small


class DecisionCourse(Where):
    """How the decisions of one system moved over the training."""

    uniform: float = Field(
        description="The entropy if all units, or all chosen ones, had equal weights, in nats."
    )
    steps: list[int] = Field(description="The steps after which snapshots were taken, ascending.")
    entropy: list[float] = Field(description="Mean entropy of the weights at each step, in nats.")
    lowest_entropy: list[float] = Field(
        description="10th percentile of the entropies at each step, in nats."
    )
    shares: list[list[float]] = Field(
        description="Each unit's share of the work, as the system's words measure it, by step."
    )
    weights: list[list[float]] = Field(description="Each unit's mean weight, by step.")


class Snapshots:
    """Takes snapshots of the decisions of a model on the same few sequences of a task.

    Args:
        task: the data.
        batch_tokens: the largest size of a batch in training, which no snapshot exceeds.
    """

    def __init__(self, task: Task, batch_tokens: int) -> None:
        self.task = task
        self.batch_tokens = batch_tokens
        self._batch: dict[str, Tensor] | None = None

    def __call__(self, model: nn.Module) -> dict[str, dict[str, Any]]:
        """Returns what each system that decides something does: its path to figures by name."""
        batch = self._inputs(next(model.parameters()).device)
        with torch.no_grad(), record(model) as decided:
            model(**batch)
        by_path: dict[str, list[Observed]] = {}
        for observed in observe(decided, {}, {}):
            by_path.setdefault(observed.place.path, []).append(observed)
        return {path: _figures(found) for path, found in by_path.items()}

    def _inputs(self, device: torch.device) -> dict[str, Tensor]:
        # Made when it is first asked for: only the main process takes snapshots.
        if self._batch is None:
            part = self.task.validation
            batch = self.task.collate([part[index] for index in few(part, self.batch_tokens)])
            self._batch = {name: tensor.to(device) for name, tensor in batch.items()}
        return self._batch


def few(part: Items, batch_tokens: int) -> list[int]:
    """Which items a snapshot looks at: up to 32, spread evenly, that fit in one batch.

    Args:
        part: the items of one part.
        batch_tokens: the largest size of a batch.
    """
    lengths = [length if isinstance(length, int) else max(length) for length in part.lengths]
    for number in range(min(MOST_SEQUENCES, len(lengths)), 1, -1):
        chosen = [index * len(lengths) // number for index in range(number)]
        if number * max(lengths[index] for index in chosen) <= batch_tokens:
            return chosen
    return [0]


def decides(model: nn.Module) -> bool:
    """Whether a model holds any system other than standard attention, which decides nothing."""
    return any(type(place.module) is not MultiHeadAttention for place in attention_sites(model))


def _figures(found: list[Observed]) -> dict[str, Any]:
    """What is kept of the decisions of one system."""
    weights = torch.cat([observed.weights for observed in found])  # (rows, units)
    shares = torch.cat([observed.shares for observed in found])
    entropies = -torch.xlogy(weights, weights).sum(-1)
    return {
        "candidates": found[0].candidates,
        "entropy": round(float(entropies.mean()), _DIGITS),
        "lowest_entropy": round(float(entropies.quantile(LOWEST)), _DIGITS),
        "shares": _rounded(shares.mean(0)),
        "weights": _rounded(weights.mean(0)),
    }


def _rounded(values: Tensor) -> list[float]:
    return [round(value, _DIGITS) for value in values.tolist()]
