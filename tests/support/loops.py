"""The training loop of docs/in-your-model.md, in which the rules of systems are tested."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import headwise as hw


class Trained(NamedTuple):
    """What a loop has used.

    Attributes:
        optimizer: which has taken the steps.
        rates: of each step, the learning rates of the optimizer's groups, by the ids of their
            parameters.
    """

    optimizer: torch.optim.Optimizer
    rates: list[dict[int, float]]


def train(
    model: nn.Module,
    losses_of: Callable[[Any], Iterable[Tensor]],
    batches: Sequence[Any],
    *,
    steps_per_epoch: int | None = None,
    settings: dict[str, Any] | None = None,
    lr: float = 0.01,
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
    scaler: torch.amp.GradScaler | None = None,
    clip: float | None = None,
    seen: Callable[[str], None] = lambda moment: None,
) -> Trained:
    """Trains for a step of each batch.

    Args:
        model: holds systems.
        losses_of: gives the losses of a batch, whose gradients are summed: one, or one for each
            part. A rule may ask for them once more before the step.
        batches: what `losses_of` is given.
        settings, steps_per_epoch: as of `headwise.TrainingRules`.
        optimizer: made of the groups of parameters.
        seen: called with "before" at the beginning of each step, with "gates" when rules have done
            what comes before it, and with "step" when it is complete.
    """
    total_steps = len(batches)
    rules = hw.TrainingRules(model, total_steps, steps_per_epoch=steps_per_epoch, settings=settings)
    attached = rules.attach(optimizer(rules.parameter_groups(lr=lr)))
    rates = []
    for batch in batches:
        seen("before")
        rules.before_step(lambda batch=batch: losses_of(batch))
        seen("gates")
        for loss in losses_of(batch):
            (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.unscale_(attached)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler is None:
            attached.step()
        else:
            scaler.step(attached)
            scaler.update()
        attached.zero_grad()
        rates.append({id(p): g["lr"] for g in attached.param_groups for p in g["params"]})
        seen("step")
    return Trained(attached, rates)


def rule_settings(trainer: type, settings: dict[str, Any]) -> type:
    """A class of transformers' trainers that follows the rules, with these settings of theirs."""
    return type("Ruled", (hw.RulesMixin, trainer), {"rule_settings": settings})
