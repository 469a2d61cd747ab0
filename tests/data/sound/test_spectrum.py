"""The transform, its inverse, and what stands between."""

import cmath
import math

import pytest
import torch

from headwise.data.sound.spectrum import Spectrum, log_magnitude, magnitude, with_phase


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


def windowed_frames(signal, hop):
    """Frames of a signal between silence, windowed: `(..., time, 2 · hop)`."""
    behind = (-(-signal.size(-1) // hop) + 1) * hop - signal.size(-1)
    padded = torch.nn.functional.pad(signal, (hop, behind))
    return padded.unfold(-1, 2 * hop, hop) * window(hop, signal.dtype)


def window(hop, dtype):
    return torch.sin(math.pi / (2 * hop) * torch.arange(2 * hop, dtype=torch.float64)).to(dtype)


def overlap_add(spectra, hop):
    """The inverse by hand: each frame is windowed again and added to the one before it."""
    frames = torch.fft.irfft(spectra, 2 * hop)
    frames = frames * window(hop, frames.dtype)
    signal = frames.new_zeros(*frames.shape[:-2], (frames.size(-2) + 1) * hop)
    for t in range(frames.size(-2)):
        signal[..., t * hop : (t + 2) * hop] += frames[..., t, :]
    return signal[..., hop:-hop]  # the first and the last hop are in one frame alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [1_000, 8_000, 16_000, 48_000])
def test_agrees_with_frames_that_are_cut_and_added_by_hand(rate, dtype):
    spectrum = Spectrum(rate)
    hop = spectrum.hop
    lengths = [1, 2, hop - 1, hop, hop + 1, 2 * hop, 2 * hop + 1, 7 * hop - 3, 4_096, 9_999]
    tolerance = {"rtol": 0, "atol": 1e-12 if dtype == torch.float64 else 2e-5}
    for samples in lengths:
        signal = torch.randn(2, samples, dtype=dtype)
        spectra = spectrum.analyse(signal)
        expected = torch.fft.rfft(windowed_frames(signal, hop))
        torch.testing.assert_close(spectra, expected, **tolerance)
        changed = spectra * torch.rand(spectra.shape, dtype=dtype)
        torch.testing.assert_close(
            spectrum.synthesise(changed), overlap_add(changed, hop), **tolerance
        )
        assert spectrum.bins == spectra.size(-1) == hop + 1


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


def test_gradients_pass():
    signal = torch.randn(40, dtype=torch.float64, requires_grad=True)
    spectrum = Spectrum(1_000)
    torch.autograd.gradcheck(lambda x: spectrum.synthesise(spectrum.analyse(x) * 2), signal)


@pytest.mark.parametrize("rate", [0, 44_100, 8_001])
def test_rates_of_which_16_ms_are_no_samples(rate):
    with pytest.raises(ValueError, match="expected a multiple of 125"):
        Spectrum(rate)


def test_logarithm_and_back():
    values = torch.tensor([0.0, 1e-3, 1.0, 300.0], dtype=torch.float64)
    assert torch.allclose(magnitude(log_magnitude(values, 0.01), 0.01), values)
    assert torch.isfinite(log_magnitude(values, 0.01)).all()
    assert magnitude(torch.tensor([-50.0]), 0.01) == 0.0


def test_phase_is_kept():
    spectra = torch.randn(5, 9, dtype=torch.complex128)
    assert torch.allclose(with_phase(spectra.abs(), 7 * spectra), spectra)
