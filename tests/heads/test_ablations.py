"""Ablations: an ablated system computes what a system computes whose parameters say the same."""

import copy

import pytest
import torch
from support.ablations import ablated
from support.nine import DIM, HEADS, build, inputs
from torch import nn

import headwise as hw

SURE = 1e9  # a logit beside which others count nothing


@torch.no_grad()
def edited(layer, **edits):
    """A copy some of whose parameters are functions of what they were, by dotted name with `__`."""
    made = copy.deepcopy(layer)
    for name, edit in edits.items():
        parameter = made.get_parameter(name.replace("__", "."))
        parameter.copy_(edit(parameter))
    return made


def without_rows(rows, value=0.0):
    def edit(weight):
        weight = weight.clone()
        weight[rows] = value
        return weight

    return edit


def heads_in(layer, kept):
    """The output projection reads nothing of the other heads."""
    mask = torch.zeros(HEADS, dtype=torch.float64)
    mask[kept] = 1
    return edited(layer, out_proj__weight=lambda w: w * mask.repeat_interleave(layer.head_dim))


def experts_in(layer, kept, top_k):
    """MoA that has these experts and no others."""
    made = hw.MixtureOfAttentionHeads(DIM, len(kept), top_k, layer.head_dim).double().eval()
    state = layer.state_dict()
    for name in ("router.weight", "expert_query", "expert_output"):
        state[name] = state[name][kept]
    made.load_state_dict(state)
    return made


def voters_in(layer, kept, **options):
    """Agreement that has these heads and no others."""
    width = layer.head_dim
    rows = torch.cat([torch.arange(head * width, (head + 1) * width) for head in kept])
    state = {}
    for name, value in layer.state_dict().items():
        by_row, by_head = (
            "_proj." in name,
            name in ("capsule_weight", "capsule_bias", "vote_weight"),
        )
        state[name] = value[rows] if by_row else value[kept] if by_head else value
    made = hw.AgreementAttention(DIM, len(kept), head_dim=width, **options).double().eval()
    made.load_state_dict(state)
    return made


def updates_of(layer, kept):
    """TIM in which one of two mechanisms adds nothing, and the other has no rival."""
    other = 1 - kept
    made = edited(
        layer,
        self_attention__out_weight=without_rows(other),
        exchange__out_weight=without_rows(other),
        ffn_down_weight=without_rows(other),
    )
    made.competition_weight = None
    return made


def gated_alike(layer, x):
    """Each head counts as the mean of the gates of a position: a scale of what all have read."""
    standard = hw.MultiHeadAttention(DIM, HEADS).double().eval()
    standard.load_state_dict(layer.state_dict(), strict=False)
    bias = standard.out_proj.bias
    return (standard(x).output - bias) * layer(x).routing.weights.mean(-1, keepdim=True) + bias


def experts_alike(layer, x):
    """The mean of what each chosen expert of MoA makes of a position."""
    each = [experts_in(layer, [e], 1)(x).output for e in range(layer.num_experts)]
    picked = layer(x).routing.indices.unsqueeze(-1).expand(-1, -1, -1, DIM)
    return torch.stack(each, 2).gather(2, picked).mean(2)


def without_branch(alpha):
    kept = without_rows(1)(alpha)
    return kept / kept.sum()


def made(change):
    return lambda layer, x: change(layer)(x).output


def even(w):
    return torch.full_like(w, 1 / len(w))


def surely(w):
    return SURE * w


MEANT = {
    **{
        (system, name, 2): made(lambda layer, kept=kept: heads_in(layer, kept))
        for system in ("standard", "mae", "moh", "gated", "differential")
        for name, kept in {"without-head": [0, 1, 3], "only-head": [2]}.items()
    },
    ("mae", "uniform", None): made(
        lambda m: edited(m, gate__output__weight=torch.zeros_like, gate__output__bias=even)
    ),
    ("mae", "largest", None): made(
        lambda m: edited(m, gate__output__weight=surely, gate__output__bias=surely)
    ),
    ("mae", "without-expert", 1): made(
        lambda m: edited(m, gate__output__bias=without_rows(1, -SURE))
    ),
    ("mae", "only-expert", 1): made(lambda m: edited(m, gate__output__bias=without_rows(1, SURE))),
    ("moa", "uniform", None): experts_alike,
    ("moa", "top-k", 1): made(lambda m: experts_in(m, [0, 1, 2, 3, 4], 1)),
    ("moa", "without-expert", 1): made(lambda m: experts_in(m, [0, 2, 3, 4], 2)),
    ("moa", "only-expert", 1): made(lambda m: experts_in(m, [1], 1)),
    ("gated", "uniform", None): gated_alike,
    ("agreement", "uniform", None): made(lambda m: voters_in(m, [0, 1, 2, 3], iterations=1)),
    ("agreement", "without-head", 1): made(lambda m: voters_in(m, [0, 2, 3])),
    ("agreement", "only-head", 1): made(lambda m: voters_in(m, [1])),
    ("weighted", "uniform", None): made(lambda m: edited(m, kappa=even, alpha=even)),
    ("weighted", "without-branch", 1): made(lambda m: edited(m, alpha=without_branch)),
    ("weighted", "only-branch", 1): made(
        lambda m: edited(m, alpha=lambda w: without_rows(1, 1.0)(torch.zeros_like(w)))
    ),
    ("weighted", "top-k", 3): made(
        lambda m: edited(m, alpha=lambda w: without_rows(w.argmin())(w) / (1 - w.min()))
    ),
    ("tim", "uniform", None): made(lambda m: edited(m, competition_weight=torch.zeros_like)),
    ("tim", "largest", None): made(lambda m: edited(m, competition_weight=surely)),
    ("tim", "without-mechanism", 0): made(lambda m: updates_of(m, 1)),
    ("tim", "only-mechanism", 0): made(lambda m: updates_of(m, 0)),
}


