"""Planted mistakes: each law, and each check of a system, finds the one that it is there for."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.testing import CHECKS, Batch, Seen, check_system, laws


class Averaging(nn.Module):
    """Each position averages what it sees: all that the laws ask for, until it is spoilt."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh = nn.Linear(4, 4).double()
        self.register_buffer("running", torch.zeros(4, dtype=torch.float64))

    def sees(self, time: int, keys: int, padding: Any, mask: Any) -> Tensor:
        sees = torch.ones(1, time, keys).tril(keys - time) > 0
        sees = sees if padding is None else sees & ~padding.unsqueeze(1)
        return sees if mask is None else sees & ~mask

    def extend(self, x: Tensor, cache: Any) -> Tensor:
        return x if cache is None else cache.extend(x, x)[0]

    def finish(self, seen: Seen, x: Tensor, real: Tensor) -> Seen:
        return seen

    def forward(self, x: Tensor, padding: Any, mask: Any, cache: Any) -> Seen:
        past = self.extend(x.unsqueeze(1), cache).squeeze(1)
        sees = self.sees(x.size(1), past.size(1), padding, mask).to(x)
        mean = sees @ past / sees.sum(-1, keepdim=True).clamp(min=1)
        weights = self.weigh(mean).softmax(-1)
        real = torch.ones(*x.shape[:2], 1).to(x)
        real = real if padding is None else real * ~padding[:, -x.size(1) :, None]
        number = real.sum().clamp(min=1)
        loss = (mean.square() * real).sum() / number
        if self.training:
            self.running.lerp_((mean.detach() * real).sum((0, 1)) / number, 0.1)
        return self.finish(Seen(x + weights * mean, [weights], loss), x, real)


class Toy:
    """It as a subject."""

    causal = True

    def __init__(self, module: Any) -> None:
        self.module = module

    def draw(self, rows: int, time: int, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        return Batch(torch.randn(rows, time, 4, generator=generator, dtype=torch.float64))

    def __call__(self, batch: Batch, *, padding=None, mask=None, cache=None) -> Seen:
        return self.module(batch.sequence, padding, mask, cache)

    def new_cache(self) -> hw.AttentionCache:
        return hw.AttentionCache()


def spoilt(base: type[Averaging] = Averaging, **methods: Callable[..., Any]) -> type[Averaging]:
    return type("Spoilt", (base,), methods)


def output(change: Callable[..., Any], base: Any = Averaging, part: str = "output") -> type[Any]:
    """`change(module, output, x, real)` is the output, or another part of what is seen."""

    def finish(self, seen, x, real):
        return seen._replace(**{part: change(self, getattr(seen, part), x, real)})

    return spoilt(base, finish=finish)


loss = partial(output, part="loss")


def counts_padding(self, seen, x, real):
    if self.training:
        self.running.add_(x.detach().mean((0, 1)))
    return seen


def keeps_seeing(self, time, keys, padding, mask):
    return Averaging.sees(self, time, keys, padding, None)


def forgets(self, x, cache):
    return x if cache is None else Averaging.extend(self, x[:, :, -1:], cache)


class Unordered(Averaging):
    """Remembers a sum where beam search does not see it."""

    def forward(self, x: Tensor, padding: Any, mask: Any, cache: Any) -> Seen:
        total = x.cumsum(1)
        if cache is not None:
            total = total + getattr(cache, "total", 0)
            cache.total = total[:1, -1:]
        seen = super().forward(x, padding, mask, cache)
        return seen._replace(output=seen.output + total)


class Hidden(Averaging):
    """Has a number that no `state_dict()` holds."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = float(torch.rand(()))

    def finish(self, seen: Seen, x: Tensor, real: Tensor) -> Seen:
        return seen._replace(output=self.factor * seen.output)


def loaded(module: nn.Module) -> nn.Module:
    other = type(module)()
    other.load_state_dict(module.state_dict())
    return other


class Frozen(Averaging):
    """Has a parameter that does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh.bias.requires_grad_(False)


def thaws(self, y, x, real):
    self.weigh.bias.requires_grad_(True)
    return y + self.weigh.bias


def unseen(x: Tensor) -> Tensor:
    """Nothing, with a gradient."""
    return (x - x.detach()).sum()


PADDING = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]]) > 0
PROMPT = torch.tensor([[0, 0], [1, 0], [1, 1]]) > 0
MASK = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 0]]) > 0
LAWS: dict[str, Callable[[Any], None]] = {
    "padding": partial(laws.padding_changes_nothing, padding=PADDING),
    "future": laws.hidden_changes_nothing,
    "mask": partial(laws.hidden_changes_nothing, mask=MASK, time=3),
    "steps": laws.steps_equal_one_pass,
    "prompt": partial(laws.steps_equal_one_pass, padding=PROMPT),
    "state dict": partial(laws.copies_are_their_own, how=loaded),
    "copy": laws.copies_are_their_own,
    "learning": laws.every_weight_learns,
    "evaluation": laws.evaluation_draws_nothing,
    "precision": laws.half_precision_is_near,
    "nothing": laws.empty_is_empty,
}
MISTAKES: list[tuple[str, type[Averaging], str]] = [
    ("padding", output(lambda self, y, x, real: y + x.cumsum(1)), "row 1"),
    ("padding", output(lambda self, y, x, real: y + x.mean((0, 1))), "row 0"),
    ("padding", output(lambda self, y, x, real: y / real), "finite"),
    ("padding", loss(lambda self, loss, x, real: x.square().mean()), "loss"),
    ("padding", loss(lambda self, loss, x, real: loss * real.numel()), "loss"),
    ("padding", spoilt(finish=counts_padding), "running"),
    ("padding", output(lambda self, y, x, real: y + unseen(x * (1 - real))), "gradient"),
    ("padding", output(lambda self, y, x, real: y + unseen(self.weigh(x) * (1 - real))), "weigh"),
    ("future", output(lambda self, y, x, real: y + x.mean(1, keepdim=True)), "position 1"),
    ("future", output(lambda self, y, x, real: y + x[:, -1:] * self.training), "training"),
    ("mask", spoilt(sees=keeps_seeing), "position 0"),
    ("steps", spoilt(extend=forgets), "read 3"),
    ("steps", Unordered, "reorder"),
    ("prompt", output(lambda self, y, x, real: y + real.mean()), "read"),
    ("state dict", Hidden, "copy"),
    ("copy", spoilt(__deepcopy__=lambda self, _: copy.copy(self)), "copy"),
    ("learning", output(lambda self, y, x, real: x + self.weigh.weight[0]), "weigh.bias"),
    ("learning", output(lambda self, y, x, real: y / (x > 9)), "finite"),
    ("learning", output(thaws, Frozen), "weigh.bias"),
    ("evaluation", output(lambda self, y, x, real: nn.functional.dropout(y)), "random"),
    ("evaluation", output(lambda self, y, x, real: y + self.running.add_(1.0)), "running"),
    ("precision", output(lambda self, y, x, real: y.float()), "float32"),
    ("precision", output(lambda self, y, x, real: (y * 1e20).square() / 1e40), "finite"),
    ("precision", output(lambda self, y, x, real: (y + 100) - 100), "off"),
    ("nothing", output(lambda self, y, x, real: y[:, :1]), "0 rows of 4"),
    ("nothing", output(lambda self, y, x, real: y + 0 * x / (x.size(1) - 1)), "finite"),
]


