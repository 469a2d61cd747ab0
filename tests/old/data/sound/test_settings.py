"""Settings of speech data that do not fit."""

import pytest
import sounds
from pydantic import TypeAdapter, ValidationError

from headwise.data.sound.settings import SpeechSettings


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({**sounds.GENERATED, "rate": 44_100}, "expected a multiple of 125"),
        ({**sounds.GENERATED, "snr": [10, 0]}, "expected its lower end first"),
        (
            {**sounds.GENERATED, "noise": ["recordings"]},
            "generated speech has none",
        ),
        ({**sounds.GENERATED, "test_noise": ["recordings"]}, "generated speech has none"),
        ({**sounds.GENERATED, "noise": ["green"]}, "noise"),
        ({"corpus": "folders", "clean": "a", "noise": ["recordings"]}, "name the kind recordings"),
        (
            {"corpus": "folders", "clean": "a", "speaker_pattern": "("},
            "a regular expression",
        ),
        ({"corpus": "folders", "clean": "a", "speaker_pattern": "a"}, "put the part of the name"),
    ],
)
def test_settings_that_do_not_fit(data, words):
    with pytest.raises(ValidationError, match=words):
        TypeAdapter(SpeechSettings).validate_python(data)
