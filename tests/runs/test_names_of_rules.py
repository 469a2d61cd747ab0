"""The settings of a rule of training, which may be named after any of the systems that have it."""

import pytest

import headwise as hw

BY_NAME = "mae"
BY_CLASS = f"{hw.MixtureOfAttentiveExperts.__module__}:{hw.MixtureOfAttentiveExperts.__qualname__}"


def rules_with(settings):
    layer = hw.MixtureOfAttentiveExperts(embed_dim=8, num_heads=2)
    return hw.training_rules(layer, total_steps=12, settings=settings)


@pytest.mark.parametrize("names", [(BY_NAME, BY_CLASS), (BY_CLASS, BY_NAME)])
def test_other_settings_under_a_second_name_of_a_rule_are_an_error_that_names_both(names):
    with pytest.raises(ValueError) as caught:
        rules_with({names[0]: {"period": 3}, names[1]: {"period": 4}})
    assert all(repr(name) in str(caught.value) for name in names)


def test_the_same_settings_under_two_names_of_a_rule_are_those_under_one():
    twice = rules_with({BY_NAME: {"period": 3}, BY_CLASS: {"period": 3}})
    once = rules_with({BY_NAME: {"period": 3}})
    other = rules_with({BY_NAME: {"period": 4}})
    assert [each.rules[BY_NAME].settings.period for each in (twice, once, other)] == [3, 3, 4]
