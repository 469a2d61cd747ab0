"""`check_system`: what headwise has passes it, and each mistake fails it with its own message."""

import random

import pytest
import torch
from torch import nn

import headwise as hw
from headwise.models.plan import SYSTEMS
from headwise.testing import CHECKS, SITES, Subject, check_system

FORMS = [(name, {}) for name in SYSTEMS] + [
    ("mae", {"dropped_heads": 2}),
    ("mae", {"gate": "uniform"}),
    ("mae", {"gate_window": 2}),
    ("moa", {"size": "3K3E4D"}),
    ("moa", {"normalize_weights": False, "bias": True}),
]


@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_the_systems_of_headwise_pass(name, options):
    check_system(SYSTEMS[name], **options)


def test_the_callers_random_state_stays():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    check_system(hw.MultiHeadAttention)
    assert torch.equal(torch.rand(4), expected)


class Mistaken(hw.MultiHeadAttention):
    """Standard attention with one mistake, which subclasses make in `spoil`."""

    def combine(self, heads, inputs, choice):
        output, _ = super().combine(heads, inputs, choice)
        spoiled = self.spoil(output, heads, inputs)
        return spoiled if isinstance(spoiled, tuple) else (spoiled, None)


def spoiled_by(spoil):
    return type("Mistaken", (Mistaken,), {"spoil": staticmethod(spoil)})


class InTraining(Mistaken):
    def spoil(self, output, heads, inputs):
        return output - output.mean((0, 1)) if self.training else output


class Forgetful(Mistaken):
    """Sums its inputs, and forgets them between the steps of a decoding."""

    def spoil(self, output, heads, inputs):
        return output + inputs.query.cumsum(1)


class Unordered(Mistaken):
    """Remembers the sum, but where beam search does not see it."""

    def spoil(self, output, heads, inputs):
        total = inputs.query.cumsum(1)
        if inputs.cache is not None:
            total = total + getattr(inputs.cache, "total", 0)
            inputs.cache.total = total[:, -1:]
        return output + total


class WithScale(Mistaken):
    def __init__(self, embed_dim, num_heads, **options):
        super().__init__(embed_dim, num_heads, **options)
        self.scale = nn.Parameter(torch.ones(embed_dim))

    def spoil(self, output, heads, inputs):
        return output * self.scale


class Unused(WithScale):
    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "scale"):
            nn.init.ones_(self.scale)

    def spoil(self, output, heads, inputs):
        return output


class Vanishing(Unused):
    def spoil(self, output, heads, inputs):
        return output + 0 * self.scale


class Filled(WithScale):
    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "scale"):
            self.scale.data.fill_(1.0)


class Secretive(Mistaken):
    def __init__(self, embed_dim, num_heads, **options):
        super().__init__(embed_dim, num_heads, **options)
        self.secret = random.random()

    def spoil(self, output, heads, inputs):
        return output * self.secret


class Greatest(Mistaken):
    def spoil(self, output, heads, inputs):
        return output + 0 * output.amax(1, keepdim=True)


class Unmarked(hw.AgreementAttention):
    """Loses what forward has found out about padding."""

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        return out._replace(routing=out.routing._replace(padding=None))


class Sharpened(hw.MultiHeadAttention):
    """Reads otherwise than its weights say."""

    def attend(self, q, k, v, mask, is_causal):
        return super().attend(2 * q, k, v, mask, is_causal)


class Uncounted(Mistaken):
    def __init__(self, embed_dim, num_heads, **options):
        super().__init__(embed_dim, num_heads, **options)
        self.matrix = nn.Parameter(torch.empty(embed_dim, embed_dim))
        self.reset_parameters()

    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "matrix"):
            nn.init.xavier_uniform_(self.matrix)

    def spoil(self, output, heads, inputs):
        return output @ self.matrix


class Decayed(WithScale):
    """A scale of two dimensions, which looks like a matrix."""

    def __init__(self, embed_dim, num_heads, **options):
        super().__init__(embed_dim, num_heads, **options)
        self.scale = nn.Parameter(torch.ones(1, embed_dim))


class WithNorm(Uncounted):
    def __init__(self, embed_dim, num_heads, **options):
        super().__init__(embed_dim, num_heads, **options)
        self.scale_norm = nn.Parameter(torch.randn(2, 3))


class OnSimplex(Mistaken):
    """Shares of the heads that an optimizer takes out of the simplex."""

    def __init__(self, embed_dim, num_heads, **options):
        super().__init__(embed_dim, num_heads, **options)
        self.shares = nn.Parameter(torch.full((num_heads,), 1 / num_heads))

    def combine(self, heads, inputs, choice):
        return super().combine(heads * self.shares.view(-1, 1, 1), inputs, choice)

    def spoil(self, output, heads, inputs):
        return output


class PutBack(hw.Rule):
    def after_update(self, moment):
        with torch.no_grad():
            for system in self.systems.values():
                system.shares.clamp_(min=0)
                system.shares.div_(system.shares.sum())


