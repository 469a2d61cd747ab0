"""Standard attention with one mistake: the check that is there for it finds it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.heads.masks import boolean_mask
from headwise.testing import CHECKS, check_system


class Mistaken(hw.MultiHeadAttention):
    """Standard attention, whose output subclasses spoil."""

    def combine(self, heads: Tensor, inputs: Any, state: Any) -> Any:
        joined, _ = super().combine(heads, inputs, state)
        changed = self.spoil(joined, heads, inputs)
        return changed if isinstance(changed, tuple) else (changed, None)

    def spoil(self, joined: Tensor, heads: Tensor, inputs: Any) -> Any:
        return joined


def mistaken(spoil: Callable[..., Any], base: type = Mistaken, **more: Any) -> type:
    return type("Mistaken", (base,), {"spoil": spoil, **more})


def routing(weights: Any, loss: Any = None) -> type:
    def spoil(self, joined, heads, inputs):
        return joined, hw.Routing(torch.tensor(weights), loss=loss)

    return mistaken(spoil)


class WithScale(Mistaken):
    """Has a parameter more."""

    start = staticmethod(torch.ones)
    set_by = staticmethod(lambda scale: nn.init.ones_(scale))

    def __init__(self, embed_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, **options)
        self.scale = nn.Parameter(self.start(embed_dim))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "scale"):
            self.set_by(self.scale)

    def spoil(self, joined: Tensor, heads: Tensor, inputs: Any) -> Tensor:
        return joined * self.scale


def overriding(method: str, change: Callable[..., Any], base: Any = hw.MultiHeadAttention) -> Any:
    """`change(method, *arguments)` in the place of a method, which it is given."""

    def changed(self, *arguments: Any) -> Any:
        return change(partial(getattr(base, method), self), *arguments)

    return type("Mistaken", (base,), {method: changed})


# Reads otherwise than its weights say.
Sharpened = overriding("attend", lambda attend, q, *args: attend(2 * q, *args))
# Leaves out float masks; takes them for boolean ones.
Unbiased = overriding(
    "attend",
    lambda attend, q, k, v, mask, is_causal: attend(
        q, k, v, None if mask is None or mask.is_floating_point() else mask, is_causal
    ),
)
Blocking = overriding(
    "attend",
    lambda attend, q, k, v, mask, is_causal: attend(
        q, k, v, None if mask is None else mask.bool(), is_causal
    ),
)


def hiding(method: Any, *arguments: Any) -> Tensor:
    """Takes float masks for boolean ones, in its weights too."""
    q, k, *v, mask = arguments if len(arguments) == 3 else arguments[:4]
    return method(q, k, *v, None if mask is None else boolean_mask(mask), *arguments[4:])


Hiding = overriding("attend", hiding, overriding("attention_weights", hiding))


def careless(attend: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, is_causal: bool) -> Tensor:
    """0 / 0 where all is hidden; that it is made 0 then does not mend its gradient."""
    if mask is None or mask.dtype == torch.bool:
        return attend(q, k, v, mask, is_causal)
    return (q @ k.mT / q.size(-1) ** 0.5 + mask).softmax(-1).nan_to_num() @ v


Careless = overriding("attend", careless)
# Computes keys by itself, which nobody turns then.
Unturned = overriding("project", lambda project, inputs: project(inputs._replace(rotary=None)))


class Aside(Mistaken):
    """Has numbers that no `state_dict()` holds."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.aside = torch.randn(16).double()

    def spoil(self, joined: Tensor, heads: Tensor, inputs: Any) -> Tensor:
        return joined + self.aside


class Weighing(WithScale):
    """Weighs heads by what it has learned, as it decides."""

    supported_ablations = ("uniform",)
    start = staticmethod(torch.randn)
    set_by = staticmethod(lambda x: nn.init.normal_(x))

    def decided(self, weights: Tensor) -> Tensor:
        return self.ablate_weights(weights)

    def spoil(self, joined: Tensor, heads: Tensor, inputs: Any) -> Any:
        weights = self.scale[:4].softmax(-1)
        return joined * self.decided(weights).repeat_interleave(4), hw.Routing(weights)


def weighing(decided: Callable[..., Tensor]) -> type:
    return type("Mistaken", (Weighing,), {"decided": decided})


