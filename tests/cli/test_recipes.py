"""Recipes: those that headwise ships, and what systems, data sets and `--set` make of one."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.recipes import RecipeError, resolved, shipped, variants
from support.tiny_tasks import RECIPES, answer, run

import headwise as hw
from headwise.recipes.document import OFFLINE, listed_recipes
from headwise.recipes.pretrained import pretrained_model
from headwise.recipes.recipe import TASKS, load_recipe, task_class
from headwise.yaml import read_yaml, write_yaml

SHIPPED = shipped()
SMALL = """
description: small
task: translation
data: {path: interface-strings, max_length: 20}
model: {embed_dim: 16, num_heads: 4, dropout: 0.3, attention: {encoder_self: mae}}
training: {max_steps: 5, rules: {mae: {period: 2}}}
systems:
  standard: {model: {attention: standard}}
  cross:
    description: gated
    model: &cross {attention: {decoder_cross: mae}, dropout: 0.1}
    training: {max_steps: 7, rules: {mae: {unit: steps}}}
  half: {model: {<<: *cross, dropout: 0.5}}
datasets:
  french: {options: {language: fr}}
  german: {options: {language: de}, max_length: 30}
  mine: {files: {train: {source: a, target: b}}}
seeds: [1, 2]
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def value(recipe: dict[str, Any], key: str) -> Any:
    for name in key.split("."):
        recipe = recipe[name]
    return recipe


# --- shipped recipes ----------------------------------------------------------------------------


@functools.cache
def cost(name: str) -> dict[str, dict[str, Any]]:
    """What `headwise cost` says of each system, whose model it builds without memory."""
    return answer("cost", name)["systems"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_is_valid_with_every_system_and_data_set(name, tmp_path):
    written = SHIPPED[name]
    assert written["description"]
    assert all(system["description"] for system in written["systems"].values())
    combinations = list(variants(name))
    assert len(combinations) == len(written["systems"]) * len(written.get("datasets") or [0])
    for number, recipe in enumerate(combinations):
        assert recipe["training"]["max_steps"] or recipe["training"]["epochs"]
        assert not recipe["systems"] and not recipe["datasets"]
        if number in (0, len(combinations) - 1):  # as the folder of a run keeps it
            path = tmp_path / "again.yaml"
            path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
            assert resolved(path) == recipe


def starts_afresh(name: str) -> bool:
    parts = [SHIPPED[name], *SHIPPED[name]["systems"].values()]
    return not any("pretrained" in (part.get("model") or {}) for part in parts)


@pytest.mark.parametrize("name", [*filter(starts_afresh, SHIPPED)])
def test_a_shipped_recipe_builds_its_models(name):
    assert list(cost(name)) == list(SHIPPED[name]["systems"])
    for costs in cost(name).values():
        parts = dict(costs["parameters"])
        total = parts.pop("total")
        assert total == sum(parts.values()) > 0
        assert costs["macs"] >= (costs["linear_macs"] or 0) > 0 and costs["macs"] < 1e13
    baseline = next(iter(cost(name)))
    assert cost(name)[baseline]["parameters"]["routing"] == 0


def test_what_is_listed_is_what_is_shipped():
    listed, printed = listed_recipes(), " ".join(run("recipes").stdout.split())
    assert {recipe.name for recipe in listed} == set(SHIPPED)
    for recipe in listed:
        written = SHIPPED[recipe.name]
        assert (recipe.task, recipe.systems) == (written["task"], len(written["systems"]))
        steps = written["training"].get("max_steps") or written["training"]["epochs"]
        assert recipe.budget.split()[0].replace(",", "") == str(steps)
        assert recipe.name in printed
    assert {recipe.task for recipe in listed if recipe.is_offline} == set(RECIPES)
    assert yaml.safe_load(run("recipes", "lm-pydoc").stdout) == SHIPPED["lm-pydoc"]
    built_in = {name for task in TASKS for name in task_class(task).built_in}
    assert built_in - {"senteval"} == OFFLINE


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
            "training.rules.mae.period": 2,
            "training.rules.mae.unit": "steps",
        },
        "half": {"model.attention": {"decoder_cross": "mae"}, "model.dropout": 0.5},
    }.items(),
)
def test_a_system_is_the_recipe_with_its_changes(small, system, expected):
    found = resolved(small, system=system, dataset="french")
    assert {key: value(found, key) for key in expected} == expected
    assert (found["systems"], found["datasets"], found["seeds"]) == ({}, {}, [])


