"""Generated voices: signals that share with speech what tells it from noise.

They have a pitch that moves, harmonics shaped by formants that glide from vowel to vowel, bursts
of hissing, and pauses. So a model can learn the task without any recording. They are no speech:
scores on them show that the program works, and say nothing about speech.
"""

import numpy as np

from headwise.data.sound.audio import Waveform
from headwise.data.sound.mixing import Floats, rms

# First three formants of five vowels in Hz, between those published for men and for women.
VOWELS = np.array(
    [[750, 1250, 2600], [500, 1900, 2600], [300, 2400, 3000], [480, 900, 2550], [330, 800, 2400]],
    dtype=np.float64,
)
BANDWIDTHS = np.array([90.0, 120.0, 180.0])  # bandwidths of the formants in Hz


def speak(speaker: int, utterance: int, seconds: float, rate: int) -> Waveform:
    """Generates an utterance of a speaker; equal arguments give equal utterances.

    The speaker decides on pitch and length of the vocal tract, the utterance on vowels, hissing and
    pauses.

    >>> speak(0, 0, seconds=0.5, rate=8_000).shape
    (4000,)
    """
    voice = np.random.default_rng((20_210, speaker))
    base_pitch = 90.0 * 2.4 ** voice.random()  # 90 to 216 Hz
    tract = 0.9 + 0.3 * voice.random()
    draw = np.random.default_rng((20_211, speaker, utterance))

    samples = int(seconds * rate)
    wave = np.zeros(samples)
    start = int(draw.uniform(0.0, 0.1) * rate)
    while start < samples:
        count = min(int(draw.uniform(0.12, 0.35) * rate), samples - start)
        if draw.random() < 0.25:
            syllable = 0.25 * _hiss(draw, count, rate)
        else:
            syllable = _vowels(draw, count, rate, base_pitch, tract)
        fade = np.sin(np.linspace(0, np.pi, count)) ** 0.5
        wave[start : start + count] = syllable * fade * draw.uniform(0.4, 1.0)
        pause = draw.uniform(0.1, 0.4) if draw.random() < 0.3 else draw.uniform(0.0, 0.05)
        start += count + int(pause * rate)
    return (0.05 * wave / max(rms(wave), 1e-12)).astype(np.float32)


def _vowels(
    draw: np.random.Generator, samples: int, rate: int, base_pitch: float, tract: float
) -> Floats:
    """Generates harmonics under formants that glide from one vowel to another."""
    along = np.linspace(0.0, 1.0, samples)
    pitch = base_pitch * np.exp(
        draw.normal(0.0, 0.12) + draw.normal(0.0, 0.2) * along + draw.normal(0.0, 0.1) * along**2
    )
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    harmonics = np.arange(1, int(0.45 * rate / pitch.max()) + 1)
    here, there = VOWELS[draw.integers(len(VOWELS), size=2)] * tract
    # The envelope changes slowly: it is computed at a few points and interpolated.
    points = np.linspace(0.0, 1.0, 8)
    formants = here + points[:, None] * (there - here)  # (points, formants)
    frequencies = np.interp(points, along, pitch)[:, None] * harmonics  # (points, harmonics)
    distance = (frequencies[:, :, None] - formants[:, None]) / BANDWIDTHS
    envelope = (np.array([1.0, 0.5, 0.25]) / (1 + distance**2)).sum(-1) + 0.01
    envelope /= harmonics**0.5  # the power of a voice falls with frequency
    wave = np.zeros(samples)
    for index, harmonic in enumerate(harmonics):
        wave += np.interp(along, points, envelope[:, index]) * np.sin(harmonic * phase)
    return wave / max(rms(wave), 1e-12)


def _hiss(draw: np.random.Generator, samples: int, rate: int) -> Floats:
    """Generates noise of high frequencies, as in the sound s."""
    spectrum = np.fft.rfft(draw.standard_normal(samples))
    frequencies = np.fft.rfftfreq(samples, 1 / rate)
    cutoff = draw.uniform(0.2, 0.35) * rate
    wave = np.fft.irfft(spectrum / (1 + (cutoff / np.maximum(frequencies, 1.0)) ** 6), samples)
    return wave / max(rms(wave), 1e-12)
