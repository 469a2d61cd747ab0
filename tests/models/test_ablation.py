"""Models evaluated otherwise than they were trained: ablations against the equations."""

import copy
import itertools
import pickle

import pytest
import tiny
import torch
from systems import DIM, HEADS, SYSTEMS, padding
from tiny import MOA, PLANS, tokens

import headwise as hw
from headwise.heads.agreement.naive import naive_em_routing
from headwise.models.ablation import (
    ablated,
    ablation_names,
    ablation_options,
    check_ablations,
    held_systems,
)
from headwise.models.plan import SYSTEMS as REGISTRY
from headwise.models.sites import attention_sites

BATCH, TIME = 3, 5


def x_():
    return torch.randn(BATCH, TIME, DIM, dtype=torch.float64)


def heads_of(layer, x):
    """What each head reads, `(batch, heads, time, head_dim)`."""
    seen = []
    combine = layer.combine
    layer.combine = lambda heads, *rest: seen.append(heads) or combine(heads, *rest)
    layer(x)
    del layer.combine
    return seen[0]


def by_scales(layer, x, scales):
    """MAE's output with a given scale for each head, `(batch, 1 or time, heads)`."""
    heads = heads_of(layer, x).transpose(1, 2) * scales.unsqueeze(-1)
    return layer.out_proj(heads.flatten(2))


# MAE


@pytest.mark.parametrize("name", ["mae-7", "mae-6", "uni-mae"])
def test_one_expert_alone(name):
    layer, x = SYSTEMS[name].build(), x_()
    gates = layer(x).routing.weights  # (batch, experts)
    experts = list(itertools.combinations(range(HEADS), layer.dropped_heads))
    with ablated(layer, {"mae": "top-expert"}):
        out = layer(x)
    chosen = gates.argmax(-1)
    assert torch.equal(out.routing.weights.argmax(-1), chosen)
    assert torch.equal(out.routing.weights.sum(-1), torch.ones(BATCH).double())
    scales = torch.full((BATCH, 1, HEADS), HEADS / (HEADS - layer.dropped_heads)).double()
    for row, expert in enumerate(chosen.tolist()):
        scales[row, 0, list(experts[expert])] = 0.0
    torch.testing.assert_close(out.output, by_scales(layer, x, scales))


def test_a_random_expert_is_the_same_for_all_and_another_in_each_layer():
    layers = torch.nn.ModuleList(SYSTEMS["mae-6"].build() for _ in range(8))
    x = x_()
    with ablated(layers, {"mae": {"name": "random-expert", "seed": 3}}):
        chosen = [layer(x).routing.weights for layer in layers]
        again = [layer(x).routing.weights for layer in layers]
    assert all(torch.equal(a, b) for a, b in zip(chosen, again, strict=True))
    assert all(torch.equal(w, w[:1].expand_as(w)) and w.max() == 1.0 for w in chosen)
    assert len({int(w[0].argmax()) for w in chosen}) > 1


@pytest.mark.parametrize("causal", [False, True])
def test_without_an_expert_or_a_head(causal):
    layer, x = SYSTEMS["mae-7"].build(), x_()
    gates = layer(x, is_causal=causal).routing.weights
    with ablated(layer, {"mae": {"name": "without-expert", "expert": 2}}):
        left = layer(x, is_causal=causal).routing.weights
    kept = gates.index_fill(-1, torch.tensor(2), 0.0)
    torch.testing.assert_close(left, kept / kept.sum(-1, keepdim=True))

    with ablated(layer, {"mae": {"name": "without-head", "head": 1}}):
        output = layer(x).output
    gates = layer(x).routing.weights
    scales = HEADS / (HEADS - 1) * (1 - gates).unsqueeze(1)
    scales[..., 1] = 0.0
    torch.testing.assert_close(output, by_scales(layer, x, scales))


