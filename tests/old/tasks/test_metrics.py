"""What tasks score by, beside the equations."""

import importlib.util
import math

import numpy as np
import pytest
import torch

from headwise.data.sound.voices import speak
from headwise.tasks.metrics import pearson, pesq_score, si_sdr, spearman, specialisation

needs_pesq = pytest.mark.skipif(
    importlib.util.find_spec("pesq") is None, reason="pesq is not installed: no C compiler built it"
)


# --- predictions ------------------------------------------------------------------------------


def ranks(column):
    """Counted one by one; equal values have the mean of their ranks."""
    return [(column < value).sum() + ((column == value).sum() + 1) / 2 for value in column]


@pytest.mark.parametrize("decimals", [0, 1, 6])  # with many ties, with some, without
def test_correlations(decimals):
    rows = np.random.default_rng(0).normal(size=(50, 2)).round(decimals)
    assert pearson(rows) == pytest.approx(100 * np.corrcoef(*rows.T)[0, 1])
    by_hand = np.corrcoef(ranks(rows[:, 0]), ranks(rows[:, 1]))[0, 1]
    assert spearman(rows) == pytest.approx(100 * by_hand)


def test_what_is_constant_correlates_with_nothing():
    constant = np.array([[1.0, 0.1 + 0.2], [2.0, 0.3]])
    assert pearson(constant) == spearman(np.array([[1.0, 5.0], [2.0, 5.0]])) == 0


@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_the_predictions_of_a_model_that_diverged_have_no_correlation(correlation):
    assert np.isnan(correlation(np.array([[1.0, np.nan], [2.0, 3.0]])))
    assert np.isnan(correlation(np.array([[1.0, np.nan], [2.0, 3.0], [3.0, 5.0]])))


# --- images -----------------------------------------------------------------------------------


def halves(left, right, images=3, height=2, width=4):
    """Weights `(images, height, width, mechanisms)` that are constant on each side."""
    sides = [
        torch.tensor(side).expand(images, height, width // 2, len(side)) for side in (left, right)
    ]
    return torch.cat(sides, dim=2)


def naive(weights, ahead=0):
    """Σ_s P(s) ‖c̄_s − c̄‖² / mean ‖c − c̄‖², pixel by pixel; s of the pixel so far ahead."""
    width = weights.size(-2)
    pixels = [
        (int((x + ahead) % width >= width // 2), weights[i, y, x].double())
        for i in range(weights.size(0))
        for y in range(weights.size(1))
        for x in range(width)
        if y * width + x + ahead < weights.size(1) * width
    ]
    mean = sum(c for _, c in pixels) / len(pixels)
    total = sum(((c - mean) ** 2).sum() for _, c in pixels) / len(pixels)
    between = 0.0
    for side in (0, 1):
        own = [c for s, c in pixels if s == side]
        between += len(own) / len(pixels) * ((sum(own) / len(own) - mean) ** 2).sum()
    return float(between / total)


@pytest.mark.parametrize("shape", [(1, 2, 2), (2, 3, 4), (5, 2, 7)])
@pytest.mark.parametrize("mechanisms", [2, 5])
def test_the_specialisation_is_its_equation(shape, mechanisms):
    weights = torch.rand(*shape, mechanisms).softmax(-1)
    assert specialisation(weights) == pytest.approx(naive(weights), abs=1e-12)
    ahead = specialisation(weights, predicted=True)
    assert ahead == pytest.approx(naive(weights, ahead=1), abs=1e-12)


@pytest.mark.parametrize(("width", "height", "other"), [(16, 8, 0.584), (64, 32, 0.881)])
def test_a_perfect_division_by_one_side_is_not_one_by_the_other(width, height, other):
    by_read = halves([1.0, 0.0], [0.0, 1.0], height=height, width=width)
    assert specialisation(by_read) == pytest.approx(1.0)
    assert specialisation(by_read, predicted=True) == pytest.approx(other, abs=0.02)


def test_equal_weights_have_no_specialisation():
    assert specialisation(torch.full((2, 2, 4, 3), 1 / 3)) == 0.0
    assert specialisation(torch.full((2, 2, 4, 3), 1 / 3).half()) == 0.0


# --- speech -----------------------------------------------------------------------------------


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
