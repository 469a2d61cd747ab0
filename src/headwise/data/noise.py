"""Noise, and how it is mixed with clean speech at given levels.

All random numbers are drawn from the generator of an item.
"""

from collections.abc import Sequence

import numpy as np

from headwise.data.sound import Waveform

COLORS = {"white": 0.0, "pink": 1.0, "brown": 2.0}
SILENCE = 1e-5  # a waveform with a smaller root mean square (-100 dB of full scale) is silent


def rms(wave: np.ndarray) -> float:
    """Returns the root mean square of a waveform; 0 if it has no samples.

    >>> rms(np.array([3.0, -3.0]))
    3.0
    """
    return float(np.sqrt(np.mean(np.square(wave, dtype=np.float64)))) if len(wave) else 0.0


def colored_noise(draw: np.random.Generator, samples: int, color: str) -> Waveform:
    """Returns Gaussian noise whose power falls with frequency f as 1/f^a, with a of `COLORS`.

    Its root mean square is 1. Its power is constant at frequencies that have fewer than 20 periods
    in the whole length, because otherwise most of the power would be inaudible.
    """
    spectrum = np.fft.rfft(draw.standard_normal(samples))
    frequencies = np.maximum(np.arange(len(spectrum)), min(20, len(spectrum) - 1))
    shaped = np.fft.irfft(spectrum * np.maximum(frequencies, 1) ** (-COLORS[color] / 2), samples)
    return (shaped / max(rms(shaped), 1e-12)).astype(np.float32)


def babble(voices: Sequence[Waveform]) -> Waveform:
    """Adds voices at equal levels; silent ones are left out."""
    heard = [voice / rms(voice) for voice in voices if rms(voice) > SILENCE]
    return np.sum(heard or [np.zeros_like(voices[0])], axis=0).astype(np.float32)


def mix(clean: Waveform, noise: Waveform, snr: float) -> Waveform:
    """Adds noise to clean speech at a signal-to-noise ratio in decibels.

    The ratio is that of the powers over the whole length. If one of the two is silent, the ratio
    does not exist, and they are added unchanged.

    >>> clean, noise = np.ones(4, np.float32), np.full(4, 5, np.float32)
    >>> mix(clean, noise, snr=20.0)
    array([1.1, 1.1, 1.1, 1.1], dtype=float32)
    """
    signal, disturbance = rms(clean), rms(noise)
    gain = 1.0
    if signal > SILENCE and disturbance > SILENCE:
        gain = signal / disturbance * 10 ** (-snr / 20)
    return (clean + gain * noise).astype(np.float32)


def at_level(noisy: Waveform, clean: Waveform, level: float) -> tuple[Waveform, Waveform]:
    """Scales noisy and clean speech by one factor, so that the noisy one has a given level.

    The level is the root mean square in decibels of full scale. The factor is smaller where one of
    the two would otherwise exceed 0.99 and be clipped. Silence is returned unchanged.
    """
    loudness = rms(noisy)
    if loudness <= SILENCE:
        return noisy, clean
    peak = max(np.abs(noisy).max(), np.abs(clean).max())
    gain = min(10 ** (level / 20) / loudness, 0.99 / peak)
    return (noisy * gain).astype(np.float32), (clean * gain).astype(np.float32)
