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
