"""Block coordinate descent, by which MAE trains (section 3): gates and experts learn in turn.

A G step mixes all experts and updates the gates alone; an F step draws one expert for each
training instance and updates everything but the gates. Every batch gets an F step; in every fifth
epoch, counted from the first, a G step goes before it.

Where all but the gates are frozen (the paper's FTG, section 5.2), every step is a G step. Where
gates are frozen, there are no G steps, and F steps draw from the gates as they are.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from headwise.heads.rule import Losses, Moment, Rule, RuleSettings
from headwise.heads.watching import UntrainedRuleWarning
from headwise.ops.replicas import is_sharded, mean_over_replicas

# How a layer computes in training; an F step draws experts in one of two ways.
Step = Literal["joint", "gate", "expert", "expert by position"]


class GateSettings(RuleSettings):
    """How MAE's gates and experts take turns (section 3 of the MAE paper)."""

    method: Literal["block-coordinate-descent", "joint", "optimizer"] = "block-coordinate-descent"
    """Whether gates and experts learn in turn, by G and F steps, or everything learns together: the
    gates by their own SGD (joint, the paper's NOBCD), or by the optimizer of all other parameters,
    at its learning rate (optimizer). G steps train the gates, F steps everything else."""
    period: int = Field(5, ge=1, le=1_000_000)
    """G steps are taken in every `period`-th epoch (or step, see unit), one before each F step."""
    unit: Literal["epochs", "steps"] = "epochs"
    """What the period counts. If the number of steps of an epoch is unknown, steps are counted."""
    learning_rate: float = Field(1.0, gt=0, le=1000)
    """Learning rate of the gates' SGD, which has no momentum."""
    draw: Literal["instance", "position"] = "instance"
    """What an F step draws an expert for: each training instance (algorithm 2), or each position
    that has a gate of its own, which causal attentions have."""


class BlockCoordinateDescent(Rule):
    """Takes the G steps, makes the others F steps, and moves the gates, which no optimizer has."""

    settings_class = GateSettings
    settings: GateSettings

    @property
    def gates(self) -> list[nn.Parameter]:
        gates = (layer.gate for layer in self.layers if layer.gate is not None)
        return [parameter for gate in gates for parameter in gate.parameters()]

    @property
    def _takes_turns(self) -> bool:
        """Whether F steps are taken: they need something to learn beside the gates."""
        if self.settings.method != "block-coordinate-descent":
            return False
        gates = {id(gate) for gate in self.gates}
        return any(p.requires_grad for p in self.model.parameters() if id(p) not in gates)

    @property
    def _has_gate_steps(self) -> bool:
        """Whether gates learn in G steps: an F step leaves them without gradients."""
        return self._takes_turns and any(gate.requires_grad for gate in self.gates)

    leaves_out_gradients = steps_before = _has_gate_steps

    def without_optimizer(self) -> list[nn.Parameter]:
        return [] if self.settings.method == "optimizer" else self.gates

    def before_step(self, moment: Moment, losses: Losses) -> None:
        """The G step, if one is due and any gate learns."""
        if not self._has_gate_steps or not gate_step_is_due(self.settings, moment):
            return
        with gate_step(self.model, self.layers, self.gates) as learning:
            for gate in learning:
                gate.grad = None  # of a G step that failed: these gates are in no optimizer
            for loss in losses():
                if not loss.requires_grad:
                    continue  # no gate is in its graph
                if any(is_sharded(gate) for gate in learning):
                    loss.backward()  # sharded parameters are not in the graph themselves
                    continue
                # Without backward(), whose hooks would have a data-parallel wrapper wait for
                # gradients of the gates in the F step that follows.
                gradients = torch.autograd.grad(loss, learning, allow_unused=True)
                for gate, gradient in zip(learning, gradients, strict=True):
                    if gradient is not None:
                        gate.grad = gradient if gate.grad is None else gate.grad + gradient
            self._warn_of_gates_without_gradients()
            update_gates(learning, self.settings.learning_rate)

    def _warn_of_gates_without_gradients(self) -> None:
        """Warns of layers that the G step has called, but with gradients off."""
        for path, layer in self.systems.items():
            if layer.gate is None or layer.warned_of_rule or not layer.passes.last:
                continue
            gates = [gate for gate in layer.gate.parameters() if gate.requires_grad]
            _, facts = layer.passes.last[0]
            blind = facts.get("step") == "gate" and not facts.get("moves", True)
            if blind and gates and all(gate.grad is None for gate in gates):
                layer.warned_of_rule = True
                warnings.warn(
                    f"the gates of {path or 'the model'} learn nothing in this G step: gradients "
                    f"were off while the loss was computed, as they are in torch.utils.checkpoint "
                    f"with use_reentrant=True; give it use_reentrant=False",
                    UntrainedRuleWarning,
                    stacklevel=5,
                )

    def around_step(self) -> AbstractContextManager[Any]:
        if not self._takes_turns:
            return nullcontext()
        by_instance = self.settings.draw == "instance"
        return computing(self.layers, "expert" if by_instance else "expert by position")

    def before_update(self, moment: Moment) -> None:
        if not self._takes_turns and self.settings.method != "optimizer":
            # The step has been a joint one, or a G step where all but the gates are frozen. Every
            # process holds the same mean gradient already, whose mean it is.
            update_gates(self.gates, self.settings.learning_rate)

    def extra_seconds(self, measure: Callable[[], float]) -> float:
        """The share of a G step's time that the schedule asks for."""
        if not self._takes_turns:
            return 0.0
        with gate_step(self.model, self.layers, self.gates) as learning:
            return measure() / self.settings.period if learning else 0.0


def gate_step_is_due(settings: GateSettings, moment: Moment) -> bool:
    """Whether a G step goes before the F step of this moment."""
    count = moment.epoch
    if settings.unit == "steps" or count is None:
        count = moment.step
    return settings.method == "block-coordinate-descent" and count % settings.period == 0


@contextmanager
def gate_step(
    model: nn.Module, layers: Iterable[Any], gates: Iterable[nn.Parameter]
) -> Iterator[list[nn.Parameter]]:
    """While this context is open, all experts are mixed and only the gates learn.

    It yields the gates' parameters. Gates that are frozen stay so and are not among them.
    """
    of_gates = {id(gate) for gate in gates}
    with ExitStack() as frozen, computing(layers, "gate"):
        for parameter in model.parameters():
            if parameter.requires_grad and id(parameter) not in of_gates:
                frozen.callback(parameter.requires_grad_, True)
                parameter.requires_grad_(False)
        yield [gate for gate in gates if gate.requires_grad]


@torch.no_grad()
def update_gates(gates: Iterable[nn.Parameter], learning_rate: float) -> None:
    """One step of SGD without momentum, by the mean of all processes' gradients; clears these.

    The paper keeps momentum away from the gates, since with it they settle on few experts.
    """
    for gate in gates:
        if gate.grad is not None:
            gate.sub_(learning_rate * mean_over_replicas(gate.grad))
            gate.grad = None


@contextmanager
def computing(layers: Iterable[Any], step: Step) -> Iterator[None]:
    """While this context is open, the layers compute as in that kind of step."""
    with ExitStack() as stack:
        for layer in layers:
            stack.callback(setattr, layer, "step", layer.step)
            layer.step = step
        yield
