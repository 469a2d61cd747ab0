"""Snapshots of what a model decides, taken while it is trained.

Each is made of one or two forward passes over the same few sequences. A run has them in its log,
and its result holds them as a `DecisionCourse` for each place.
"""

from functools import cached_property
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from headwise.analysis.decisions.explained import Explained
from headwise.analysis.decisions.observing import Observed, observe_batch
from headwise.analysis.decisions.where import Where
from headwise.heads.multi_head import MultiHeadAttention
from headwise.models.sites import attention_sites
from headwise.tasks.positions import Positions
from headwise.tasks.task import Task
from headwise.training.batching import Items, TokenBudgetSampler

MOST_SEQUENCES, MOST_BATCHES = 32, 2
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
    explained: dict[str, list[float | None]] = Field(
        default={},
        description="Name of a label to how much of the decisions it explains, ε² of "
        "`ExplainedShare`, by step; None where that is not defined, such as before the first step "
        "if all decisions are equal.",
    )

    @property
    def start_entropy(self) -> float | None:
        """The mean entropy before the first step; None if no snapshot was taken then."""
        return self.entropy[0] if self.steps[0] == 0 else None

    @model_validator(mode="after")
    def _one_value_per_step(self) -> Self:
        lengths = [len(self.entropy), len(self.lowest_entropy), len(self.shares), len(self.weights)]
        for length in [*lengths, *map(len, self.explained.values())]:
            if length != len(self.steps):
                raise ValueError(
                    f"{self.path} has {length} values for {len(self.steps)} steps, expected a "
                    f"value for each step"
                )
        return self


class Snapshots:
    """Takes snapshots of the decisions of a model on the same few sequences of a task.

    Args:
        task: the data.
        batch_tokens: the largest size of a batch in training, which no snapshot exceeds.
    """

    def __init__(self, task: Task, batch_tokens: int) -> None:
        self.task = task
        self.batch_tokens = batch_tokens

    def __call__(self, model: nn.Module) -> dict[str, dict[str, Any]]:
        """Returns what each system that decides something does: its path to figures by name."""
        by_path: dict[str, list[Observed]] = {}
        for batch, positions in self._batches:
            for observed in observe_batch(model, batch, positions, {}):
                by_path.setdefault(observed.place.path, []).append(observed)
        return {path: _figures(found) for path, found in by_path.items()}

    @cached_property
    def _batches(self) -> list[tuple[dict[str, Tensor], dict[str, Positions]]]:
        """Batches and what stands in them; made in the process that takes snapshots alone."""
        task, part = self.task, self.task.validation
        batches = [
            task.collate([part[index] for index in chosen])
            for chosen in few(part, self.batch_tokens)
        ]
        return [(batch, task.positions(batch)) for batch in batches]


def few(part: Items, batch_tokens: int) -> list[list[int]]:
    """Which items a snapshot looks at: up to 32, spread evenly, that fit in two batches.

    Args:
        part: the items of one part.
        batch_tokens: the largest size of a batch.
    """
    total = len(part.lengths)
    for number in range(min(MOST_SEQUENCES, total), 0, -1):
        chosen = [index * total // number for index in range(number)]
        lengths = [part.lengths[index] for index in chosen]
        batches = list(TokenBudgetSampler(lengths, batch_tokens, shuffle=False))
        if len(batches) <= MOST_BATCHES:
            break
    return [[chosen[index] for index in batch] for batch in batches]


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
        "explained": _explained(found),
    }


def _explained(found: list[Observed]) -> dict[str, float | None]:
    """How much of the decisions each label explains; None of those of a model that diverged."""
    finite = all(bool(observed.weights.isfinite().all()) for observed in found)
    counted = Explained()
    counted.add(found)
    return {
        each.label: None if each.share is None or not finite else round(each.share, _DIGITS)
        for each in counted.result()
    }


def _rounded(values: Tensor) -> list[float]:
    return [round(value, _DIGITS) for value in values.tolist()]