def ablated_by(change):
    """With an ablation that is applied in training too."""

    class Ablated(Mistaken):
        ablations = {"changed": lambda layer: change}  # noqa: RUF012

        def spoil(self, output, heads, inputs):
            return output if self.ablation is None else self.ablation(output)

    return Ablated


def routing(weights, loss=None):
    return spoiled_by(lambda output, *_: (output, hw.Routing(torch.tensor(weights), loss=loss)))


ENCODER, DECODER, CROSS = SITES["attention"]
MISTAKES = [
    ("sizes", ENCODER, spoiled_by(lambda output, *_: output[:, :1]), "gives an output (3, 1, 16)"),
    (
        "sizes",
        ENCODER,
        spoiled_by(lambda output, *_: output / output.std(1, correction=0)[:, None]),
        "finite",
    ),
    ("sizes", ENCODER, routing([0.5, -0.5]), "a negative number"),
    ("sizes", ENCODER, routing([1.0], loss=torch.ones(3)), "routing.loss is no finite scalar"),
    ("causality", DECODER, spoiled_by(lambda o, *_: o + o.mean(1, keepdim=True)), "a later token"),
    ("causality", CROSS, spoiled_by(lambda o, *_: o + o.mean(1, keepdim=True)), "a later token"),
    ("causality", DECODER, InTraining, "in training, a later token"),
    ("padding", ENCODER, spoiled_by(lambda o, *_: o + o.mean(1, keepdim=True)), "on the right"),
    ("padding", ENCODER, spoiled_by(lambda o, h, i: o + i.query.cumsum(1)), "on the left"),
    ("padding", ENCODER, spoiled_by(lambda output, *_: output - output.mean(0)), "than alone"),
    (
        "padding",
        ENCODER,
        spoiled_by(
            lambda output, h, inputs: (output, hw.Routing(h[0], loss=inputs.query.square().mean()))
        ),
        "changes routing.loss",
    ),
    ("decoding", DECODER, Forgetful, "step by step differs"),
    ("decoding", CROSS, Forgetful, "step by step differs"),
    ("decoding", DECODER, Unordered, "with beam search differs"),
    ("learning", ENCODER, Unused, "scale gets no gradient"),
    ("learning", ENCODER, Vanishing, "the gradient of scale is zero"),
    (
        "learning",
        ENCODER,
        spoiled_by(lambda output, heads, _: output + heads.square().sum((1, 3)).sqrt()[..., None]),
        "is not finite where a sequence is nothing but padding",
    ),
    ("resetting", ENCODER, WithScale, "does not set scale"),
    ("resetting", ENCODER, Filled, "sets scale by other means"),
    ("copies", ENCODER, Secretive, "state_dict"),
    (
        "half_precision",
        ENCODER,
        spoiled_by(lambda output, *_: output * torch.ones(1)),
        "gives torch.float32",
    ),
    ("half_precision", ENCODER, spoiled_by(lambda o, *_: o + (o * 0 + 3e38) * 2), "not finite"),
    ("sizes", ENCODER, Greatest, "an input (3, 0, 16) raises IndexError"),
    ("padding", ENCODER, Unmarked, "routing.padding does not mark"),
    ("weights", ENCODER, Sharpened, "do not reproduce the output"),
    ("weights", DECODER, Sharpened, "do not reproduce the output"),
    ("weights", CROSS, Sharpened, "do not reproduce the output"),
    ("macs", ENCODER, Uncounted, "and PyTorch's flop counter"),
    ("decay", ENCODER, Decayed, "scale starts as 1 throughout, and weight decay pulls it to 0"),
    ("decay", ENCODER, WithNorm, "scale_norm sounds like a part of a norm"),
    ("rule", ENCODER, OnSimplex, "shares starts on the simplex"),
    ("ablations", ENCODER, ablated_by(lambda output: -output), "changed changes training"),
    ("ablations", ENCODER, ablated_by(lambda output: output / 0), "are not finite"),
]


@pytest.mark.parametrize(("check", "site", "system", "message"), MISTAKES)
def test_a_mistake_is_found(check, site, system, message):
    place = hw.Place(site, 16, 4, 32, cross_attention=site == DECODER)
    with pytest.raises(AssertionError) as error:
        CHECKS[check](Subject(system, place, {}))
    assert message in str(error.value)
    assert str(error.value).startswith(f"{system.__name__} at {site}: ")
    with pytest.raises(AssertionError):
        check_system(system)


def test_a_rule_that_puts_parameters_back_is_enough():
    place = hw.Place(ENCODER, 16, 4, 32)
    ruled = type("Ruled", (OnSimplex,), {"rule": PutBack})
    CHECKS["rule"](Subject(ruled, place, {}))


def test_what_a_system_names_takes_no_decay():
    place = hw.Place(ENCODER, 16, 4, 32)
    named = type("Named", (WithNorm,), {"no_decay": ("scale_norm",)})
    CHECKS["decay"](Subject(named, place, {}))


def test_what_is_no_attention_output_is_named():
    class Bare(hw.MultiHeadAttention):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs).output

    with pytest.raises(AssertionError, match="forward returns Tensor; expected AttentionOutput"):
        check_system(Bare)
