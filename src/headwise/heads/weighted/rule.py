"""How the Weighted Transformer trains κ and α (sections 3 and 4.1 of its paper).

After each optimizer step κ and α are projected back onto the simplex, unless a layer has them as a
softmax; then what follows holds for its logits. They have a learning rate of their own,
(d/N)^-0.5 · min(s^-0.5, s · 400^-1.5) at step s in a model of N layers, and do not change in the
last steps, while the rest goes on learning.

The other parameters have d^-0.5 · min(s^-0.5, s · 4000^-1.5) there: κ and α warm up in a tenth of
their steps, to √(10N) times their peak.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pydantic import Field
from torch import nn

from headwise.heads.rule import Moment, Rule, RuleSettings
from headwise.ops.replicas import assign, whole
from headwise.ops.simplex import project_to_simplex
from headwise.settings import MOST_STEPS


class BranchSettings(RuleSettings):
    """How the Weighted Transformer's κ and α learn (section 4.1 of its paper)."""

    learning_rate: float | None = Field(None, gt=0, le=1000)
    """Learning rate of κ and α at the end of their warm-up; by default (d/N)^-0.5 ·
    warmup_steps^-0.5."""
    warmup_steps: int = Field(400, ge=1, le=MOST_STEPS)
    """How many steps this learning rate rises from zero; then it falls with the inverse square root
    of the step."""
    warmup_share: float | None = Field(None, gt=0, le=10)
    """In place of the two: κ and α rise in so large a part of the other parameters' warm-up, to √(N
    / warmup_share) times the peak of their learning rate. The paper's own schedules are in that
    proportion with 0.1. Where that warm-up is not known, the two hold."""
    freeze_last: int | None = Field(None, ge=0, le=MOST_STEPS)
    """Number of steps at the end of the training in which κ and α stay fixed. By default it is a
    sixth of all steps."""

    def check(self, total_steps: int) -> None:
        frozen_steps(self, total_steps)


class BranchesOnSimplex(Rule):
    """Keeps κ and α on the simplex, gives them their learning rate, and freezes them at the end."""

    settings_class = BranchSettings
    settings: BranchSettings

    def __init__(self, model: nn.Module, systems: Mapping[str, Any], settings: Any) -> None:
        super().__init__(model, systems, settings)
        # The model may stand in another module, such as Lightning's.
        parts = next(iter(systems)).split(".")
        around = (model.get_submodule(".".join(parts[:i])) for i in range(len(parts)))
        depths = (getattr(getattr(m, "config", None), "num_hidden_layers", None) for m in around)
        self.depth = next(filter(None, depths), len(self.layers))

    def own_group(self) -> list[nn.Parameter]:
        return learning(self.layers)

    def learning_rate(self, moment: Moment) -> float:
        frozen = frozen_steps(self.settings, moment.total_steps)
        warmup = warmup_of(self.settings, moment)
        peak = peak_learning_rate(self.settings, moment, self.layers[0].embed_dim, self.depth)
        return peak * learning_rate_factor(moment.step, warmup, moment.total_steps, frozen)

    def before_update(self, moment: Moment) -> None:
        if self._is_frozen(moment):
            # Without gradients they count in no norm to clip, and Adam leaves them as they are.
            for weights in learning(self.layers):
                weights.grad = None

    @torch.no_grad()
    def after_update(self, moment: Moment) -> None:
        if not self._is_frozen(moment):
            for weights in learning(layer for layer in self.layers if layer.weights == "simplex"):
                assign(weights, project_to_simplex(whole(weights)))

    def last_phase(self, total_steps: int) -> int:
        return frozen_steps(self.settings, total_steps)

    def record(self) -> dict[str, dict[str, list[float]]]:
        found = {}
        for path, layer in self.systems.items():
            if layer.learned_weights():
                kappa, alpha = layer.branch_weights()
                found[path] = {"kappa": whole(kappa).tolist(), "alpha": whole(alpha).tolist()}
        return found

    def _is_frozen(self, moment: Moment) -> bool:
        frozen = frozen_steps(self.settings, moment.total_steps)
        return moment.step >= moment.total_steps - frozen


def learning(layers: Iterable[Any]) -> list[nn.Parameter]:
    """The κ and α that layers learn."""
    return [w for layer in layers for w in layer.learned_weights() if w.requires_grad]


def warmup_of(settings: BranchSettings, moment: Moment) -> int:
    """In how many steps the learning rate of κ and α rises.

    >>> warmup_of(BranchSettings(warmup_share=0.1), Moment(0, 60_000, warmup_steps=4000))
    400
    """
    if settings.warmup_share is not None and moment.warmup_steps:
        return max(1, round(settings.warmup_share * moment.warmup_steps))
    return settings.warmup_steps


def peak_learning_rate(
    settings: BranchSettings, moment: Moment, embed_dim: int, num_layers: int
) -> float:
    """The learning rate of κ and α at the end of their warm-up.

    >>> moment = Moment(0, 60_000, peak_rate=512**-0.5 * 4000**-0.5, warmup_steps=4000)
    >>> in_proportion = BranchSettings(warmup_share=0.1)
    >>> for settings in (BranchSettings(), in_proportion):
    ...     print(round(peak_learning_rate(settings, moment, embed_dim=512, num_layers=6), 5))
    0.00541
    0.00541
    """
    if settings.warmup_share is not None and moment.warmup_steps and moment.peak_rate is not None:
        return float((num_layers / settings.warmup_share) ** 0.5 * moment.peak_rate)
    if settings.learning_rate is not None:
        return settings.learning_rate
    return float((embed_dim / num_layers) ** -0.5 * settings.warmup_steps**-0.5)


def learning_rate_factor(step: int, warmup: int, total: int, freeze_last: int) -> float:
    """What the peak learning rate is multiplied by in a step, counted from 0.

    >>> [learning_rate_factor(s, 4, total=20, freeze_last=3) for s in (0, 3, 15, 16, 17)]
    [0.25, 1.0, 0.5, 0.48507125007266594, 0.0]
    """
    if step >= total - freeze_last:
        return 0.0
    step += 1
    return min((warmup / step) ** 0.5, step / warmup)


def frozen_steps(settings: BranchSettings, total: int) -> int:
    """In how many steps at the end of a training of `total` steps κ and α stay fixed.

    >>> frozen_steps(BranchSettings(), 60_000)
    10000
    """
    if settings.freeze_last is None:
        return total // 6
    if settings.freeze_last > total:
        raise ValueError(
            f"freeze_last is {settings.freeze_last}, but the training has {total} steps: give at "
            f"most that, or leave it out for a sixth of the steps"
        )
    return settings.freeze_last
