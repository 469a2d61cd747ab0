"""The hash of a recipe, and what tells that its results are stale where the hash does not."""

import inspect

import pytest
import torch
from pydantic import create_model

import headwise as hw
from evidence import fingerprint as fingerprints
from evidence.experiments import Conditions, Places, recipe_hash
from evidence.fingerprint import computes_alike, fingerprint
from headwise.recipes import load_recipe
from headwise.recipes.file import RecipeFile

SMALL = ("embed_dim=32", "num_heads=4", "ffn_dim=32", "encoder_layers=1", "decoder_layers=1")
ROUTED = [*(f"model.{size}" for size in SMALL), "model.attention=agreement"]


def recipe_of(*changes, name="interface-strings"):
    return load_recipe(name, changes).system(None)


@pytest.mark.parametrize("part", ["data", "evaluation", "tokenizer"])
def test_a_new_key_changes_no_hash_until_it_is_set(part):
    recipe = recipe_of()
    newer = create_model("Newer", __base__=type(getattr(recipe, part)), added=(int, 5))
    kind = create_model("NewerRecipe", __base__=type(recipe), **{part: (newer, ...)})
    values = recipe.model_dump()
    assert recipe_hash(kind.model_validate(values)) == recipe_hash(recipe)
    values[part]["added"] = 6
    assert recipe_hash(kind.model_validate(values)) != recipe_hash(recipe)


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ("training.learning_rate=0.123", True),
        ("model.attention={system: mae, dropped_heads: 2}", True),
        ("data.corpus=package-docs", True),
        ("training.learning_rate=3e-3", False),  # as it is
        ("training.compile=false", False),  # the default
        ("training.seed=5", False),
        ("training.snapshots=false", False),
        ("training.loader_workers=2", False),
        ("description=another", False),
    ],
)
def test_what_counts(change, counts):
    own = recipe_hash(recipe_of(name="lm-pydoc"))
    assert (recipe_hash(recipe_of(change, name="lm-pydoc")) != own) == counts


def test_tasks_and_data_that_set_the_same_are_told_apart():
    kinds = [
        ("language-modelling", "pydoc-topics"),
        ("language-modelling", "package-docs"),
        ("masked-language-modelling", "pydoc-topics"),
    ]
    raw = {"model": {"layers": 2}, "training": {"max_steps": 5}}
    files = [RecipeFile("", {"task": task, "data": {"corpus": of}} | raw, []) for task, of in kinds]
    assert len({recipe_hash(file.recipe) for file in files}) == 3


def test_where_the_default_of_a_system_changes_the_fingerprint_tells(monkeypatch):
    recipe = recipe_of(*ROUTED)
    before = recipe_hash(recipe), fingerprint(recipe)
    monkeypatch.setattr(fingerprints, "_COMPUTED", {})
    assert computes_alike(fingerprint(recipe), before[1])
    monkeypatch.setattr(fingerprints, "_COMPUTED", {})
    defaults = inspect.unwrap(hw.AgreementAttention.__init__).__kwdefaults__
    monkeypatch.setitem(defaults, "inverse_temperature", 0.01)
    again = recipe_of(*ROUTED)
    assert recipe_hash(again) == before[0]
    assert not computes_alike(fingerprint(again), before[1])


def test_changes_of_systems_that_are_left_out_are_left_out_too(tmp_path):
    places = Places(tmp_path, tmp_path, tmp_path)
    some = Conditions("gpu", "translation", places, systems=("standard", "em-encoder"))
    assert some.plain.system_names == ["standard", "em-encoder"]


def test_a_gpu_trains_the_runs_of_a_laptop_in_float32(monkeypatch, tmp_path):
    def precision(scale):
        conditions = Conditions(scale, "translation", Places(tmp_path, tmp_path, tmp_path))
        recipes = conditions.file.system("standard"), conditions.plain.system("standard")
        return [recipe.training.precision for recipe in recipes]

    assert precision("laptop") == ["auto", "auto"]
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert precision("laptop") == ["float32", "auto"]  # which does not count for the hash
    assert precision("gpu") == ["bf16", "bf16"]
