"""The recipes that headwise ships: they fit, and have the papers' settings and sizes."""

from functools import cache

import pytest
import torch
import yaml

from headwise.recipes import load_recipe, shipped_recipes, to_yaml
from headwise.recipes.catalogue import task_class


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_fits_with_each_of_its_systems(name):
    file = load_recipe(name)
    assert file.recipe.description
    # Recipes of fine-tuning compare ways to train one system.
    assert file.system_names[0] == "standard" or file.recipe.model.pretrained is not None
    assert len(file.system_names) >= 2
    for system in file.system_names:
        assert file.recipe.systems[system].description
        recipe = file.system(system)
        assert recipe.systems == {}
        # What a run's folder keeps can be read back, and is the same recipe.
        assert type(recipe).model_validate(yaml.safe_load(to_yaml(recipe))) == recipe


SETTINGS_OF_THE_PAPERS = [
    ("mae-wmt14-en-de", "standard", "training.warmup_steps", 4000),
    ("mae-wmt14-en-de", "mae-7", "training.warmup_steps", 8000),
    ("mae-wmt14-en-de", "mae-7", "training.mae.method", "block-coordinate-descent"),
    ("mae-wmt14-en-de", "nobcd", "training.mae.method", "joint"),
    ("mae-iwslt14-de-en", "mae-6", "training.warmup_steps", 8000),
    ("mae-iwslt14-de-en", "mae-6", "training.weight_decay", 1e-4),
    ("moa-wmt14-en-de", "moa-base", "training.epochs", 100),
    ("moa-wmt14-en-de", "moa-base", "model.attention_dropout", 0.2),
    ("moa-wmt14-en-de", "moa-f", "model.attention.size", "4K32E256D"),
    ("moa-wmt14-en-de", "moa-big", "training.gradient_accumulation", 64),
    ("moa-losses-wmt14-en-de", "16e-z-large", "model.attention.size", "8K16E128D"),
    ("moa-losses-wmt14-en-de", "16e-z-large", "model.attention.balance_coef", 0),
    ("moa-losses-wmt14-en-de", "32e-both", "model.attention.z_coef", 0.001),
    ("moa-losses-wmt14-en-de", "8e-z", "model.attention_dropout", 0.2),
    ("moa-wmt14-en-fr", "moa-base", "training.epochs", 50),
    ("moa-wmt14-en-fr", "moa-big", "training.epochs", 100),
    ("moa-wmt14-en-fr", "moa-base", "model.attention_dropout", 0),
    ("moa-wmt14-en-fr", "moa-big", "model.attention_dropout", 0.1),
    ("moa-wmt14-en-fr", "moa-big", "training.warmup_steps", 8000),
    ("weighted-wmt14-en-de", "standard", "training.max_steps", 100_000),
    ("weighted-wmt14-en-de", "weighted", "training.max_steps", 60_000),
    ("weighted-wmt14-en-de", "weighted", "training.final_model", "last"),
    ("weighted-wmt14-en-de", "weighted-8-layers", "model.dropout", 0.3),
    ("weighted-wmt14-en-de", "standard-8-layers", "model.dropout", 0.1),
    ("weighted-wmt14-en-de", "standard-large", "training.max_steps", 300_000),
    ("weighted-wmt14-en-fr", "weighted-large", "training.max_steps", 250_000),
    ("weighted-wmt14-en-fr", "weighted-large", "training.weighted.freeze_last", 10_000),
    ("agreement-wmt14-en-de", "agreement", "training.max_steps", 100_000),
    ("agreement-wmt17-zh-en", "agreement-big", "training.max_steps", 300_000),
    ("agreement-wmt17-zh-en", "agreement-big", "model.dropout", 0.3),
    ("tim-wmt14-en-de", "tim-comp", "model.attention.num_mechanisms", 2),
    ("tim-wmt14-en-de", "tim-nocomp", "model.attention.competition", False),
    ("tim-bert", "tim-comp", "model.ffn_activation", "gelu"),
    ("tim-bert", "standard", "model.positions", "learned"),
    ("tim-cifar10", "tim-comp", "model.positions", "learned"),
    ("tim-mnist-cifar10", "standard", "model.ffn_activation", "gelu"),
    ("tim-dns", "tim-comp-2", "model.ffn_activation", "leaky-relu"),
    ("moa-wikitext103-mlm", "standard", "model.positions", "learned"),
]


