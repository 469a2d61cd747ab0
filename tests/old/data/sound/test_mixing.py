"""Noise: its colour, how loud it is, and what cannot be mixed."""

import numpy as np
import pytest

from headwise.data.sound.mixing import (
    at_level,
    babble,
    colored_noise,
    mix,
    reverberate,
    rms,
    room,
)


def draw(seed=0):
    return np.random.default_rng(seed)


def decibels(ratio):
    return 20 * np.log10(ratio)


@pytest.mark.parametrize(("color", "slope"), [("white", 0), ("pink", -3.01), ("brown", -6.02)])
def test_colors_fall_by_so_many_decibels_an_octave(color, slope):
    noise = colored_noise(draw(), 2**17, color)
    assert rms(noise) == pytest.approx(1.0, rel=1e-5)
    power = np.abs(np.fft.rfft(noise)) ** 2
    octaves = [10 * np.log10(power[2**k : 2 ** (k + 1)].mean()) for k in range(8, 16)]
    assert np.diff(octaves).mean() == pytest.approx(slope, abs=0.15)


def test_silence_has_no_ratio():
    silence, sound = np.zeros(100, np.float32), np.ones(100, np.float32)
    assert np.array_equal(mix(silence, sound, 10.0), sound)
    assert np.array_equal(mix(sound, silence, 10.0), sound)
    assert np.array_equal(mix(silence, silence, 10.0), silence)
    noisy, clean = at_level(silence, silence, -20.0)
    assert np.array_equal(noisy, silence) and np.array_equal(clean, silence)


def test_the_clean_sound_is_not_clipped_where_noise_cancels_its_peak():
    clean = 0.1 * draw(1).standard_normal(1_000)
    clean[500] = 8.0
    noise = 0.1 * draw(2).standard_normal(1_000)
    noise[500] = -8.0  # the peak is in the clean sound alone
    noisy = clean + noise
    louder, its_clean = at_level(noisy.astype(np.float32), clean.astype(np.float32), -10.0)
    assert np.abs(its_clean).max() == pytest.approx(0.99)
    assert np.abs(louder).max() < 0.2
    assert np.allclose(louder / its_clean, noisy / clean, rtol=1e-3)


def test_babble_is_of_voices_that_are_equally_loud():
    one, two = draw(1).standard_normal(1_000), 50 * draw(2).standard_normal(1_000)
    mixed = babble([one.astype(np.float32), two.astype(np.float32), np.zeros(1_000, np.float32)])
    assert np.allclose(mixed, one / rms(one) + two / rms(two), atol=1e-5)
    assert np.array_equal(babble([np.zeros(5, np.float32)]), np.zeros(5))


def test_a_room_fades_and_leaves_the_direct_sound():
    response = room(draw(), 8_000, decay=0.5)
    assert response[0] == 1.0 and len(response) == 4_000
    early, late = rms(response[1:400]), rms(response[-400:])
    assert 45 < decibels(early / late) < 60
    impulse = np.zeros(5_000, np.float32)
    impulse[100] = 1.0
    heard = reverberate(impulse, response)
    assert heard.dtype == np.float32
    assert heard.shape == impulse.shape
    assert np.allclose(heard[100:4_100], response, atol=1e-6) and np.abs(heard[:100]).max() < 1e-6


@pytest.mark.parametrize(("samples", "echo"), [(1, 1), (1, 50), (50, 1), (300, 200), (200, 300)])
def test_reverberation_is_a_convolution(samples, echo):
    wave = draw(1).standard_normal(samples).astype(np.float32)
    response = draw(2).standard_normal(echo).astype(np.float32)
    expected = [
        sum(float(response[k]) * float(wave[n - k]) for k in range(min(n + 1, echo)))
        for n in range(samples)
    ]
    assert np.allclose(reverberate(wave, response), expected, atol=1e-5)