def test_a_gate_that_held_one_expert_alone_is_left_with_the_others_alike():
    layer, x = SYSTEMS["mae-7"].build(), x_()
    with torch.no_grad():
        layer.gate.output.bias[2] = 1000.0
    with ablated(layer, {"mae": {"name": "without-expert", "expert": 2}}):
        left = layer(x).routing.weights
    third = torch.tensor([1, 1, 0, 1]).double() / 3
    torch.testing.assert_close(left, third.expand(BATCH, 4))


def test_a_uniform_gate_is_standard_attention():
    layer, x = SYSTEMS["mae-6"].build(), x_()
    standard = hw.MultiHeadAttention(DIM, HEADS).double()
    standard.load_state_dict(layer.state_dict(), strict=False)
    with ablated(layer, {"mae": "uniform"}):
        torch.testing.assert_close(layer(x).output, standard(x).output)
    with ablated(layer, {"mae": "mixture"}):
        assert not torch.allclose(layer(x).output, standard(x).output)


# MoA


def test_no_token_chooses_the_expert_that_is_left_out():
    layer, x = SYSTEMS["moa"].build(), x_()
    before = layer(x).routing
    expert = int(before.indices[0, 0, 0])
    with ablated(layer, {"moa": {"name": "without-expert", "expert": expert}}):
        out = layer(x)
    assert not (out.routing.indices == expert).any()
    assert out.output.isfinite().all() and out.routing.weights[..., expert].eq(0).all()
    untouched = ~(before.indices == expert).any(-1)
    torch.testing.assert_close(out.routing.weights[untouched], before.weights[untouched])


def test_all_experts_but_one_where_all_were_chosen():
    layer, x = SYSTEMS["moa dense"].build(), x_()
    with ablated(layer, {"moa": {"name": "without-expert", "expert": 0}}):
        out = layer(x, is_causal=True)
    assert out.routing.indices.shape == (BATCH, TIME, 2) and not (out.routing.indices == 0).any()


@pytest.mark.parametrize("causal", [False, True])
def test_fewer_experts_are_the_best_of_those_chosen(causal):
    layer, x = SYSTEMS["moa"].build(), x_()
    before = layer(x, is_causal=causal).routing
    with ablated(layer, {"moa": {"name": "fewer-experts", "top_k": 1}}):
        out = layer(x, is_causal=causal)
    assert torch.equal(out.routing.indices, before.indices[..., :1])
    assert out.output.shape == x.shape


# Agreement


@pytest.mark.parametrize(("ablation", "iterations"), [("uniform", 1), ("fewer-iterations", 2)])
def test_routing_stops_early(ablation, iterations):
    layer, x = SYSTEMS["agreement-em"].build(), x_()
    asked = {"name": ablation} | ({"iterations": 2} if iterations == 2 else {})
    with ablated(layer, {"agreement": asked}):
        out = layer(x)
    heads = heads_of(layer, x)
    capsules = torch.einsum("bhtd,hde->bhte", heads, layer.capsule_weight)
    capsules = (capsules + layer.capsule_bias.view(1, HEADS, 1, DIM)).relu()
    votes = torch.einsum("bhtd,hde->bthe", capsules, layer.vote_weight)
    expected = naive_em_routing(votes, layer.beta_a, layer.beta_u, iterations=iterations)
    torch.testing.assert_close(out.output, expected.output)
    torch.testing.assert_close(out.routing.weights, expected.weights)
    if ablation == "uniform":
        even = torch.full_like(expected.weights, 1 / HEADS)
        torch.testing.assert_close(out.routing.weights, even)


# TIM


@pytest.mark.parametrize("ablation", ["uniform", "winner"])
def test_another_competition(ablation):
    layer = hw.IndependentMechanismsLayer(DIM, HEADS, 16, 2).double().eval()
    x = x_()
    before = layer(x).routing.weights
    with ablated(layer, {"tim": ablation}):
        out = layer(x)
    if ablation == "uniform":
        expected = torch.full_like(before, 0.5)
    else:
        expected = (before == before.amax(-1, keepdim=True)).double()
    assert torch.equal(out.routing.weights, expected)
    assert not torch.allclose(out.output, layer(x).output)


