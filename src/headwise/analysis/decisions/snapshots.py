"""What a run keeps of its model's decisions: snapshots over the training, and a record at its end.

A snapshot is made of one or two forward passes over the same few sequences. A run has them in its
log, and its result holds them as a `DecisionCourse` for each place.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.analysis.decisions.entropy import Entropy, ModuleEntropy
from headwise.analysis.decisions.explained import Explained
from headwise.analysis.decisions.load import Load, LoadRecord
from headwise.analysis.decisions.observing import Observed, Where, observe_batch
from headwise.analysis.decisions.places import places_of
from headwise.heads.attention import MultiHeadAttention
from headwise.tasks.scores import Record
from headwise.tasks.task import Positions, Task
from headwise.training.batches import Items, token_batches

MOST_SEQUENCES, MOST_BATCHES = 32, 2
LOWEST = 0.1  # the quantile of the entropies that is kept beside their mean
_DIGITS = 5  # behind the point, so that a snapshot stays small


class DecisionCourse(Where):
    """How the decisions of one system moved over the training."""

    uniform: float  # the entropy if all units, or all chosen ones, had equal weights, in nats
    steps: list[int]  # the steps after which snapshots were taken, ascending
    entropy: list[float]  # mean entropy of the weights at each step, in nats
    lowest_entropy: list[float]  # 10th percentile of the entropies at each step, in nats
    # Each unit's share of the work, see `Words.share`, by step.
    shares: list[list[float]]
    weights: list[list[float]]  # each unit's mean weight, by step
    # Name of a label to how much of the decisions it explains, ε² of `ExplainedShare`, by
    # step; None where that is not defined, such as before the first step if all decisions are
    # equal.
    explained: dict[str, list[float | None]] = Field(default={})

    @property
    def start_entropy(self) -> float | None:
        """The mean entropy before the first step; None if no snapshot was taken then."""
        return self.entropy[0] if self.steps[0] == 0 else None


class AttentionRecord(Record):
    """What the heads of one system did on the held-out data.

    "Experts" stands for whatever the system's decision is about; the system's words, in
    `RunResult.words`, name it.
    """

    site: str  # the site: encoder_self, decoder_self or decoder_cross
    layer: int  # the layer, counted from 0
    system: str  # the system's name in plans, a key of `RunResult.words`
    whole_layer: bool  # whether the system takes the place of a layer
    experts: int  # how many experts there are
    entropy: float  # mean of -Σ g ln g over sequences or tokens, in nats
    # Each expert's share of the work, see `Words.share`; the shares sum to 1.
    load: list[float]
    # The entropy if all experts, or all chosen ones, had equal weights: ln of their number.
    uniform: float
    # Percentiles of the entropies whose mean is `entropy`: percent to nats.
    entropy_percentiles: dict[int, float]
    # The mean entropy before the first step, from the snapshots of the run: what of `entropy`
    # is the draw of the weights and not learned. None without snapshots.
    start_entropy: float | None = None


class Snapshots:
    """Takes snapshots of the decisions of a model on the same few sequences of a task."""

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
        task, part = self.task, self.task.parts["validation"]
        batches = [
            task.collate([part[index] for index in chosen])
            for chosen in few(part, self.batch_tokens)
        ]
        return [(batch, task.describe(batch)) for batch in batches]


def few(part: Items, batch_tokens: int) -> list[list[int]]:
    """Which items a snapshot looks at: up to 32, spread evenly, that fit in two batches."""
    total = len(part.lengths)
    for number in range(min(MOST_SEQUENCES, total), 0, -1):
        chosen = [index * total // number for index in range(number)]
        lengths = np.asarray(part.lengths)[chosen]
        batches = token_batches(lengths, batch_tokens)
        if len(batches) <= MOST_BATCHES:
            break
    return [[chosen[index] for index in batch] for batch in batches]


def decides(model: nn.Module) -> bool:
    """Whether a model holds any system other than standard attention, which decides nothing."""
    return any(type(place.module) is not MultiHeadAttention for place in places_of(model))


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


def record_attention(
    model: PreTrainedModel,
    batches: Iterable[dict[str, Tensor]],
    snapshots: Iterable[DecisionCourse] = (),
) -> list[AttentionRecord]:
    """Runs a model on batches and returns what its systems of heads decide, padding left out."""
    entropy, load = Entropy(), Load()
    model.eval()
    for batch in batches:
        observed = observe_batch(model, batch, {}, {})
        entropy.add(observed)
        load.add(observed)
    entropies = entropy.result()
    if entropies is None:
        return []
    starts = {course.path: course.start_entropy for course in snapshots}
    return [
        _record(entropy, load, starts.get(entropy.where.path))
        for entropy, load in zip(entropies.modules, load.result(), strict=True)
    ]


def _record(entropy: ModuleEntropy, load: LoadRecord, start: float | None) -> AttentionRecord:
    where = entropy.where
    return AttentionRecord(
        site=where.site,
        layer=where.layer,
        system=where.system,
        whole_layer=where.whole_layer,
        experts=entropy.units,
        entropy=entropy.spread.mean.value,
        load=load.share.shares,
        uniform=entropy.spread.uniform,
        entropy_percentiles=entropy.spread.percentiles,
        start_entropy=start,
    )


def relative_entropy(courses: Sequence[DecisionCourse]) -> dict[int, float]:
    """Returns the entropy by step, divided by that of equal weights: the mean over the places.

    Places that always have a single unit to choose are left out, and so are steps at which a figure
    is not finite, as in a run that diverges.
    """
    by_step: dict[int, list[float]] = {}
    for course in courses:
        if course.uniform > 0:
            for step, entropy in zip(course.steps, course.entropy, strict=True):
                by_step.setdefault(step, []).append(entropy / course.uniform)
    means = {step: fmean(found) for step, found in sorted(by_step.items())}
    return {step: mean for step, mean in means.items() if math.isfinite(mean)}
