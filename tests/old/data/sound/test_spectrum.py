"""The transform, its inverse, and what stands between."""

import cmath
import math

import pytest
import torch

from headwise.data.sound.spectrum import Spectrum, log_magnitude, magnitude


def naive_frame(signal, t, hop):
    """X[t, f] as the module's docstring has it."""
    spectrum = []
    for f in range(hop + 1):
        total = 0j
        for n in range(2 * hop):
            position = (t - 1) * hop + n
            x = float(signal[position]) if 0 <= position < len(signal) else 0.0
            window = math.sqrt(0.5 - 0.5 * math.cos(2 * math.pi * n / (2 * hop)))
            total += window * x * cmath.exp(-2j * math.pi * f * n / (2 * hop))
        spectrum.append(total)
    return torch.tensor(spectrum, dtype=torch.complex128)


@pytest.mark.parametrize("samples", [1, 15, 16, 17, 50])
def test_frames_are_those_of_the_equation(samples):
    spectrum = Spectrum(1_000)  # 16 samples a hop
    signal = torch.randn(samples, dtype=torch.float64)
    frames = spectrum.analyse(signal)
    assert len(frames) == spectrum.num_frames(samples)
    for t in range(len(frames)):
        assert torch.allclose(frames[t], naive_frame(signal, t, 16), atol=1e-12)


def test_leading_dimensions_stay():
    spectrum = Spectrum(1_000)
    signal = torch.randn(3, 4, 50, dtype=torch.float64)
    spectra = spectrum.analyse(signal)
    assert spectra.shape == (3, 4, 5, 17)
    assert torch.allclose(spectra[1, 2], spectrum.analyse(signal[1, 2]))
    again = spectrum.synthesise(spectra)
    assert again.shape == (3, 4, 64) and torch.allclose(again[..., :50], signal)


def test_a_piece_has_no_silence_around_it():
    spectrum = Spectrum(1_000)
    signal = torch.randn(2, 5 * 16, dtype=torch.float64)
    inner = spectrum.analyse_piece(signal)
    assert inner.shape == (2, 4, 17)
    assert torch.allclose(inner, spectrum.analyse(signal)[:, 1:-1])


@pytest.mark.parametrize("samples", [1, 127, 128, 129, 1_000])
def test_what_is_not_changed_comes_back(samples):
    spectrum = Spectrum(8_000)
    signal = torch.randn(3, samples, dtype=torch.float64)
    assert torch.allclose(spectrum.synthesise(spectrum.analyse(signal))[:, :samples], signal)


@pytest.mark.parametrize("rate", [0, 44_100, 8_001])
def test_rates_of_which_16_ms_are_no_samples(rate):
    with pytest.raises(ValueError, match="expected a multiple of 125"):
        Spectrum(rate)


def test_logarithm_and_back():
    values = torch.tensor([0.0, 1e-3, 1.0, 300.0], dtype=torch.float64)
    assert torch.allclose(magnitude(log_magnitude(values, 0.01), 0.01), values)
    assert torch.isfinite(log_magnitude(values, 0.01)).all()
    assert magnitude(torch.tensor([-50.0]), 0.01) == 0.0
