"""Generated voices: the same each time, and not alike."""

import numpy as np

from headwise.data.sound.mixing import rms
from headwise.data.sound.voices import speak


def test_the_same_utterance_each_time():
    assert np.array_equal(speak(3, 5, 1.0, 8_000), speak(3, 5, 1.0, 8_000))


def test_speakers_and_utterances_differ():
    waves = [speak(speaker, utterance, 1.0, 8_000) for speaker in (0, 1) for utterance in (0, 1)]
    for i in range(4):
        for j in range(i):
            assert abs(np.corrcoef(waves[i], waves[j])[0, 1]) < 0.3


def test_lengths_rates_and_levels():
    for seconds, rate in ((0.01, 8_000), (0.5, 8_000), (2.0, 16_000)):
        wave = speak(1, 2, seconds, rate)
        assert wave.shape == (int(seconds * rate),) and wave.dtype == np.float32
        assert np.isfinite(wave).all() and np.abs(wave).max() < 1
    assert abs(rms(speak(0, 0, 2.0, 8_000)) - 0.05) < 1e-6
