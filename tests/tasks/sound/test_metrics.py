"""PESQ and SI-SDR."""

import importlib.util
import math

import numpy as np
import pytest

from headwise.data.sound.voices import speak
from headwise.tasks.sound.metrics import pesq_score, si_sdr

needs_pesq = pytest.mark.skipif(
    importlib.util.find_spec("pesq") is None, reason="pesq is not installed: no C compiler built it"
)


def test_si_sdr_is_that_of_its_equation_and_of_no_scale():
    draw = np.random.default_rng(0)
    for _ in range(20):
        s, estimate = draw.standard_normal((2, 50))
        alpha = sum(a * b for a, b in zip(estimate, s, strict=True)) / sum(a * a for a in s)
        wanted = sum((alpha * a) ** 2 for a in s)
        distortion = sum((alpha * a - b) ** 2 for a, b in zip(s, estimate, strict=True))
        expected = 10 * math.log10(wanted / distortion)
        assert si_sdr(s, estimate) == pytest.approx(expected)
        assert si_sdr(s, 7 * estimate) == pytest.approx(expected)
    assert si_sdr(s, s) == pytest.approx(100)
    assert math.isnan(si_sdr(0 * s, s)) and si_sdr(s, 0 * s) == -100


@needs_pesq
@pytest.mark.parametrize(("rate", "best"), [(8_000, 4.549), (16_000, 4.644), (48_000, 4.64)])
def test_pesq_of_the_same_sound_is_the_best_there_is(rate, best):
    clean = speak(0, 1, 2.0, rate)
    noisy = clean + 0.02 * np.random.default_rng(0).standard_normal(len(clean)).astype(np.float32)
    assert pesq_score(clean, clean, rate) == pytest.approx(best, abs=0.01)
    assert 1.0 < pesq_score(clean, noisy, rate) < 3


@needs_pesq
def test_pesq_of_what_is_no_speech():
    clean = speak(0, 1, 2.0, 8_000)
    assert math.isnan(pesq_score(0 * clean, clean, 8_000))
    assert math.isnan(pesq_score(clean[:1_000], clean[:1_000], 8_000))
    assert math.isnan(pesq_score(clean, clean * np.float32("nan"), 8_000))