@pytest.mark.parametrize(("system", "name", "number"), MEANT)
def test_an_ablated_system_is_one_whose_parameters_say_the_same(system, name, number):
    """Within the block, in evaluation alone; gone behind it, also where an error leaves it."""
    layer, x = build(system), inputs()
    learned = layer(x).output
    with ablated(layer, system, name, number):
        found = layer(x).output
        copied = copy.deepcopy(layer)(x).output
    torch.testing.assert_close(found, MEANT[system, name, number](layer, x))
    assert (found - learned).abs().max() > 1e-3
    assert torch.equal(layer(x).output, learned) and torch.equal(copied, learned)
    with pytest.raises(KeyError), ablated(layer, system, name, number):
        raise KeyError
    assert torch.equal(layer(x).output, learned)


@pytest.mark.parametrize("system", ["mae", "moa", "moh", "agreement", "weighted", "tim"])
def test_in_training_nothing_is_ablated(system):
    """A pass in training is an error, or what it is without an ablation."""
    layer, x = build(system).train(), inputs()
    expected = copy.deepcopy(layer)(x).output
    with ablated(layer, system, "uniform"):
        try:
            found = layer(x).output
        except ValueError as refused:
            assert type(layer).__name__ in str(refused)
            return
    assert torch.equal(found, expected)


RANDOM = ["mae", "moa", "moh", "gated", "differential", "agreement", "weighted", "tim"]


@pytest.mark.parametrize("system", RANDOM)
def test_random_weights_are_the_same_for_a_seed_and_others_for_each_layer(system):
    model, x = nn.ModuleList([build(system) for _ in range(2)]).eval(), inputs()
    model[1].load_state_dict(model[0].state_dict())

    def outputs(seed):
        with ablated(model, system, "random", seed=seed, path=None):
            return [layer(x) for layer in model]

    first, again, other = outputs(0), outputs(0), outputs(1)
    for mine, same, another in zip(first, again, other, strict=True):
        assert torch.equal(mine.output, same.output)
        assert not torch.allclose(mine.output, another.output)
    assert not torch.allclose(first[0].output, first[1].output)
    learned = model[0](x).routing.weights
    for out in first:
        shares = out.routing.weights / out.routing.weights.sum(-1, keepdim=True)
        if system != "agreement":  # whose shares are those of its first iteration
            torch.testing.assert_close(
                shares, shares.view(-1, shares.size(-1))[0].expand_as(shares)
            )
        torch.testing.assert_close(out.routing.weights.sum(-1), learned.sum(-1))
        assert (shares >= 0).all()


def test_in_a_model_the_systems_of_a_kind_or_one_place_are_ablated():
    model = nn.ModuleDict({"a": build("mae"), "b": build("mae"), "c": build("weighted")}).eval()
    x = inputs()

    def outputs():
        return {name: layer(x).output for name, layer in model.items()}

    learned, uniform = outputs(), {}
    for name, layer in model.items():
        with ablated(layer, "mae" if name != "c" else "weighted", "uniform"):
            uniform[name] = layer(x).output
    with ablated(model, "mae", "uniform", path=None):
        of_kind = outputs()
    with (
        ablated(model, "mae", "uniform", path="b"),
        ablated(model, "weighted", "uniform", path="c"),
    ):
        of_places = outputs()
    for found, changed in ((of_kind, "ab"), (of_places, "bc"), (outputs(), "")):
        for name, output in found.items():
            assert torch.equal(output, (uniform if name in changed else learned)[name])
