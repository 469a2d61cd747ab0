"""Block coordinate descent of MAE: gates and experts learn in turn.

Peng et al. 2020, *A Mixture of h − 1 Heads is Better than h Heads*,
https://arxiv.org/abs/2005.06537, section 3, algorithms 1 to 3.

A G step mixes all experts and updates the gates alone; an F step draws one expert for each
sequence (position) and updates everything but the gates. Every batch gets an F step; in every
fifth epoch, counted from the first, a G step goes before it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from headwise.heads.mae import MixtureOfAttentiveExperts, Step
from headwise.models.parameters import gate_parameters, other_parameters
from headwise.ops.replicas import sum_over_replicas
from headwise.training.settings import GateSettings


def gate_step_is_due(settings: GateSettings, step: int, epoch: int) -> bool:
    """Whether a G step goes before the F step of this step (of this epoch), both from 0."""
    if settings.method == "joint":
        return False
    count = epoch if settings.unit == "epochs" else step
    return count % settings.period == 0


def has_experts(model: nn.Module) -> bool:
    """Whether any attention of the model is MAE's, gated or uniform."""
    return any(isinstance(module, MixtureOfAttentiveExperts) for module in model.modules())


@contextmanager
def expert_step(model: nn.Module) -> Iterator[None]:
    """Within it, a forward pass in training draws one expert and leaves the gates fixed."""
    with _step(model, "expert"):
        yield


@contextmanager
def gate_step(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Within it, all experts are mixed and only the gates' parameters, which it gives, learn.

    Gates that are frozen stay so and are not among them.
    """
    frozen = [parameter for parameter in other_parameters(model) if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        with _step(model, "gate"):
            yield [parameter for parameter in gate_parameters(model) if parameter.requires_grad]
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


@torch.no_grad()
def update_gates(parameters: list[nn.Parameter], learning_rate: float) -> None:
    """One step of SGD without momentum, by the gradients of all processes; clears them.

    The paper keeps momentum away from the gates, since with it they settle on few experts.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.sub_(learning_rate * sum_over_replicas(parameter.grad))
            parameter.grad = None


@contextmanager
def _step(model: nn.Module, step: Step) -> Iterator[None]:
    layers = [m for m in model.modules() if isinstance(m, MixtureOfAttentiveExperts)]
    before = [layer.step for layer in layers]
    for layer in layers:
        layer.step = step
    try:
        yield
    finally:
        for layer, previous in zip(layers, before, strict=True):
            layer.step = previous
