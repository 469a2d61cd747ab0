"""Generated voices: signals that share with speech what tells it from noise.

They have a pitch that moves, formants that glide from vowel to vowel, hissing, and pauses. Scores
on them show that the program works, and say nothing about speech.
"""

from collections.abc import Iterator

import datasets
import numpy as np

from headwise.data.load import Row, generated
from headwise.data.sound import Waveform, rms

# First three formants of five vowels in Hz, between those published for men and for women.
VOWELS = np.array(
    [[750, 1250, 2600], [500, 1900, 2600], [300, 2400, 3000], [480, 900, 2550], [330, 800, 2400]],
    dtype=np.float64,
)
BANDWIDTHS = np.array([90.0, 120.0, 180.0])  # of the formants in Hz


def voices(
    speakers: int = 10, utterances: int = 40, seconds: float = 2.0
) -> dict[str, datasets.Dataset]:
    """Returns which utterances of each speaker `speak` is to generate, at any sampling rate.

    Args:
        speakers: number of voices.
        utterances: number of utterances of each voice.
        seconds: length of an utterance.
    """
    return {"train": generated(_voices, numbers=(speakers, utterances), seconds=seconds)}


def _voices(numbers: tuple[int, int], seconds: float, **_: object) -> Iterator[Row]:
    for speaker, utterance in np.ndindex(*numbers):
        yield {"voice": speaker, "utterance": utterance, "seconds": seconds}


def speak(speaker: int, utterance: int, seconds: float, rate: int) -> Waveform:
    """Generates an utterance of a speaker; equal arguments give equal utterances."""
    voice = np.random.default_rng((20_210, speaker))
    base_pitch = 90.0 * 2.4 ** voice.random()  # 90 to 216 Hz
    tract = 0.9 + 0.3 * voice.random()
    draw = np.random.default_rng((20_211, speaker, utterance))

    wave = np.zeros(int(seconds * rate))
    start = int(draw.uniform(0.0, 0.1) * rate)
    while start < len(wave):
        count = min(int(draw.uniform(0.12, 0.35) * rate), len(wave) - start)
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
) -> np.ndarray:
    """Returns harmonics under formants that glide from one vowel to another."""
    along = np.linspace(0.0, 1.0, samples)
    level, slope, bend = draw.normal(0.0, (0.12, 0.2, 0.1))
    pitch = base_pitch * np.exp(level + slope * along + bend * along**2)
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
    levels = (np.interp(along, points, of_one) for of_one in envelope.T)
    wave = sum(level * np.sin(h * phase) for level, h in zip(levels, harmonics, strict=True))
    return wave / max(rms(wave), 1e-12)


def _hiss(draw: np.random.Generator, samples: int, rate: int) -> np.ndarray:
    """Returns noise of high frequencies, as in the sound s."""
    spectrum = np.fft.rfft(draw.standard_normal(samples))
    frequencies = np.fft.rfftfreq(samples, 1 / rate)
    cutoff = draw.uniform(0.2, 0.35) * rate
    wave = np.fft.irfft(spectrum / (1 + (cutoff / np.maximum(frequencies, 1.0)) ** 6), samples)
    return wave / max(rms(wave), 1e-12)
