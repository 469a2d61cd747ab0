"""How two recipes differ."""

from headwise.recipes import differences, load_recipe, to_yaml


def test_no_differences_between_a_recipe_and_itself(small):
    text = to_yaml(load_recipe(small).recipe)
    assert differences(text, text) == []


def test_differences_name_the_key_and_both_values(small):
    old = to_yaml(load_recipe(small).system("standard"))
    new = to_yaml(load_recipe(small, ["training.seed=7", "model.norm=pre"]).system("standard"))
    assert differences(old, new) == [
        "model.norm: post before, pre now",
        "training.seed: 1 before, 7 now",
    ]


def test_differences_name_keys_that_only_one_has():
    old, new = "a: {b: 1}\nc: 2", "a: {d: 3}\nc: 2"
    assert differences(old, new) == [
        "a.b: 1 before, not set now",
        "a.d: not set before, 3 now",
    ]
