"""Says so, once, when systems are trained without their rule of training or without their loss.

PyTorch calls a hook after each step of any optimizer. By then it is known which parameters have
been trained, and whether a gradient has come to the losses.
"""

import warnings
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

if TYPE_CHECKING:
    from headwise.heads.system import System

# All that there are: a compiled forward pass could not say which have run.
watched: "WeakSet[System]" = WeakSet()
_steps = 0


class UntrainedRuleWarning(UserWarning):
    """A system is trained without the rule of training that it declares, or by half of it."""


class UnreadLossWarning(UserWarning):
    """A system is trained without the loss that it adds."""


def optimizer_steps() -> int:
    """How many steps optimizers have taken in this process."""
    return _steps


# The decorator of PyTorch's own optimizers. `torch.compiler.disable` would import the compiler now.
@torch._disable_dynamo
def _after_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    global _steps
    _steps += 1
    without_rule, without_loss = [], []
    for system in list(watched):
        system.losses.release_compiled()
        if not system.training:
            continue
        if system.rule is not None and not (system.follows_rule or system.warned_of_rule):
            without_rule.append(system)
        if system.losses.is_due and not system.losses.is_settled:
            without_loss.append(system)
    if not without_rule and not without_loss:
        return
    groups = optimizer.param_groups
    stepped = {id(p) for group in groups for p in group["params"] if p.grad is not None}
    trained = [s for s in without_rule if _is_trained(s, stepped) and _decides_by_learning(s)]
    for kind, name in _kinds(trained).items():
        assert kind.rule is not None
        warnings.warn(
            f"{name} is trained without its rule ({kind.rule.__name__}), which its paper asks "
            f"for: use headwise.training_rules(model) in your loop, headwise.RulesMixin with "
            f"transformers' Trainer, or filter this warning if you mean it",
            UntrainedRuleWarning,
            stacklevel=5,
        )
    for system in trained:
        system.warned_of_rule = True
    trained = [s for s in without_loss if _is_trained(s, stepped) and s.losses.matter()]
    for name in _kinds(trained).values():
        warnings.warn(
            f"{name} adds a loss, and no gradient has come to it, so it is trained without: add "
            f"headwise.auxiliary_loss(model) to your loss before backward(), or filter this "
            f"warning if you mean it. Reentrant checkpoints (use_reentrant=True) take the gradient "
            f"away; where compiled code adds routing.loss by itself, nothing can be seen of it",
            UnreadLossWarning,
            stacklevel=5,
        )
    for system in trained:
        system.losses.is_settled = True


def _is_trained(system: "System", stepped: set[int]) -> bool:
    return any(id(parameter) in stepped for parameter in system.parameters())


def _decides_by_learning(system: "System") -> bool:
    """Whether what its rule is about may learn; frozen gates follow no rule."""
    routing = system.routing_parameters
    named = system.named_parameters()
    return any(p.requires_grad for name, p in named if not routing or name.startswith(routing))


def _kinds(systems: "list[System]") -> "dict[type[System], str]":
    return {type(system): type(system).__name__ for system in systems}


register_optimizer_step_post_hook(_after_step)
