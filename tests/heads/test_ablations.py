"""Ablations: an ablated system computes what a system computes whose parameters say the same."""

import copy
from types import SimpleNamespace

import pytest
import torch
from support.forms import DIM, HEADS, build, inputs
from torch import nn

import headwise as hw
from headwise.heads.ablation import Ablation

SURE = 1e9  # a logit beside which others count nothing


@torch.no_grad()
def edited(layer, **edits):
    """A copy some of whose parameters are functions of what they were, by dotted name with `__`."""
    copied = copy.deepcopy(layer)
    for name, edit in edits.items():
        parameter = copied.get_parameter(name.replace("__", "."))
        parameter.copy_(edit(parameter))
    return copied


def without_rows(rows, value=0.0):
    def edit(weight):
        weight = weight.clone()
        weight[rows] = value
        return weight

    return edit


def heads_in(layer, heads):
    """The output projection reads nothing of the other heads."""
    mask = torch.zeros(HEADS, dtype=torch.float64)
    mask[heads] = 1
    return edited(layer, out_proj__weight=lambda w: w * mask.repeat_interleave(layer.head_dim))


def experts_in(layer, experts):
    """MoA that has these experts and no others."""
    sizes = (DIM, len(experts), min(2, len(experts)), layer.head_dim)
    moa, state = hw.MixtureOfAttentionHeads(*sizes).double().eval(), layer.state_dict()
    for name in ("router.weight", "expert_query", "expert_output"):
        state[name] = state[name][experts]
    moa.load_state_dict(state)
    return moa


def experts_alike(layer):
    """The mean of what each chosen expert of MoA makes of a position."""

    def compute(x):
        each = [experts_in(layer, [e])(x).output for e in range(layer.num_experts)]
        picked = layer(x).routing.indices.unsqueeze(-1).expand(-1, -1, -1, DIM)
        return SimpleNamespace(output=torch.stack(each, 2).gather(2, picked).mean(2))

    return compute


def voters_in(layer, voters, **options):
    """Agreement that has these heads and no others."""
    width, state = layer.head_dim, layer.state_dict()
    rows = torch.cat([torch.arange(head * width, (head + 1) * width) for head in voters])
    for name, value in state.items():
        if "_proj." in name:
            state[name] = value[rows]
        elif name in ("capsule_weight", "capsule_bias", "vote_weight"):
            state[name] = value[voters]
    agreement = hw.AgreementAttention(DIM, len(voters), head_dim=width, **options).double().eval()
    agreement.load_state_dict(state)
    return agreement


def even(w):
    return torch.full_like(w, 1 / len(w))


def surely(w):
    return SURE * w


def only_second(alpha):
    return without_rows(1, 1.0)(torch.zeros_like(alpha))


def without_least(alpha):
    return without_rows(alpha.argmin())(alpha) / (1 - alpha.min())


# What the parameters of a system say under an ablation, and its option.
MEANT = {
    **{
        (system, name): ({"head": 2}, lambda m, heads=heads: heads_in(m, heads))
        for system in ("standard", "mae", "moh", "gated", "differential")
        for name, heads in {"without-head": [0, 1, 3], "only-head": [2]}.items()
    },
    ("mae", "uniform"): (
        {},
        lambda m: edited(m, gate__output__weight=torch.zeros_like, gate__output__bias=even),
    ),
    ("mae", "largest"): (
        {},
        lambda m: edited(m, gate__output__weight=surely, gate__output__bias=surely),
    ),
    ("mae", "without-expert"): (
        {"expert": 1},
        lambda m: edited(m, gate__output__bias=without_rows(1, -SURE)),
    ),
    ("mae", "only-expert"): (
        {"expert": 1},
        lambda m: edited(m, gate__output__bias=without_rows(1, SURE)),
    ),
    ("moa", "uniform"): ({}, experts_alike),
    ("moa", "without-expert"): ({"expert": 1}, lambda m: experts_in(m, [0, 2, 3, 4])),
    ("moa", "only-expert"): ({"expert": 1}, lambda m: experts_in(m, [1])),
    ("agreement", "uniform"): ({}, lambda m: voters_in(m, [0, 1, 2, 3], iterations=1)),
    ("agreement", "without-head"): ({"head": 1}, lambda m: voters_in(m, [0, 2, 3])),
    ("weighted", "uniform"): ({}, lambda m: edited(m, kappa=even, alpha=even)),
    ("weighted", "only-branch"): ({"branch": 1}, lambda m: edited(m, alpha=only_second)),
    ("weighted", "top-k"): ({"top_k": 3}, lambda m: edited(m, alpha=without_least)),
    ("tim", "uniform"): ({}, lambda m: edited(m, competition__weight=torch.zeros_like)),
    ("tim", "largest"): ({}, lambda m: edited(m, competition__weight=surely)),
}