@pytest.mark.parametrize(("name", "system", "key", "value"), SETTINGS_OF_THE_PAPERS)
def test_the_papers_settings_are_there(name, system, key, value):
    found = load_recipe(name).system(system).model_dump()
    for part in key.split("."):
        found = found[part]
    assert found == value


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("mae-wmt14-en-de", 8 * 4096),
        ("moa-wmt14-en-de", 32 * 8092),
        ("moa-losses-wmt14-en-de", 32 * 8092),
        ("moa-wmt14-en-fr", 32 * 8092),
        ("weighted-wmt14-en-de", 25_000),
        ("weighted-wmt14-en-fr", 25_000),
        ("agreement-wmt14-en-de", 8 * 4096),
        ("agreement-wmt17-zh-en", 8 * 4096),
        ("tim-wmt14-en-de", 8 * 4096),
    ],
)
def test_a_step_sees_as_many_tokens_as_in_the_paper(name, tokens):
    file = load_recipe(name)
    for system in file.system_names:
        training = file.system(system).training
        expected = 64 * 4096 if system == "moa-big" else tokens
        assert training.batch_tokens * training.gradient_accumulation == expected


# Sizes of the models, which the papers give or which follow from what they say


@cache
def parameters(name, system):
    """The number of parameters of a shipped recipe's system, if its vocabulary is filled."""
    recipe = load_recipe(name).system(system)
    task = task_class(recipe.task)
    with torch.device("meta"):
        model = task.model_class(task.nominal_config(recipe))
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("layers", "branches", "millions"),
    [
        ("-2-layers", 8, 36),
        ("-4-layers", 8, 50),
        ("", 8, 65),
        ("-8-layers", 8, 80),
        ("-large", 16, 213),
    ],
)
def test_sizes_of_the_weighted_transformer(layers, branches, millions):
    """Its table 2; our vocabulary of 37,000 is a little smaller than the paper's seems to be."""
    recipe = "weighted-wmt14-en-de"
    standard = parameters(recipe, f"standard{layers}")
    assert standard / 1e6 == pytest.approx(millions, rel=0.07)
    model = load_recipe(recipe).system(f"weighted{layers}").model
    replaced = 2 * model.encoder_layers  # pairs of an attention and a feed-forward
    # κ and α; no bias between attention and feed-forward.
    added = replaced * (2 * branches - model.embed_dim)
    assert parameters(recipe, f"weighted{layers}") == standard + added


@pytest.mark.parametrize(
    ("system", "modules", "printed"),
    [
        ("simple-encoder", 6, 12.6),
        ("em-encoder", 6, 12.6),
        ("em-cross", 6, 12.6),
        ("em-decoder", 6, 12.6),
        ("em-encoder-cross", 12, 25.2),
        ("em-all", 18, 37.8),
        ("em-layers-4-6", 3, 94.3 - 88.0),
        ("em-layers-1-3", 3, 94.3 - 88.0),
        ("agreement", 2, 92.2 - 88.0),
        ("em-layer-6", 1, 90.1 - 88.0),
        ("em-layer-1", 1, 90.1 - 88.0),
    ],
)
def test_sizes_of_routing_by_agreement(system, modules, printed):
    """Its tables 2 and 3: with H heads, H·d² weights more per module that is routed."""
    name = "agreement-wmt14-en-de"
    added = parameters(name, system) - parameters(name, "standard")
    weights = modules * 8 * 512**2
    assert weights == pytest.approx(added, rel=0.01)  # apart from biases and what EM learns
    assert weights / 1e6 == pytest.approx(printed, abs=0.15)


@pytest.mark.parametrize("name", ["agreement-wmt14-en-de", "agreement-wmt17-zh-en"])
def test_sizes_of_effective_aggregation(name):
    """Its table 4: 4 million more for the base model, 33 million more for the big one."""
    base = parameters(name, "agreement") - parameters(name, "standard")
    big = parameters(name, "agreement-big") - parameters(name, "standard-big")
    assert round(base / 1e6) == 4
    assert big / 1e6 == pytest.approx(33, abs=1)


@pytest.mark.parametrize(
    ("system", "millions"),
    [
        ("moa-base", 65),
        ("moa-a", 87),
        ("moa-b", 125),
        ("moa-c", 83),
        ("moa-d", 123),
        ("moa-e", 200),
        ("moa-f", 200),
        ("moa-big", 200),
    ],
)
def test_sizes_of_mixtures_of_attention_heads(system, millions):
    """Its table 3, whose vocabulary has some 4,800 subwords more than the 32,000 of its text."""
    found = (parameters("moa-wmt14-en-de", system) + 4800 * 512) / 1e6
    assert found == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("system", ["tim-comp", "tim-nocomp"])
def test_independent_mechanisms_are_as_large_as_the_standard_model(system):
    standard = parameters("tim-wmt14-en-de", "standard")
    assert parameters("tim-wmt14-en-de", system) == pytest.approx(standard, rel=0.01)