def in_training_too(self: Any, weights: Tensor) -> Tensor:
    for ablation in self.ablations:
        weights = ablation.weights(weights)
    return weights


def at_random(self: Any, weights: Tensor) -> Tensor:
    return self.ablate_weights(weights) * (torch.rand(()) if self.ablations else 1)


def nan_of_short(self: Any, joined: Tensor, heads: Tensor, inputs: Any) -> Any:
    weights = torch.ones(*joined.shape[:2], 2)
    if inputs.query_padding is not None:
        weights[(~inputs.query_padding).sum(1) == 2] = float("nan")
    return joined, hw.Routing(weights)


def mean_of_all(self, y, heads, inputs):
    return y + inputs.query.mean(1, keepdim=True)


def routed_by_padding(self, y, heads, inputs):
    return y, hw.Routing(torch.ones(1), loss=inputs.query.square().mean())


with_scale = partial(mistaken, WithScale.spoil, WithScale)
SYSTEMS: list[tuple[str, type, set[str]]] = [
    ("outputs", mistaken(lambda self, y, h, i: y[:, :1]), {"(0, 1, 16)"}),
    ("outputs", routing([0.5, -0.5]), {"routing.weights", "negative"}),
    ("outputs", routing([0.5, float("nan")]), {"decisions", "not finite"}),
    ("outputs", routing([1.0], loss=torch.ones(3)), {"routing.loss"}),
    ("causality", mistaken(mean_of_all), {"decoder_self"}),
    ("padding", mistaken(mean_of_all), {"encoder_self", "padding"}),
    ("padding", mistaken(routed_by_padding), {"loss", "padding"}),
    ("padding", mistaken(nan_of_short), {"decisions", "not finite"}),
    ("decoding", mistaken(lambda self, y, h, i: y + i.query.cumsum(1)), {"decoder_self", "steps"}),
    ("learning", mistaken(Mistaken.spoil, WithScale), {"scale", "zero"}),
    ("learning", Careless, {"q_proj", "not finite", "softmax over keys that are all hidden"}),
    ("copies", Aside, {"copy"}),
    ("outputs", mistaken(lambda self, y, h, i: nn.functional.dropout(y)), {"random"}),
    ("half_precision", mistaken(lambda self, y, h, i: y * torch.ones(1)), {"torch.float32"}),
    ("outputs", Unturned, {"rotary"}),
    ("weights", Unbiased, {"need_weights"}),
    ("weights", Hiding, {"float mask"}),
    ("weights", Blocking, {"need_weights"}),
    ("weights", Sharpened, {"need_weights"}),
    ("resetting", with_scale(set_by=lambda self, x: None), {"scale"}),
    ("resetting", with_scale(set_by=lambda self, x: x.data.fill_(1.0)), {"scale", "torch.nn.init"}),
    (
        "ablations",
        weighing(lambda self, weights: weights),
        {"leave uniform out of supported_ablations"},
    ),
    ("ablations", weighing(in_training_too), {"uniform", "training"}),
    ("ablations", weighing(at_random), {"draws random numbers"}),
]


def test_what_has_no_mistake_passes() -> None:
    check_system(Weighing)
    check_system(with_scale())
    # Not every form of a system has all ablations of its class, or a use of each unit.
    check_system(hw.TIM, competition=False)
    check_system(hw.MoA, num_experts=1, top_k=1)
    check_system(hw.BranchedAttention, top_k=1, leave_out=["learning"])


@pytest.mark.parametrize(("check", "system", "names"), SYSTEMS)
def test_check_system_finds_the_mistake_of_a_users_system(
    check: str, system: type, names: set[str]
) -> None:
    others = [name for name in CHECKS if name != check]
    with pytest.raises(AssertionError) as error:
        check_system(system, leave_out=others)
    assert all(name in str(error.value) for name in (system.__name__, *names))


def test_every_check_has_a_mistake() -> None:
    assert {check for check, _, _ in SYSTEMS} == CHECKS.keys()


def test_checks_that_are_left_out() -> None:
    unread = weighing(lambda self, weights: weights)
    with pytest.raises(ValueError, match=r"ablation, .*ablations"):
        check_system(unread, leave_out=["ablation"])
