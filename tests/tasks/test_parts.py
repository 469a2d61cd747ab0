import math

import numpy as np
import pytest
from pydantic import ValidationError

from headwise.tasks.outcome import Score
from headwise.tasks.parts import DividedSettings, HubSettings, given_parts, part_of
from headwise.tasks.text.running.settings import TextFiles


def test_a_share_is_divided_off_for_parts_that_are_not_given():
    settings = DividedSettings(validation_fraction=0.2, test_fraction=0.3)
    assert settings.fractions() == (0.2, 0.3)
    assert settings.fractions({"train": 1, "test": 2}) == (0.2, 0.0)
    assert settings.fractions(["validation"]) == (0.0, 0.3)


@pytest.mark.parametrize("fraction", [0, 0.5, -0.1])
def test_shares_leave_something_to_train_on(fraction):
    with pytest.raises(ValidationError, match="test_fraction"):
        DividedSettings(test_fraction=fraction)


def test_splits_are_those_that_are_named():
    settings = HubSettings(name="owner/data", config="en", test_split=None)
    assert settings.splits() == {"train": "train", "validation": "validation"}
    assert settings.origin == "dataset owner/data en"


def test_given_parts_are_in_their_order(tmp_path):
    settings = TextFiles(test=tmp_path / "c", train=tmp_path / "a")
    assert given_parts(settings) == {"train": [tmp_path / "a"], "test": [tmp_path / "c"]}
    assert list(given_parts(settings)) == ["train", "test"]


def test_shares_are_those_asked_for():
    parts = [part_of(str(number), 0.1, 0.3) for number in range(10_000)]
    shares = [parts.count(part) / 10_000 for part in ("validation", "test")]
    assert shares == pytest.approx([0.1, 0.3], abs=0.02)


def test_a_score_has_the_interval_of_its_statistic():
    rows = np.arange(100.0)[:, None]
    score = Score.of("mean", rows, lambda items: items.mean(), digits=3, note="of numbers")
    assert score.value == 49.5 and score.low < 45 < 54 < score.high
    assert (score.digits, score.note, score.higher_is_better) == (3, "of numbers", True)
    assert score == Score.of(
        "mean", rows.tolist(), lambda items: items.mean(), digits=3, note="of numbers"
    )


def test_what_is_no_number_has_no_interval():
    score = Score.of("mean", [[1.0], [math.nan]], lambda items: items.mean())
    assert math.isnan(score.value) and score.interval is None
