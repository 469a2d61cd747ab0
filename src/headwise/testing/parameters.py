"""Checks of the parameters of a system: how they start, learn, are copied and are held in place."""

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from headwise.models.parameters import decayed_parameters
from headwise.testing.subject import (
    BATCH,
    KEYS,
    TIME,
    Subject,
    backward,
    close,
    draw_parameters,
    padding_mask,
    random_input,
)
from headwise.training.rules import training_rules


def check_learning(subject: Subject) -> None:
    module = subject.build(train=True)
    for padding in (None, padding_mask(TIME, 0, 3, time=TIME)):
        module.zero_grad()
        x, memory = random_input(BATCH, TIME).requires_grad_(), random_input(BATCH, KEYS)
        keys = None if padding is None else padding_mask(KEYS, 0, 2, time=KEYS)
        backward(subject.call(module, x, memory, padding, keys))
        for name, parameter in [("query", x), *module.named_parameters()]:
            if not parameter.requires_grad or not parameter.numel():
                continue
            gradient = parameter.grad
            subject.expect(
                gradient is not None,
                f"{name} gets no gradient",
                "use it for an output, or say requires_grad_(False)",
            )
            assert gradient is not None
            subject.expect(
                gradient.isfinite().all(),
                f"the gradient of {name} is not finite"
                + ("" if padding is None else " where a sequence is nothing but padding"),
                "look for a division, a logarithm or a root of 0, also one that where() hides",
            )
            # A bias of the keys adds the same to all logits of a query.
            subject.expect(
                gradient.any() or name.endswith("k_proj.bias"),
                f"the gradient of {name} is zero throughout",
                "look for a detach(), an argmax or a comparison between it and the output",
            )


def check_resetting(subject: Subject) -> None:
    with torch.device("meta"):
        module = subject.system.from_plan(subject.place, **subject.options)
    module.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
    module.reset_parameters()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        subject.expect(
            tensor.isfinite().all(),
            f"reset_parameters() does not set {name}",
            "a model that is built without memory, then filled, would keep what was there",
        )
    draw_parameters(module)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    drawing = (name for name in vars(nn.init) if name.endswith("_") and name[0] != "_")
    idle: dict[str, Any] = dict.fromkeys(drawing, _leave)
    with patch.multiple(nn.init, **idle):
        module.reset_parameters()
    for name, tensor in module.state_dict().items():
        subject.expect(
            torch.equal(tensor, before[name]),
            f"reset_parameters() sets {name} by other means than torch.nn.init",
            "call nn.init.ones_(...) and so on: from_pretrained knows how to keep these from what "
            "it has loaded, and nothing else",
        )


def _leave(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    return tensor


def check_copies(subject: Subject) -> None:
    module, other = subject.build(), subject.build()
    other.load_state_dict(module.state_dict())
    x, memory = random_input(BATCH, TIME), random_input(BATCH, KEYS)
    subject.expect(
        close(subject.call(other, x, memory).output, subject.call(module, x, memory).output),
        "a module with the same state_dict() gives another output",
        "make what the output depends on a parameter or a buffer",
    )


def check_decay(subject: Subject) -> None:
    module = subject.build(randomize=False)
    decayed = {id(parameter) for parameter in decayed_parameters(module)}
    for name, parameter in module.named_parameters():
        if id(parameter) not in decayed or not parameter.numel():
            continue
        start = parameter.flatten()[0]
        is_scale = bool(start != 0) and torch.equal(parameter, start.expand_as(parameter))
        subject.expect(
            not is_scale,
            f"{name} starts as {start.item():g} throughout, and weight decay pulls it to 0",
            f"name it in no_decay = ({name!r},), or leave this check out if it is a matrix: "
            "check_system(..., leave_out=('decay',))",
        )


def check_rule(subject: Subject) -> None:
    module = subject.build(train=True, randomize=False)
    # Equal shares of a vector are nearly always meant; what is drawn may be so by chance once.
    other = dict(subject.build(randomize=False).named_parameters())
    held = [
        name
        for name, parameter in module.named_parameters()
        if (_are_equal_shares(parameter) or not torch.equal(parameter, other[name]))
        and _is_on_simplex(parameter)
        and _is_on_simplex(other[name])
    ]
    rules = training_rules(module, total_steps=10)
    optimizer = torch.optim.SGD(rules.parameter_groups(lr=0.1), lr=0.1)
    x, memory = random_input(BATCH, TIME), random_input(BATCH, KEYS)
    target = random_input(BATCH, TIME)

    def loss() -> Tensor:
        out = subject.call(module, x, memory)
        total = (out.output - target).square().mean()
        extra = None if out.routing is None else out.routing.loss
        return total if extra is None else total + extra

    for _ in range(2):
        rules.before_step(loss)
        with rules.step(optimizer):
            loss().backward()
        optimizer.step()
        rules.after_step()
        optimizer.zero_grad()
    for name in held:
        subject.expect(
            _is_on_simplex(module.get_parameter(name)),
            f"{name} starts on the simplex, and a step of training takes it away",
            "declare a rule of training whose after_update puts it back (rule = MyRule, see "
            "headwise.systems.Rule), or compute it from parameters that may be anything; if it "
            "need not stay so, leave this check out: check_system(..., leave_out=('rule',))",
        )


def _is_on_simplex(parameter: Tensor) -> bool:
    """Whether all rows are not negative and sum to 1, as no plain optimizer would keep them."""
    if parameter.dim() < 1 or parameter.size(-1) < 2:
        return False
    sums = parameter.detach().sum(-1)
    return bool((parameter >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-5)


def _are_equal_shares(parameter: Tensor) -> bool:
    size = parameter.numel()
    return parameter.dim() == 1 and size > 1 and bool((parameter == 1 / size).all())
