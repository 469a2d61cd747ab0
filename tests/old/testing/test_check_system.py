"""`check_system`: what headwise has passes it, and each mistake fails it with its own message."""

import pytest
import torch
from torch import nn

import headwise as hw
from headwise.heads.attention import Projected
from headwise.models.plan import SYSTEMS
from headwise.testing import CHECKS, SITES, Subject, check_system

# Each system, and the forms that take another way through the checks.
FORMS = [(name, {}) for name in SYSTEMS] + [
    ("mae", {"gate": "uniform"}),
    ("mae", {"gate_window": 2}),
    ("moa", {"num_key_value_heads": 2}),
    ("weighted", {"weights": "random"}),
    ("gated", {"gate_inputs": 0, "gate_bias": True}),
    ("gated", {"gate_activation": "softplus", "gate_inputs": "head", "gate_bias": True}),
    ("tim", {"norm": "pre", "competition_input": "normalised", "bias": True}),
    ("tim", {"competition": False, "exchange_heads": 0}),
    ("tim", {"num_mechanisms": 4}),
    ("moh", {"shared_heads": 1, "top_k": 3}),  # all heads: it can start as standard attention
]


@pytest.mark.parametrize(("name", "options"), FORMS, ids=str)
def test_the_systems_of_headwise_pass(name, options):
    check_system(SYSTEMS[name], **options)


class Mistaken(hw.MultiHeadAttention):
    """Standard attention with one mistake, which subclasses make in `spoil`."""

    def combine(self, heads, inputs, choice):
        output, _ = super().combine(heads, inputs, choice)
        spoiled = self.spoil(output, heads, inputs)
        return spoiled if isinstance(spoiled, tuple) else (spoiled, None)


def spoiled_by(spoil):
    return type("Mistaken", (Mistaken,), {"spoil": staticmethod(spoil)})


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


class Filled(WithScale):
    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "scale"):
            self.scale.data.fill_(1.0)


class Sharpened(hw.MultiHeadAttention):
    """Reads otherwise than its weights say."""

    def attend(self, q, k, v, mask, is_causal):
        return super().attend(2 * q, k, v, mask, is_causal)


class Halved(hw.MixtureOfAttentiveExperts):
    """Is not what it says it starts as."""

    def combine(self, heads, inputs, choice):
        return super().combine(heads / 2, inputs, choice)


class Unturned(hw.MultiHeadAttention):
    """Computes keys by itself, which nobody turns then."""

    def project(self, inputs):
        q, k, v, _ = super().project(inputs._replace(rotary=None))
        return Projected(q, k, v)


class NoChoice(hw.MultiHeadAttention):
    """Says that it chooses heads, and not which."""

    chooses_heads = True


class Reticent(hw.MixtureOfAttentionHeads):
    """Does not say what the heads that are not chosen would read."""

    queries_of_every_head = hw.systems.Attention.queries_of_every_head


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


class OnSimplex(Mistaken):
    """Shares of the heads that an optimizer takes out of the simplex."""

    def __init__(self, embed_dim, num_heads, **options):
        super().__init__(embed_dim, num_heads, **options)
        self.shares = nn.Parameter(self.start(num_heads))

    def start(self, num_heads):
        return torch.rand(num_heads).softmax(0)

    def combine(self, heads, inputs, choice):
        return super().combine(heads * self.shares.view(-1, 1, 1), inputs, choice)

    def spoil(self, output, heads, inputs):
        return output


def negated(layer):
    return torch.neg


def without_head(layer, *, head: int):
    if not 0 <= head < 2:
        raise ValueError(f"head is {head}, expected 0 or 1")
    return lambda output: output * (head + 2)


def scaled(layer, *, factor: float):
    return lambda output: output * factor


def less_what_was_seen(layer):
    """Without a cache, all that was seen is at hand; step by step it is not."""
    return lambda output: output - output.cumsum(1)


def drawn(layer):
    return lambda output: output * torch.rand(())


def with_ablations(*functions, in_training=False):
    """A system that looks at its ablations in evaluation, and at one in training if told to."""

    class Ablated(Mistaken):
        ablations = {function.__name__: function for function in functions}  # noqa: RUF012

        def spoil(self, output, heads, inputs):
            ablated = self.ablation is not None and (in_training or not self.training)
            return self.ablation(output) if ablated else output

    return Ablated


class Unread(Mistaken):
    """Declares an ablation that forward never looks at."""

    ablations = {"negated": negated}  # noqa: RUF012

    def spoil(self, output, heads, inputs):
        return output


