"""Recipes: those that headwise ships, and what systems, data sets and `--set` make of one."""

import functools
from typing import Any

import pytest
import yaml
from support.recipes import RecipeError, resolved, shipped, variants
from support.tiny_tasks import RECIPES, answer

SHIPPED = shipped()
SMALL = """
description: small
data: {corpus: interface-strings, max_length: 20}
model: {embed_dim: 16, num_heads: 4, dropout: 0.3, attention: {encoder_self: mae}}
training: {max_steps: 5, mae: {period: 2}}
systems:
  standard: {model: {attention: standard}}
  cross:
    description: gated
    model: &cross {attention: {decoder_cross: mae}, dropout: 0.1}
    training: {max_steps: 7, mae: {unit: steps}}
  cross-0.5: {model: {<<: *cross, dropout: 0.5}}
datasets:
  french: {}
  german: {language: de, max_length: 30}
  mine: {corpus: files, train: {source: a, target: b}}
seeds: [1, 2]
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def value(recipe: dict[str, Any], key: str) -> Any:
    for each in key.split("."):
        recipe = recipe[each]
    return recipe


# --- shipped recipes ----------------------------------------------------------------------------


@functools.cache
def cost(name: str) -> dict[str, dict[str, Any]]:
    """What `headwise cost` says of each system, whose model it builds without memory."""
    (found,) = answer("cost", name)["recipes"]
    return found["systems"]


def parameters(name: str, system: str) -> int:
    return cost(name)[system]["parameters"]["total"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_is_valid_with_every_system_and_data_set(name, tmp_path):
    written = SHIPPED[name]
    assert written["description"]
    assert all(system["description"] for system in written["systems"].values())
    combinations = list(variants(name))
    assert len(combinations) == len(written["systems"]) * len(written.get("datasets") or [0])
    for number, found in enumerate(combinations):
        assert found["training"]["max_steps"] or found["training"]["epochs"]
        assert not found["systems"] and not found["datasets"]
        if number in (
            0,
            len(combinations) - 1,
        ):  # as the folder of a run keeps it
            path = tmp_path / "again.yaml"
            path.write_text(yaml.safe_dump(found), encoding="utf-8")
            assert resolved(path) == found


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_builds_its_models(name):
    assert list(cost(name)) == list(SHIPPED[name]["systems"])
    for found in cost(name).values():
        parts = dict(found["parameters"])
        total = parts.pop("total")
        assert total == sum(parts.values()) > 0
        assert found["macs"] >= (found["linear_macs"] or 0) > 0 and found["macs"] < 1e13
    has_start = "pretrained" in SHIPPED[name]["model"] or any(
        "pretrained" in (system.get("model") or {}) for system in SHIPPED[name]["systems"].values()
    )
    # The first is the baseline, but where recipes of fine-tuning compare ways to train one system.
    assert has_start or cost(name)[next(iter(cost(name)))]["parameters"]["routing"] == 0


def test_what_is_listed_is_what_is_shipped():
    listed = answer("recipes") + answer("recipes", "--papers")
    assert {each["name"] for each in listed} == set(SHIPPED)
    for each in listed:
        written = SHIPPED[each["name"]]
        assert each["task"] == written.get("task", "translation")
        assert each["task"] in RECIPES
        assert each["systems"] == len(written["systems"])
        steps = written["training"].get("max_steps") or written["training"]["epochs"]
        assert each["budget"].split()[0].replace(",", "") == str(steps)
    assert {each["task"] for each in answer("recipes")} == set(RECIPES)  # each has one offline
    assert answer("recipes", "lm-pydoc") == SHIPPED["lm-pydoc"]


# Sizes that the papers print, in millions; `more` weights are those of a larger vocabulary.
MOA, MLM = "moa-wmt14-en-de", "moa-wikitext103-mlm"
WEIGHTED, ROUTED, BERT = "weighted-wmt14-en-de", "agreement-wmt14-en-de", "tim-bert"
PRINTED = {
    (MOA, 4800 * 512): {
        "moa-base": 65,
        "moa-a": 87,
        "moa-b": 125,
        "moa-c": 83,
        "moa-d": 123,
        "moa-e": 200,
        "moa-f": 200,
        "moa-big": 200,
    },
    (MLM, 0): {
        "standard": 51.34,
        "moa-8k8e128d": 52.45,
        "moa-8k8e256d": 61.89,
        "moa-8k16e256d": 78.75,
        "moa-8k32e256d": 112.47,
        "moa-8k64e256d": 179.91,
    },
    ("mae-wmt14-en-de", 0): {
        **dict.fromkeys(("standard", "uni-mae-7", "uni-mae-6"), 61),
        **dict.fromkeys(("mae-7", "mae-6", "nobcd"), 63),
    },
    ("mae-iwslt14-de-en", 0): {"standard": 39, "mae-7": 41},
    (WEIGHTED, 4000 * 512): {
        "standard-2-layers": 36,
        "standard-4-layers": 50,
        "standard": 65,
        "standard-8-layers": 80,
        "standard-large": 213,
    },
    (BERT, 0): {"standard": 110, "standard-130m": 130, "tim-comp": 130},
}


@pytest.mark.parametrize(("name", "more"), PRINTED)
def test_the_sizes_of_models_are_the_papers(name, more):
    for system, millions in PRINTED[name, more].items():
        assert (parameters(name, system) + more) / 1e6 == pytest.approx(millions, rel=0.03), system


MACS = {"standard": 604, "moa-base": 628, "moa-a": 841, "moa-b": 841, "moa-c": 524}
MACS |= {"moa-d": 631, "moa-e": 841, "moa-f": 654, "moa-big": 1220}


def test_macs_are_those_that_the_moa_paper_counts():
    """Those of products with weights, of ten tokens on each side."""
    found = {system: cost(MOA)[system]["linear_macs"] / 1e6 for system in MACS}
    assert found == pytest.approx(MACS, rel=0.003)


@pytest.mark.parametrize(
    ("system", "millions"),
    {"em-encoder": 12.6, "em-layers-1-3": 6.3, "agreement": 4.2, "em-layer-1": 2.1}.items(),
)
def test_routing_adds_what_its_paper_says(system, millions):
    added = parameters(ROUTED, system) - parameters(ROUTED, "standard")
    assert added / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize(("layers", "branches"), [(2, 8), (4, 8), (6, 8), (8, 8), (6, 16)])
def test_branches_add_two_scalars_each(layers, branches):
    """And they do without the bias between an attention and its feed-forward."""
    kind = {(6, 8): "", (6, 16): "-large"}.get((layers, branches), f"-{layers}-layers")
    width = 64 * branches
    added = parameters(WEIGHTED, f"weighted{kind}") - parameters(WEIGHTED, f"standard{kind}")
    assert added == 2 * layers * (2 * branches - width)


# --- what a system, a data set and `--set` make of a recipe --------------------------------------


@pytest.mark.parametrize(
    ("system", "expected"),
    {
        None: {"model.attention": {"encoder_self": "mae"}, "model.dropout": 0.3},
        "standard": {"model.attention": "standard", "training.max_steps": 5},
        "cross": {
            "model.attention": {"decoder_cross": "mae"},  # a plan is replaced as a whole
            "model.dropout": 0.1,
            "model.embed_dim": 16,  # what a system does not name stays
            "training.max_steps": 7,
            "training.mae.period": 2,
            "training.mae.unit": "steps",
        },
        "cross-0.5": {"model.attention": {"decoder_cross": "mae"}, "model.dropout": 0.5},
    }.items(),
)
def test_a_system_is_the_recipe_with_its_changes(small, system, expected):
    found = resolved(small, system=system, dataset="french")
    assert {key: value(found, key) for key in expected} == expected
    assert (found["systems"], found["datasets"], found["seeds"]) == ({}, {}, [])


@pytest.mark.parametrize(
    ("dataset", "expected"),
    {
        "french": {"language": "fr", "max_length": 20},
        "german": {"language": "de", "max_length": 30},
        "mine": {"corpus": "files", "train": {"source": "a", "target": "b"}},
    }.items(),
)
def test_a_data_set_is_the_data_with_its_changes(small, dataset, expected):
    found = resolved(small, "data.max_ratio=2", system="cross", dataset=dataset)
    assert {key: found["data"][key] for key in expected} == expected
    assert found["data"]["max_ratio"] == 2 and found["model"]["dropout"] == 0.1


CHANGES = [  # what `--set` takes, of which system, and what comes of it
    ("training.max_steps=100", None, {"training.max_steps": 100}),
    ("training.learning_rate=1e-3", None, {"training.learning_rate": 1e-3}),  # YAML 1.1: a text
    ("training.adam_betas=[0.8, 0.9]", None, {"training.adam_betas": [0.8, 0.9]}),
    ("training.mae.period=3", "cross", {"training.mae.period": 3, "training.mae.unit": "steps"}),
    ("model.attention={encoder_self: moa}", None, {"model.attention": {"encoder_self": "moa"}}),
    ("description=a = b", None, {"description": "a = b"}),
    ("description=no", None, {"description": "no"}),  # YAML 1.1: false
    (" training . seed = 4 ", None, {"training.seed": 4}),
    # It wins over the changes of systems; of one system, or of a part as a whole, it does not.
    ("training.max_steps=11", "cross", {"training.max_steps": 11}),
    ("model.dropout=0", "cross-0.5", {"model.dropout": 0, "model.embed_dim": 16}),
    ("systems.cross.model.dropout=0.2", "cross", {"model.dropout": 0.2}),
    ("systems.cross.model.dropout=0.2", "standard", {"model.dropout": 0.3}),
    ("systems.cross-0.5.model.dropout=0", "cross-0.5", {"model.dropout": 0}),  # a name with a dot
    ("systems.wide.model.embed_dim=64", "wide", {"model.embed_dim": 64, "model.dropout": 0.3}),
    ("model={embed_dim: 32}", "cross", {"model.embed_dim": 32, "model.dropout": 0.1}),
    # One budget takes the place of the other, also of a system's.
    ("training.epochs=3", "cross", {"training.max_steps": None, "training.epochs": 3}),
    ("data.max_length=7", "cross", {"data.max_length": 7, "data.language": "fr"}),
]


@pytest.mark.parametrize(("change", "system", "expected"), CHANGES)
def test_set_changes_the_recipe(small, change, system, expected):
    found = resolved(small, change, system=system, dataset="french")
    assert {key: value(found, key) for key in expected} == expected
    assert found["task"] == "translation" and found["training"]["log_every"] == 10


def test_another_kind_of_data_keeps_what_it_has_too():
    changes = ("data.train=a.tsv", "data.corpus=files")  # in any order
    found = resolved("classify-docstrings", *changes, system="standard")["data"]
    assert (found["corpus"], found["train"], found["max_length"]) == ("files", "a.tsv", 64)
    assert "packages" not in found


@pytest.mark.parametrize(
    ("system", "dataset", "must_name"),
    [
        ("standart", "french", {"standart", "standard", "cross"}),
        ("cross", "germna", {"germna", "german"}),
    ],
)
def test_an_unknown_system_or_data_set_is_told_with_those_there_are(
    small, system, dataset, must_name
):
    with pytest.raises(RecipeError) as caught:
        resolved(small, system=system, dataset=dataset)
    assert all(name in str(caught.value) for name in must_name)