@pytest.mark.parametrize(("system", "name"), MEANT)
def test_an_ablated_system_is_one_whose_parameters_say_the_same(system, name):
    """Within the block, in evaluation alone; gone behind it, also where an error leaves it."""
    layer, x = build(system), inputs()
    option, meant = MEANT[system, name]
    learned, expected = layer(x).output, meant(layer)(x).output
    with hw.ablated(layer, "", name, **option):
        found, copied = layer(x).output, copy.deepcopy(layer)(x).output
    torch.testing.assert_close(found, expected)
    assert (found - learned).abs().max() > 1e-3
    assert torch.equal(layer(x).output, learned) and torch.equal(copied, learned)
    with pytest.raises(KeyError), hw.ablated(layer, "", name, **option):
        raise KeyError
    assert torch.equal(layer(x).output, learned)


def test_a_pass_in_training_is_refused_while_a_system_is_ablated():
    """Not so one of a copy, which has no ablation, one in evaluation, or one behind the block."""
    layer, x = build("mae"), inputs()
    with hw.ablated(layer, "", "uniform"):
        copy.deepcopy(layer).train()(x)
        with pytest.raises(ValueError, match=r"AttentiveExperts.* training mode.*eval\(\)"):
            layer.train()(x)
        layer.eval()(x)
    layer.train()(x)


RANDOM = ["mae", "moa", "moh", "weighted", "tim"]


@pytest.mark.parametrize("is_told", [False, True])  # where it stands, as a model tells it
@pytest.mark.parametrize("system", RANDOM)
def test_random_weights_are_the_same_for_a_seed_and_others_for_each_layer(system, is_told):
    model, x = nn.ModuleList([build(system) for _ in range(2)]).eval(), inputs()
    model[1].load_state_dict(model[0].state_dict())
    for number, layer in enumerate(model if is_told else []):
        layer.place("encoder_self", number)

    def outputs(seed):
        with hw.ablated(model, {system: {"name": "random", "seed": seed}}):
            return [layer(x) for layer in model]

    first, again, other = outputs(0), outputs(0), outputs(1)
    learned = model[0](x).routing.weights
    assert not torch.allclose(first[0].output, first[1].output)
    for out, same, different in zip(first, again, other, strict=True):
        assert torch.equal(out.output, same.output)
        assert not torch.allclose(out.output, different.output)
        weights = out.routing.weights
        torch.testing.assert_close(weights.sum(-1), learned.sum(-1))
        assert (weights >= 0).all()
        # Heads that MoH has in force everywhere are none of a router's.
        weights = weights[..., getattr(model[0], "shared_heads", 0) :]
        shares = (weights / weights.sum(-1, keepdim=True)).view(-1, weights.size(-1))
        torch.testing.assert_close(shares, shares[:1].expand_as(shares))


def test_an_ablation_keeps_what_weights_add_up_to_and_leaves_a_unit() -> None:
    """Of MoH's routed heads the chosen ones keep their share of all heads, also if fewer count."""
    layer, x = hw.MoH(DIM, 6, shared_heads=2, top_k=3).double().eval(), inputs()
    learned = layer(x).routing.weights.sum(-1)
    for name, options in {"top-k": {"top_k": 2}, "largest": {}, "without-largest": {}}.items():
        layer.ablations = (Ablation(layer, name, **options),)
        torch.testing.assert_close(layer(x).routing.weights.sum(-1), learned)
    one_routed = hw.MoH(DIM, 4, shared_heads=3, top_k=1)
    for name, options in (("without-largest", {}), ("only-head", {"head": []})):
        with pytest.raises(ValueError, match=name):
            Ablation(one_routed, name, **options)


def test_branches_that_are_merged_have_one_random_vector_of_weights() -> None:
    layer = build("weighted", merged=True)
    layer.ablations = (Ablation(layer, "random"),)
    kappa, alpha = layer.branch_weights()
    assert torch.equal(kappa, alpha)


@pytest.mark.parametrize("system", ["standard", "agreement", "moh"])
def test_heads_are_left_out_on_any_device(system) -> None:
    layer = build(system).to("meta")
    layer.ablations = (Ablation(layer, "without-head", head=0),)
    assert layer(inputs().to("meta")).output.is_meta


def test_in_a_model_the_systems_of_a_kind_or_one_place_are_ablated():
    model = nn.ModuleDict({"a": build("mae"), "b": build("mae"), "c": build("weighted")}).eval()
    x = inputs()

    def outputs():
        return {name: layer(x).output for name, layer in model.items()}

    learned, uniform = outputs(), {}
    for name in model:
        with hw.ablated(model, name, "uniform"):
            uniform[name] = model[name](x).output
    with hw.ablated(model, {"mae": "uniform"}):
        by_kind = outputs()
    with hw.ablated(model, "b", "uniform"):
        by_path = outputs()
    for found, changed in ((by_kind, "ab"), (by_path, "b"), (outputs(), "")):
        for name, output in found.items():
            assert torch.equal(output, (uniform if name in changed else learned)[name])