def test_there_is_no_competition_to_change():
    layer = hw.IndependentMechanismsLayer(DIM, HEADS, 16, 2, competition=False)
    with pytest.raises(ValueError, match="competition=False"), ablated(layer, {"tim": "winner"}):
        pass


# Of all


PLAN = {
    "encoder_self": {"system": "weighted", "layers": [0]},
    "decoder_self": "mae",
    "decoder_cross": [{**MOA, "layers": [0]}, {"system": "agreement", "layers": [1]}],
}


def test_a_system_is_held_under_each_name_of_its_class():
    model = tiny.model(PLAN)
    names = (
        "mae",
        "headwise:MixtureOfAttentiveExperts",
        "headwise.heads.mae.layer:MixtureOfAttentiveExperts",
    )
    assert [len(held_systems(model, name)) for name in names] == [2, 2, 2]
    model.eval()
    inputs = {"input_ids": tokens(2, 5), "decoder_input_ids": tokens(2, 4)}
    with ablated(model, {names[0]: "uniform"}):
        expected = model(**inputs).logits
    with ablated(model, {names[1]: "uniform"}):
        assert torch.equal(model(**inputs).logits, expected)


def test_systems_of_one_model_are_changed_by_their_names():
    model = tiny.model(PLAN).eval()
    inputs = {"input_ids": tokens(2, 5), "decoder_input_ids": tokens(2, 4)}
    before = model(**inputs).logits
    assert [len(held_systems(model, n)) for n in ("mae", "moa", "tim")] == [2, 1, 0]
    asked = {"mae": "uniform", "moa": {"name": "fewer-experts", "top_k": 1}, "tim": "winner"}
    with ablated(model, asked):
        changed = model(**inputs).logits
        assert not torch.allclose(changed, before)
    assert torch.equal(model(**inputs).logits, before)
    with ablated(model, {"standard": "learned", "mae": "learned"}):
        assert torch.equal(model(**inputs).logits, before)


def sites_of(model):
    return {place.path: place.module for place in attention_sites(model)}


def test_one_system_is_changed_by_its_path():
    model = tiny.model(PLAN).eval()
    systems = sites_of(model)
    path = "decoder.layers.1.self_attention"
    with ablated(model, path, expert=3):
        assert [p for p, system in systems.items() if system.ablation is not None] == [path]
    x = torch.randn(2, 5, systems[path].embed_dim)
    with ablated(model, path, expert=3):
        by_path = systems[path](x).output
    with ablated(model, {"mae": {"name": "without-expert", "expert": 3}}):
        assert torch.equal(systems[path](x).output, by_path)
    with ablated(model, "encoder.layers.0", "top-k", top_k=1):  # it holds that system alone
        (changed,) = [p for p, system in systems.items() if system.ablation is not None]
        assert changed.startswith("encoder.layers.0.")
    layer, alone = SYSTEMS["standard"].build(), torch.randn(1, 3, DIM).double()
    with ablated(layer, "", head=0):
        without = layer(alone).output
    assert not torch.allclose(without, layer(alone).output)
    assert all(system.ablation is None for system in systems.values())


def test_a_random_ablation_is_the_same_for_one_system_as_for_all():
    model = tiny.model("mae").eval()
    systems = sites_of(model)
    x = torch.randn(2, 5, 16)
    with ablated(model, {"mae": {"name": "random", "seed": 2}}):
        together = [system(x).routing.weights for system in systems.values()]
    for path, expected in zip(systems, together, strict=True):
        with ablated(model, path, "random", seed=2):
            assert torch.equal(systems[path](x).routing.weights, expected)