@pytest.mark.parametrize(
    ("dataset", "expected"),
    {
        "german": {"path": "interface-strings", "options": {"language": "de"}, "max_length": 30},
        "mine": {"path": None, "options": {}, "max_length": 20},
    }.items(),
)
def test_a_data_set_is_the_data_with_its_changes(small, dataset, expected):
    found = resolved(small, "data.max_ratio=2", system="cross", dataset=dataset)
    assert found["data"].items() >= {**expected, "max_ratio": 2}.items()
    assert found["model"]["dropout"] == 0.1


def test_data_sets_may_name_all_sources_and_the_data_what_they_share(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("two.yaml")
    datasets = {"one": {"files": {"train": "a.tsv"}}, "two": {"path": "docstrings"}}
    written = {"task": "classification", "data": {"max_length": 9}, "datasets": datasets}
    path.write_text(yaml.safe_dump({**written, "training": {"epochs": 1}}), encoding="utf-8")
    file = load_recipe(str(path))
    one, two = (file.system(None, name).data for name in file.dataset_names)
    assert (one.max_length, one.path, two.path, two.files) == (9, None, "docstrings", {})
    assert one.files == {"train": str(tmp_path / "a.tsv")}  # read from any folder
    with pytest.raises(RecipeError, match="one, two"):
        file.system(None)
    assert read_yaml(file.yaml())["data"] == {"max_length": 9}
    path.write_text(file.yaml(), encoding="utf-8")
    assert load_recipe(str(path)).yaml() == file.yaml()


CHANGES = [  # what `--set` takes, of which system, and what comes of it
    ("training.max_steps=100", None, {"training.max_steps": 100}),
    ("training.learning_rate=1e-3", None, {"training.learning_rate": 1e-3}),  # YAML 1.1: a text
    ("training.adam_betas=[0.8, 0.9]", None, {"training.adam_betas": [0.8, 0.9]}),
    ("training.rules.mae.period=3", "cross", {"training.rules.mae.period": 3}),
    ("model.attention={encoder_self: moa}", None, {"model.attention": {"encoder_self": "moa"}}),
    ("model.attention.encoder_self=moa", None, {"model.attention": {"encoder_self": "moa"}}),
    ("description=a = b", None, {"description": "a = b"}),
    ("description=no", None, {"description": "no"}),  # YAML 1.1: false
    ("description=notes #2", None, {"description": "notes #2"}),
    (" training . seed = 4 ", None, {"training.seed": 4}),
    # It wins over the changes of systems; of one system, or of a part as a whole, it does not.
    ("training.max_steps=11", "cross", {"training.max_steps": 11}),
    ("model.dropout=0", "half", {"model.dropout": 0, "model.embed_dim": 16}),
    ("systems.cross.model.dropout=0.2", "cross", {"model.dropout": 0.2}),
    ("systems.cross.model.dropout=0.2", "standard", {"model.dropout": 0.3}),
    ("systems.wide.model.embed_dim=64", "wide", {"model.embed_dim": 64, "model.dropout": 0.3}),
    # One budget takes the place of the other, also of a system's.
    ("training.epochs=3", "cross", {"training.max_steps": None, "training.epochs": 3}),
    ("data.max_length=7", "cross", {"data.max_length": 7, "data.options": {"language": "fr"}}),
    ("data.options={}", "cross", {"data.options": {}, "data.path": "interface-strings"}),
]


@pytest.mark.parametrize(("change", "system", "expected"), CHANGES)
def test_set_changes_the_recipe(small, change, system, expected):
    found = resolved(small, change, system=system, dataset="french")
    assert {key: value(found, key) for key in expected} == expected
    assert found["task"] == "translation" and found["training"]["log_every"] == 10


def test_a_number_sign_in_the_name_of_a_file_begins_no_comment():
    for name in ("notes #2.txt", "1e3 a", "#1"):
        found = resolved("lm-pydoc", f"data.files.train={name}", system="standard")
        assert found["data"]["files"] == {"train": str(Path(name).absolute())}


def test_places_of_test_sets_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    changes = ("data.tests.a={path: sub, split: {test: x}}", "data.tests.b.options.file=q.txt")
    data = resolved("probing-docstrings", *changes, system="standard", dataset="SeLen")["data"]
    assert data["tests"]["a"] == {"path": str(tmp_path / "sub"), "split": {"test": "x"}}
    assert data["tests"]["b"]["options"] == {"file": str(tmp_path / "q.txt")}


def test_other_data_keep_numbers_and_lose_what_belongs_to_the_source():
    changes = ("data.files.test=b.tsv", "data.files.train=a.tsv")  # in any order
    found = resolved("classify-docstrings", *changes, system="standard")["data"]
    assert (found["path"], found["options"], found["max_length"]) == (None, {}, 64)
    assert found["files"] == {
        part: str(Path(name).absolute()) for part, name in (("test", "b.tsv"), ("train", "a.tsv"))
    }


def test_what_names_a_folder_of_a_run_has_the_system_and_stays_where_it_is(small, monkeypatch):
    monkeypatch.chdir(small.parent)
    change = "model.pretrained=runs/{system}-seed{seed}"
    found = resolved(small, change, system="cross", dataset="french")
    assert found["model"]["pretrained"] == str(small.parent / "runs/cross-seed{seed}")


# --- bases --------------------------------------------------------------------------------------


def test_a_recipe_has_the_keys_of_its_base_where_it_has_none(small, tmp_path):
    below = tmp_path / "below.yaml"
    below.write_text(f"base: {small}\ntraining: {{epochs: 2}}\nmodel: {{dropout: 0.2}}\n")
    path = tmp_path / "own.yaml"
    path.write_text("base: below.yaml\nsystems: {own: {}}\nmodel: {attention: moa}\n")
    found = resolved(path, system="own", dataset="german")
    expected = {"model.dropout": 0.2, "model.attention": "moa", "model.embed_dim": 16}
    expected |= {"training.epochs": 2, "training.max_steps": None, "data.max_length": 30}
    assert {key: value(found, key) for key in expected} == expected
    assert list(load_recipe(str(path)).recipe.systems) == ["own"]  # they are listed as a whole
    below.write_text("base: own.yaml")
    with pytest.raises(RecipeError, match=r"base of recipe .*below\.yaml"):
        load_recipe(str(path))
    below.write_text("base: interface-string")
    with pytest.raises(RecipeError, match=r"base of recipe .*below\.yaml.*interface-strings"):
        load_recipe(str(path))


# --- models that start from a run ---------------------------------------------------------------


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The folder of a run, and its model."""
    sizes = {"vocab_size": 9, "embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 1}
    model = hw.CausalLM(hw.CausalLMConfig(**sizes, positions="rotary")).eval()
    folder = tmp_path_factory.mktemp("start")
    model.save_pretrained(folder / "model")
    return folder, model


def starting(small: Path, start: tuple[Path, Any], **model: Any) -> Any:
    path = small.parent / "starts.yaml"
    recipe = {"task": "language-modelling", "data": {"path": "pydoc-topics"}}
    recipe |= {"model": {"pretrained": str(start[0]), **model}, "training": {"epochs": 1}}
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return pretrained_model(hw.CausalLM, load_recipe(str(path)).system(None))


def test_a_model_starts_from_a_run_with_its_output_and_the_recipe_s_plan(small, start):
    neutral = {"system": "gated", "gate_init": "neutral"}
    rope = {"rope_theta": 10_000.0}
    model = starting(small, start, attention=neutral, dropout=0.4, rope_parameters=rope).eval()
    ids = torch.arange(8)[None]
    torch.testing.assert_close(model(input_ids=ids).logits, start[1](input_ids=ids).logits)
    assert model.config.dropout == 0.4 and model.config.attention == neutral


@pytest.mark.parametrize(
    ("key", "value"), [("embed_dim", 32), ("embed_dmi", 16), ("attention", "agreement")]
)
def test_what_contradicts_the_run_is_told_by_its_key(small, start, key, value):
    with pytest.raises(ValueError) as caught:
        starting(small, start, **{key: value})
    assert key in str(caught.value)


# --- YAML ---------------------------------------------------------------------------------------

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_subnormal=False)  # trainings flush these to 0
    | st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from(" #:-\n0123.eE~<="))
)


@given(st.dictionaries(st.text("abc", min_size=1), PLAIN | st.lists(PLAIN)))
def test_what_is_written_is_read_again(values):
    assert read_yaml(write_yaml(values)) == values


@pytest.mark.parametrize("text", ["no", "off", "2020-01-01", "12:30:00", "1_000", "=", "0b1"])
def test_what_is_a_text_in_yaml_1_2_is_read_as_it_is(text):
    assert read_yaml(text) == text
