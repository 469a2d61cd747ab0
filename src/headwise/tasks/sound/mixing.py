"""Noise: what is added to clean speech, and how loud.

Everything that is drawn comes from a NumPy generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headwise.tasks.sound.audio import Waveform

Color = Literal["white", "pink", "brown"]
Floats = NDArray[np.floating]

COLORS: dict[Color, float] = {"white": 0.0, "pink": 1.0, "brown": 2.0}
SILENCE = 1e-5  # below this root mean square (-100 dB of full scale) there is nothing to hear


def rms(wave: Floats) -> float:
    """Root mean square; 0 of no samples.

    >>> rms(np.array([3.0, -3.0]))
    3.0
    """
    return float(np.sqrt(np.mean(np.square(wave, dtype=np.float64)))) if len(wave) else 0.0


def colored_noise(draw: np.random.Generator, samples: int, color: Color) -> Waveform:
    """Gaussian noise whose power falls with frequency as 1/f^a, of root mean square 1.

    Args:
        draw: where it comes from.
        samples: how many.
        color: `white` (a = 0), `pink` (1) or `brown` (2). Below 20 waves of the whole length it
            falls no further than there, or most of the power would lie where nobody hears it.
    """
    spectrum = np.fft.rfft(draw.standard_normal(samples))
    frequencies = np.maximum(np.arange(len(spectrum)), min(20, len(spectrum) - 1))
    shaped = np.fft.irfft(spectrum * np.maximum(frequencies, 1) ** (-COLORS[color] / 2), samples)
    return (shaped / max(rms(shaped), 1e-12)).astype(np.float32)


def babble(voices: Sequence[Waveform]) -> Waveform:
    """Several voices at once, each as loud as the others; silent ones are not heard.

    Args:
        voices: of one length.
    """
    loudness = [rms(voice) for voice in voices]
    heard = [
        voice / level for voice, level in zip(voices, loudness, strict=True) if level > SILENCE
    ]
    return np.sum(heard or [np.zeros_like(voices[0])], axis=0).astype(np.float32)


def loop(wave: Waveform, samples: int, start: int = 0) -> Waveform:
    """`samples` of a waveform from `start` on, which goes on at its beginning when it ends."""
    return np.take(wave, np.arange(start, start + samples), mode="wrap")


def mix(clean: Waveform, noise: Waveform, snr: float) -> Waveform:
    """Noise added to clean speech at a signal-to-noise ratio, of power, over the whole length.

    Where one of them is silent there is no such ratio: then they are added as they are.

    Args:
        clean, noise: of one length.
        snr: in decibels.

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
    """Both by one factor, such that the noisy one has this level and neither is clipped.

    Args:
        noisy, clean: of one length.
        level: root mean square of `noisy` in decibels of full scale.
    """
    loudness = rms(noisy)
    if loudness <= SILENCE:
        return noisy, clean
    gain = 10 ** (level / 20) / loudness
    peak = gain * max(np.abs(noisy).max(), np.abs(clean).max())
    if peak > 0.99:
        gain *= 0.99 / peak
    return (noisy * gain).astype(np.float32), (clean * gain).astype(np.float32)


def room(draw: np.random.Generator, rate: int, decay: float) -> Waveform:
    """The impulse response of a room without walls that anybody has measured: noise that fades.

    The direct sound comes first, with factor 1; behind it white noise falls by 60 dB within
    `decay` seconds (Schroeder's reverberation time), all of it with half the direct sound's power.
    """
    samples = max(2, int(decay * rate))
    tail = draw.standard_normal(samples) * 10 ** (-3 * np.arange(samples) / samples)
    tail[0] = 0.0
    tail *= np.sqrt(0.5 / np.sum(tail**2))
    tail[0] = 1.0
    return tail.astype(np.float32)


def reverberate(wave: Waveform, response: Waveform) -> Waveform:
    """A waveform as it sounds in a room, cut to its own length."""
    samples = len(wave) + len(response) - 1
    spectrum = np.fft.rfft(wave, samples) * np.fft.rfft(response, samples)
    return np.fft.irfft(spectrum, samples)[: len(wave)].astype(np.float32)
