"""Models evaluated otherwise than they were trained: ablations against the equations."""

import copy
import pickle

import pytest
import tiny
import torch
from systems import DIM, SYSTEMS
from tiny import MOA, PLANS, tokens

from headwise.models.ablation import (
    ablated,
    ablation_options,
    check_ablations,
    held_systems,
    parse_ablations,
)
from headwise.models.sites import attention_sites

BATCH, TIME = 3, 5


def x_():
    return torch.randn(BATCH, TIME, DIM, dtype=torch.float64)


# MAE


# MoA


# Agreement


# TIM


# Of all


PLAN = {
    "encoder_self": {"system": "weighted", "layers": [0]},
    "decoder_self": "mae",
    "decoder_cross": [{**MOA, "layers": [0]}, {"system": "agreement", "layers": [1]}],
}
SITE = "model.decoder.layers.0.self_attention"


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
    path = "model.decoder.layers.1.self_attention"
    with ablated(model, path, expert=3):
        assert [p for p, system in systems.items() if system.ablation is not None] == [path]
    x = torch.randn(2, 5, systems[path].embed_dim)
    with ablated(model, path, expert=3):
        by_path = systems[path](x).output
    with ablated(model, {"mae": {"name": "without-expert", "expert": 3}}):
        assert torch.equal(systems[path](x).output, by_path)
    with ablated(model, "encoder.layers.0", "top-k", top_k=1):  # it holds that system alone
        (changed,) = [p for p, system in systems.items() if system.ablation is not None]
        assert changed.startswith("model.encoder.layers.0.")
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
        (
            "model.encoder.layers.0.self_atention",
            None,
            {"head": 0},
            ["did you mean", "such as 'model.encoder"],
        ),
        ("model.decoder.layers.0", None, {"head": 0}, ["where 2 systems are", "cross_attention'"]),
        ("model.encoder.embedding", None, {"head": 0}, ["where 0 systems are"]),
        (SITE, None, {}, ["has nothing", "expert=0 or head=0"]),
        (SITE, None, {"exprt": 1}, ["has exprt=1", "did you mean 'expert'"]),
        (SITE, None, {"expert": 99}, ["expected 0 to"]),
        (SITE, "unifrom", {}, ["mean 'uniform'"]),
        (SITE, "uniform", {"seed": 1}, ["the option 'seed'"]),
        ({"mae": "uniform"}, None, {"expert": 1}, ["and nothing beside it"]),
        (3, None, {}, ["ablated has 3", "a mapping"]),
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
    layers = [p.path for p in attention_sites(model) if p.path.startswith("model.decoder.layers.0")]
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


@pytest.mark.parametrize(
    ("ablations", "parts"),
    [
        ({"wighted": "uniform"}, ["ablation: it names the system 'wighted'", "mean 'weighted'"]),
        ({"ScaledHeads": "even"}, ["the system 'ScaledHeads', expected", ", module:Class"]),
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


def scaled(layer, factor: float, index, most: int = 2, *further, power=1, **others):
    """Options of every kind."""


def test_options_of_an_ablation_are_what_it_takes_behind_the_system():
    assert list(ablation_options(scaled)) == ["factor", "most", "power"]


def test_two_ablations_of_a_system_are_an_error():
    with pytest.raises(ValueError, match=r"'mae=without-expert,expert=1', but mae has one already"):
        parse_ablations(["mae=uniform", "mae=without-expert,expert=1"])


@pytest.mark.parametrize("option", ["name=random", "expert=2"])
def test_an_option_that_comes_twice_is_an_error(option):
    text = f"mae=without-expert,expert=1,{option}"
    with pytest.raises(ValueError, match=f"'{text}', which gives {option.partition('=')[0]} twice"):
        parse_ablations([text])