def test_the_inner_of_two_ablations_of_a_system_is_in_force():
    model = torch.nn.ModuleDict({n: SYSTEMS["mae-7"].build() for n in ("first", "second")})
    first, second, x = model["first"], model["second"], x_()

    def gates(layer):
        return layer(x).routing.weights

    before = gates(first), gates(second)
    with ablated(model, "first", "uniform"):
        with ablated(model, "second", expert=0), ablated(model, "first", expert=1):
            assert (gates(first)[:, 1] == 0).all() and (gates(second)[:, 0] == 0).all()
        assert torch.equal(gates(first), torch.full_like(before[0], 0.25))
        assert torch.equal(gates(second), before[1])
        with pytest.raises(RuntimeError), ablated(model, "first", head=1):
            raise RuntimeError
        assert torch.equal(gates(first), torch.full_like(before[0], 0.25))
    assert torch.equal(gates(first), before[0])


@pytest.mark.parametrize(
    ("plan", "unit"),
    [("standard", "head"), ("moa", "expert"), ("weighted", "branch"), ("tim", "mechanism")],
)
def test_an_ablation_in_training_mode_is_an_error(plan, unit):
    model, inputs = tiny.model(PLANS[plan]), (tokens(2, 5), None, tokens(2, 4))
    place = attention_sites(model)[-1]
    name = type(place.module).__name__
    expected = model(*inputs).logits
    with ablated(model, place.path, **{unit: 1}):
        without = model(*inputs).logits
        model.train()
        with pytest.raises(ValueError, match=rf"{name} is ablated and in training mode.*eval\(\)"):
            model(*inputs)
    model(*inputs)
    # Who evaluates within may call eval() there.
    with ablated(model, place.path, **{unit: 1}):
        assert torch.equal(model.eval()(*inputs).logits, without)
    assert torch.equal(model(*inputs).logits, expected) and not torch.equal(without, expected)


def test_a_copy_that_is_made_under_an_ablation_has_none():
    model, inputs = tiny.model(PLANS["mae"]), (tokens(2, 5), None, tokens(2, 4))
    expected = model(*inputs).logits
    with ablated(model, {"mae": "uniform"}):
        copied, stored = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        assert not torch.equal(model(*inputs).logits, expected)
        assert torch.equal(copied(*inputs).logits, expected)
    for made in (copied, stored, pickle.loads(pickle.dumps(copied))):
        assert torch.equal(made(*inputs).logits, expected)
        made.train()(*inputs)


@pytest.mark.parametrize(
    ("where", "name", "options", "parts"),
    [
        ("encoder.layers.0.self_atention", None, {"head": 0}, ["did you mean", "path is"]),
        ("encoder.layers.7", None, {"head": 0}, ["path is", "such as 'encoder"]),
        ("decoder.layers.0", None, {"head": 0}, ["where 2 systems are", "cross_attention'"]),
        ("decoder.layers.0.self_attention.gate", None, {}, ["is a part of the system at"]),
        ("encoder.embedding", None, {"head": 0}, ["holds no system"]),
        ("decoder.layers.0.self_attention", None, {}, ["has nothing", "expert=0 or head=0"]),
        (
            "decoder.layers.0.self_attention",
            None,
            {"exprt": 1},
            ["removes a unit 'exprt'", "did you mean 'expert'"],
        ),
        ("decoder.layers.0.self_attention", None, {"expert": 99}, ["expected 0 to"]),
        ("decoder.layers.0.self_attention", "unifrom", {}, ["mean 'uniform'"]),
        ("decoder.layers.0.self_attention", "uniform", {"seed": 1}, ["the option 'seed'"]),
        ({"mae": "uniform"}, None, {"expert": 1}, ["beside it there is expert=1"]),
        (3, None, {"expert": 1}, ["ablated has 3", "a mapping"]),
    ],
)
def test_what_there_is_not_at_a_path_is_named(where, name, options, parts):
    model = tiny.model(PLAN)
    with pytest.raises(ValueError) as error, ablated(model, where, name, **options):
        pass
    assert all(part in str(error.value) for part in parts), error.value


