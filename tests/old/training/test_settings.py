"""Settings of training: what does not fit together is found at once."""

import pytest
from pydantic import ValidationError

from headwise.heads.mae import GateSettings
from headwise.heads.weighted import BranchSettings
from headwise.models.plan import SYSTEMS
from headwise.training.settings import TrainingSettings, settings_with_rules


def test_defaults_are_those_of_the_papers():
    settings = TrainingSettings(max_steps=1)
    assert settings.adam_betas == (0.9, 0.98)
    assert settings.adam_epsilon == 1e-9
    assert settings.schedule == "inverse-sqrt"
    assert settings.mae == GateSettings(
        method="block-coordinate-descent", period=5, unit="epochs", learning_rate=1.0
    )
    assert settings.weighted == BranchSettings(
        learning_rate=None, warmup_steps=400, freeze_last=None
    )


def test_settings_of_a_rule_may_have_any_name():
    """pydantic takes no field whose name begins with an underscore."""
    kind = settings_with_rules(
        {"_own:A": SYSTEMS["weighted"].rule, "own.b:A": SYSTEMS["weighted"].rule}
    )
    settings = kind.model_validate({"max_steps": 9, "_own:A": {"freeze_last": 2}})
    assert {name: each.freeze_last for name, each in settings.of_rules().items()} == {
        "_own:A": 2,
        "own.b:A": None,
    }
    with pytest.raises(ValidationError, match=r"_own:A\.freeze_last is 10"):
        kind.model_validate({"max_steps": 9, "_own:A": {"freeze_last": 10}})


@pytest.mark.parametrize("lengths", [{}, {"max_steps": 5, "epochs": 2}])
def test_a_run_is_given_either_steps_or_epochs(lengths):
    with pytest.raises(ValidationError, match="expected exactly one of max_steps and epochs"):
        TrainingSettings(**lengths)


@pytest.mark.parametrize("count", [0, 1])
def test_an_average_is_of_two_checkpoints_or_more(count):
    with pytest.raises(ValidationError, match="needs average_last of at least 2"):
        TrainingSettings(max_steps=5, final_model="average", average_last=count)


def test_a_number_of_checkpoints_to_average_asks_for_the_average():
    with pytest.raises(ValidationError, match="average_last is 2, but final_model is 'best'"):
        TrainingSettings(max_steps=5, average_last=2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_steps", 0),
        ("learning_rate", 0),
        ("weight_decay", -0.1),
        ("precision", "fp8"),
        ("mae", {"unit": "batches"}),
        ("mae", {"momentum": 0.9}),
        ("weighted", {"freeze_last": -1}),
        ("optimiser", "adam"),
    ],
)
def test_values_outside_their_range_and_unknown_keys_are_errors(key, value):
    with pytest.raises(ValidationError) as caught:
        TrainingSettings(**{"max_steps": 5, key: value})
    assert caught.value.errors()[0]["loc"][0] == key


def test_the_warm_up_may_be_a_share_of_the_run():
    assert TrainingSettings(epochs=3, warmup_fraction=0.06).warmup(225) == 14
    assert TrainingSettings(epochs=3, warmup_steps=7).warmup(225) == 7