def routing(weights, loss=None):
    return spoiled_by(lambda output, *_: (output, hw.Routing(torch.tensor(weights), loss=loss)))


ENCODER, DECODER, CROSS = SITES["attention"]


MISTAKES = [
    ("sizes", ENCODER, spoiled_by(lambda output, *_: output[:, :1]), "gives an output (3, 1, 16)"),
    ("sizes", ENCODER, routing([0.5, -0.5]), "a negative number"),
    ("sizes", ENCODER, routing([1.0], loss=torch.ones(3)), "routing.loss is no finite scalar"),
    ("causality", DECODER, spoiled_by(lambda o, *_: o + o.mean(1, keepdim=True)), "a later token"),
    ("causality", CROSS, spoiled_by(lambda o, *_: o + o.mean(1, keepdim=True)), "a later token"),
    ("padding", ENCODER, spoiled_by(lambda o, *_: o + o.mean(1, keepdim=True)), "on the right"),
    ("padding", ENCODER, spoiled_by(lambda o, h, i: o + i.query.cumsum(1)), "on the left"),
    (
        "padding",
        ENCODER,
        spoiled_by(
            lambda output, h, inputs: (output, hw.Routing(h[0], loss=inputs.query.square().mean()))
        ),
        "changes routing.loss",
    ),
    ("decoding", DECODER, Forgetful, "step by step differs"),
    ("decoding", DECODER, Unordered, "with beam search differs"),
    ("learning", ENCODER, Unused, "scale gets no gradient"),
    (
        "learning",
        ENCODER,
        spoiled_by(lambda output, heads, _: output + heads.square().sum((1, 3)).sqrt()[..., None]),
        "is not finite where a sequence is nothing but padding",
    ),
    ("resetting", ENCODER, WithScale, "does not set scale"),
    ("resetting", ENCODER, Filled, "sets scale by other means"),
    (
        "half_precision",
        ENCODER,
        spoiled_by(lambda output, *_: output * torch.ones(1)),
        "gives torch.float32",
    ),
    ("weights", CROSS, Sharpened, "do not reproduce the output"),
    ("blocks", ENCODER, Unturned, "rotary positions change nothing, or count otherwise than by"),
    ("blocks", DECODER, Unturned, "rotary positions change nothing, or count otherwise than by"),
    ("standard_start", ENCODER, Halved, "the output is not that of the attention"),
    ("macs", ENCODER, Uncounted, "and PyTorch's flop counter"),
    ("decay", ENCODER, Decayed, "scale starts as 1 throughout, and weight decay pulls it to 0"),
    ("rule", ENCODER, OnSimplex, "shares starts on the simplex"),
    ("ablations", ENCODER, Unread, "no ablation changes an output in evaluation, of negated"),
    (
        "ablations",
        ENCODER,
        with_ablations(without_head, in_training=True),
        "without_head changes training",
    ),
    ("ablations", ENCODER, with_ablations(drawn), "drawn gives another output at each call"),
    (
        "ablations",
        DECODER,
        with_ablations(less_what_was_seen),
        "under the ablation less_what_was_seen, decoding step by step differs",
    ),
    ("chosen_heads", ENCODER, NoChoice, "routing.indices are not the 4 heads of each query"),
    ("chosen_heads", DECODER, Reticent, "without queries_of_every_head; override it"),
]


@pytest.mark.parametrize(("check", "site", "system", "message"), MISTAKES)
def test_a_mistake_is_found(check, site, system, message):
    place = hw.systems.Place(site, 16, 4, 32, cross_attention=site == DECODER)
    with pytest.raises(AssertionError) as error:
        CHECKS[check](Subject(system, place, {}))
    assert message in str(error.value)
    assert str(error.value).startswith(f"{system.__name__} at {site}: ")
    with pytest.raises(AssertionError):
        check_system(system)


def test_options_of_ablations_may_be_given():
    check_system(with_ablations(scaled), ablation_options={"scaled": {"factor": 0.5}})
    with pytest.raises(AssertionError, match="head is 7, expected 0 or 1; give options that fit"):
        check_system(with_ablations(without_head), ablation_options={"without_head": {"head": 7}})


def test_a_check_that_does_not_fit_can_be_left_out():
    check_system(Unread, leave_out=["ablations"])
    with pytest.raises(ValueError, match="leave_out has ablation, expected some of sizes, "):
        check_system(Unread, leave_out=["ablation"])