@pytest.mark.parametrize(
    "plan", ["standard", "mae", "moa", "weighted", "agreement", "tim", "gated", "moh"]
)
def test_decoding_step_by_step_under_ablations(plan):
    model = tiny.model(tiny.PLANS[plan]).double().eval()
    source, tried = tokens(2, 5), 0
    layers = [p.path for p in attention_sites(model) if p.path.startswith("decoder.layers.0")]
    system = attention_sites(model)[-1].module
    for name, function in type(system).ablations.items():
        ranges = system.ablation_ranges()
        options = {o: max(ranges[o]) for o in ablation_options(function) if o in ranges}
        for path in layers:
            if name not in type(sites_of(model)[path]).ablations:
                continue
            with ablated(model, path, name, **options):
                out = model.generate(source, max_new_tokens=4, num_beams=2)
                again = model.generate(source, max_new_tokens=4, num_beams=2, use_cache=False)
            assert torch.equal(out, again), (path, name)
            tried += 1
    assert tried >= len(system.ablations)


def test_padding_counts_in_no_ablation():
    layer, x = SYSTEMS["mae-7"].build(), x_()
    mask = padding(5, 3, 2, time=TIME)
    with ablated(layer, {"mae": "top-expert"}):
        together = layer(x, key_padding_mask=mask).output
        alone = layer(x[1:2, :3]).output
    torch.testing.assert_close(together[1, :3], alone[0])


@pytest.mark.parametrize("name", list(REGISTRY))
def test_every_ablation_says_what_it_does(name):
    for ablation in REGISTRY[name].ablations.values():
        first = (ablation.__doc__ or "").splitlines()[0]
        assert first.endswith(".") and len(first) > 20
    assert ablation_names(REGISTRY[name])[0] == "learned"


@pytest.mark.parametrize(
    ("ablations", "parts"),
    [
        ({"wighted": "uniform"}, ["ablation: it names the system 'wighted'", "mean 'weighted'"]),
        ({"mae": "unifrom"}, ["ablation of mae is 'unifrom'", "did you mean 'uniform'"]),
        ({"mae": {"expert": 1}}, ["expected a mapping with the key `name`"]),
        ({"mae": {"name": "without-expert"}}, ["lacks the option 'expert'"]),
        ({"mae": {"name": "without-expert", "exprt": 1}}, ["'exprt'", "did you mean 'expert'"]),
        ({"mae": {"name": "without-expert", "expert": "a"}}, ["expert is 'a'", "integer"]),
        ({"moa": {"name": "learned", "expert": 1}}, ["takes no options"]),
        ({"mae": {"name": "random-expert", "count": 3}}, ["the option 'count'"]),
    ],
)
def test_what_there_is_not_is_named(ablations, parts):
    with pytest.raises(ValueError) as error:
        check_ablations(ablations)
    assert all(part in str(error.value) for part in parts), error.value


@pytest.mark.parametrize(
    ("name", "ablations", "message"),
    [
        ("mae-7", {"mae": {"name": "without-expert", "expert": 4}}, "expert is 4, expected 0 to 3"),
        ("mae-7", {"mae": {"name": "without-head", "head": -1}}, "head is -1, expected 0 to 3"),
        ("moa", {"moa": {"name": "without-expert", "expert": 5}}, "expert is 5, expected 0 to 4"),
        ("moa", {"moa": {"name": "fewer-experts", "top_k": 3}}, "top_k is 3, expected 1 to 2"),
        (
            "agreement-em",
            {"agreement": {"name": "fewer-iterations", "iterations": 4}},
            "iterations is 4, expected 1 to 3",
        ),
    ],
)
def test_what_does_not_fit_the_sizes_is_named(name, ablations, message):
    layer = SYSTEMS[name].build()
    with pytest.raises(ValueError, match=message), ablated(layer, ablations):
        pass
    assert layer.ablation is None