@pytest.mark.parametrize("law", LAWS)
def test_what_keeps_a_law_passes(law: str) -> None:
    LAWS[law](Toy(Averaging()))
    LAWS[law](Toy(Frozen()))


@pytest.mark.parametrize(("law", "kind", "names"), MISTAKES)
def test_a_law_finds_its_mistake(law: str, kind: type[Averaging], names: str) -> None:
    with pytest.raises(AssertionError) as error:
        LAWS[law](Toy(kind()))
    assert names in str(error.value)


# What follows is of systems: standard attention with one mistake.


class Mistaken(hw.MultiHeadAttention):
    """Standard attention, whose output subclasses spoil."""

    def combine(self, heads: Tensor, inputs: Any, choice: Any) -> Any:
        joined, _ = super().combine(heads, inputs, choice)
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
Sharpened = overriding("attend", lambda attend, q, *others: attend(2 * q, *others))
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


def careless(attend: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, is_causal: bool) -> Tensor:
    """0 / 0 where all is hidden; that it is made 0 then does not mend its gradient."""
    if mask is None or mask.dtype == torch.bool:
        return attend(q, k, v, mask, is_causal)
    return (q @ k.mT / q.size(-1) ** 0.5 + mask).softmax(-1).nan_to_num() @ v


Careless = overriding("attend", careless)
# Computes keys by itself, which nobody turns then.
Unturned = overriding("project", lambda project, given: project(given._replace(rotary=None)))


class Aside(Mistaken):
    """Has numbers that no `state_dict()` holds."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.aside = torch.randn(16).double()

    def spoil(self, joined: Tensor, heads: Tensor, inputs: Any) -> Tensor:
        return joined + self.aside


class Weighing(WithScale):
    """Weighs heads by what it has learned, as it decides."""

    edits = ("uniform",)
    start = staticmethod(torch.randn)
    set_by = staticmethod(lambda x: nn.init.normal_(x))

    def decided(self, weights: Tensor) -> Tensor:
        return self.decide(weights)

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
    return self.decide(weights) * (torch.rand(()) if self.ablations else 1)


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
    ("outputs", mistaken(lambda self, y, h, i: y[:, :1]), {"(3, 1, 16)"}),
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
    ("weights", Blocking, {"need_weights"}),
    ("weights", Sharpened, {"need_weights"}),
    ("resetting", with_scale(set_by=lambda self, x: None), {"scale"}),
    ("resetting", with_scale(set_by=lambda self, x: x.data.fill_(1.0)), {"scale", "torch.nn.init"}),
    ("ablations", weighing(lambda self, weights: weights), {"leave uniform out of edits"}),
    ("ablations", weighing(in_training_too), {"uniform", "training"}),
    ("ablations", weighing(at_random), {"draws random numbers"}),
]


def test_what_has_no_mistake_passes() -> None:
    check_system(Weighing)
    check_system(with_scale())


@pytest.mark.parametrize(("check", "system", "names"), SYSTEMS)
def test_check_system_finds_the_mistake_of_a_users_system(
    check: str, system: type, names: set[str]
) -> None:
    others = [name for name in CHECKS if name != check]
    with pytest.raises(AssertionError) as error:
        check_system(system, leave_out=others)
    assert all(name in str(error.value) for name in (system.__name__, *names))
    with pytest.raises(AssertionError):
        check_system(system)


def test_every_check_has_a_mistake() -> None:
    assert {check for check, _, _ in SYSTEMS} == CHECKS.keys()


def test_checks_that_are_left_out() -> None:
    unread = weighing(lambda self, weights: weights)
    check_system(unread, leave_out=["ablations"])
    with pytest.raises(ValueError, match=r"ablation, .*ablations"):
        check_system(unread, leave_out=["ablation"])
