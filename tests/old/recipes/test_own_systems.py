"""Settings of the rules of systems of a user's own."""

import pickle
import sys

import pytest
import yaml
from small_recipe import SMALL, message

import headwise as hw
from headwise.models.trust import trusting
from headwise.recipes import load_recipe, to_yaml
from headwise.training.rules import TrainingRules

OF_A_USER = """
import headwise as hw

class SpeedSettings(hw.systems.RuleSettings):
    rate: float = 0.1

class Speed(hw.systems.Rule):
    settings_class = SpeedSettings

class A(hw.MultiHeadAttention):
    rule = Speed

class Sub(A):
    pass

class Plain(hw.MultiHeadAttention):
    pass

class Half(hw.BranchedAttention):
    pass

class LikeMae(hw.MixtureOfAttentiveExperts):
    rule = hw.MixtureOfAttentiveExperts.rule
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The name of a package whose systems its module `impl` declares, and itself imports."""
    name = "_heads_of_a_user"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text(f"from {name}.impl import A, Half, Sub\n")
    (folder / "impl.py").write_text(OF_A_USER)
    monkeypatch.syspath_prepend(tmp_path)
    with trusting():
        yield name
    for module in (name, f"{name}.impl"):
        sys.modules.pop(module, None)


def with_training(tmp_path, training, attention="standard"):
    path = tmp_path / "own.yaml"
    own = {**yaml.safe_load(SMALL), "training": {"max_steps": 500, **training}}
    own["model"]["attention"] = attention
    path.write_text(yaml.safe_dump(own, sort_keys=False), encoding="utf-8")
    return str(path)


def test_settings_reach_the_rule_of_a_subclass_too(tmp_path, package):
    path = with_training(tmp_path, {f"{package}.impl:A": {"rate": 0.7}}, f"{package}:Sub")
    recipe = load_recipe(path).recipe
    rules = training_rules_of(recipe)
    assert [(name, rule.settings.rate) for name, rule in rules.items()] == [
        (f"{package}.impl:A", 0.7)
    ]
    (tmp_path / "stamp.yaml").write_text(to_yaml(recipe), encoding="utf-8")
    again = load_recipe(str(tmp_path / "stamp.yaml")).recipe
    assert to_yaml(again) == to_yaml(recipe)
    assert f"{package}.impl:A:" in to_yaml(recipe)


def test_a_recipe_with_such_settings_goes_to_another_process(tmp_path, package):
    path = with_training(tmp_path, {f"{package}.impl:A": {"rate": 0.7}}, f"{package}:Sub")
    for recipe in (load_recipe(path).recipe, load_recipe("lm-pydoc").recipe):
        assert to_yaml(pickle.loads(pickle.dumps(recipe))) == to_yaml(recipe)


def training_rules_of(recipe):
    """The rules of a model of one stack with the attention of a recipe."""
    model = hw.CausalLM(
        hw.CausalLMConfig(
            vocab_size=9,
            embed_dim=16,
            num_heads=4,
            ffn_dim=32,
            layers=1,
            attention=recipe.model.attention,
        )
    )
    return TrainingRules(model, recipe.training.of_rules()).rules


@pytest.mark.parametrize("where", ["training", "systems.mae.training"])
def test_set_finds_a_system_whose_name_has_dots(tmp_path, package, where):
    path = with_training(tmp_path, {f"{package}.impl:A": {"rate": 0.7}})
    chosen = load_recipe(path, [f"{where}.{package}.impl:A.rate=0.5"]).system("mae")
    assert chosen.training.of_rules()[f"{package}.impl:A"].rate == 0.5


def test_an_ablation_is_found_under_a_name_with_dots(small, package):
    file = load_recipe(small, [f"evaluation.ablation.{package}.impl:Half=uniform"])
    assert file.recipe.evaluation.ablation == {f"{package}.impl:Half": "uniform"}


@pytest.mark.parametrize(
    "key, said",
    [
        ("gone_heads:A", "training.gone_heads:A: the system 'gone_heads:A' cannot be loaded: it"),
        ("{}.impl:B", "has no attribute 'B'; mend the module"),
        ("{}.impl:Plain", "impl:Plain: the system has no rule of training with settings"),
        ("{}:A", "the settings of its rule are named {}.impl:A; give them under that name"),
        ("{}.impl:Sub", "the settings of its rule are named {}.impl:A; give"),
        ("{}.impl:LikeMae", "the settings of its rule are named mae; give them"),
    ],
)
def test_a_system_without_settings_under_training_says_why(tmp_path, package, key, said):
    assert said.format(package) in message(with_training(tmp_path, {key.format(package): {}}))


def test_a_wrong_setting_of_a_system_of_ones_own_is_named(tmp_path, package):
    said = message(with_training(tmp_path, {f"{package}.impl:A": {"rat": 1}}))
    assert f"there is no key 'training.{package}.impl:A.rat'; did you mean 'rate'?" in said
