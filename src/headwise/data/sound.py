"""Sounds as waveforms, from WAV and FLAC files or generated, and their spectra.

A waveform is a float32 array of mono samples between about -1 and 1. Frame t of the short-time
Fourier transform of a waveform x is

    X[t, f] = Σₙ w[n] x[(t − 1) · hop + n] exp(−2πi f n / 2hop),    n = 0 … 2hop − 1,

with windows of 32 ms every 16 ms, as in Lamb et al. 2021. The window w is the square root of Hann's
window, in the transform and in its inverse: the squares of two neighbouring windows add up to one,
so that an unchanged spectrum gives the same waveform. The waveform is padded with zeros.
"""

import io
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from headwise.data.load import DataError, Row, from_generator

Waveform = NDArray[np.float32]  # (samples,)
SUFFIXES = (".wav", ".flac")
SILENCE = 1e-5  # a waveform with a smaller root mean square (-100 dB of full scale) is silent


class SoundError(DataError):
    """One sound cannot be read; other sounds of the same data may be fine."""


def speech_package(name: str) -> Any:
    """Imports a package of the extra `speech`."""
    try:
        return import_module(name)
    except (ImportError, OSError) as error:  # soundfile raises OSError without libsndfile
        raise DataError(f'speech needs {name} ({error}): pip install "headwise[speech]"') from None


def sound_files(folder: str, pattern: str | None) -> list[tuple[str, Row]]:
    """Returns the WAV and FLAC files below a folder, each with a key that pairs it.

    The key is the first group of the regular expression `pattern` in the file's name, or by default
    the name without its suffix.
    """
    files = []
    for path in sorted(Path(folder).rglob("*")):
        if path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
            name = path.relative_to(folder).as_posix()
            match = re.search(pattern, name) if pattern else None
            stat = path.stat()
            signature = f"{stat.st_size} {stat.st_mtime_ns}"
            key = match[1] if match else name.rpartition(".")[0]
            files.append((key, {"path": str(path), "name": name, "signature": signature}))
    if not files:
        raise DataError(f"{folder} has no WAV or FLAC files: name a folder that has some")
    return files


def read_channels(sound: Row) -> tuple[NDArray[np.float32], int]:
    """Returns the samples of a sound, `(samples, channels)`, and its sampling rate.

    Args:
        sound: has the `bytes` of a file, or its `path`.

    Raises:
        SoundError: the sound cannot be read; the message names it.
    """
    soundfile, content = speech_package("soundfile"), sound.get("bytes")
    name = sound.get("path") or "a sound without a name"
    try:
        file = io.BytesIO(content) if content else sound["path"]
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        raise SoundError(f"{name} cannot be read as sound ({error})") from error
    if not len(samples) or not np.isfinite(samples).all():
        raise SoundError(f"{name} has no samples, or samples that are not finite")
    return samples, rate


def resample(samples: NDArray[np.float32], rate: int, new_rate: int) -> NDArray[np.float32]:
    """Changes the sampling rate of samples `(samples, ...)`."""
    return samples if rate == new_rate else speech_package("soxr").resample(samples, rate, new_rate)


def rms(wave: np.ndarray) -> float:
    """Returns the root mean square of a waveform; 0 if it has no samples."""
    return float(np.sqrt(np.mean(np.square(wave, dtype=np.float64)))) if len(wave) else 0.0


# --- spectra ----------------------------------------------------------------------------------


def hop_length(rate: int) -> int:
    """Returns the number of samples in 16 ms."""
    return rate * 16 // 1000


def num_frames(samples: int, rate: int) -> int:
    """Returns the number of frames of a waveform; each sample is in two of them.

    >>> [num_frames(samples, rate=8_000) for samples in (1, 128, 129)]
    [2, 2, 3]
    """
    return -(-samples // hop_length(rate)) + 1


def stft(waves: Tensor, rate: int) -> Tensor:
    """Transforms waveforms `(batch, samples)` into complex spectra `(batch, time, bins)`."""
    hop, samples = hop_length(rate), waves.size(1)
    padded = pad(waves, (hop, num_frames(samples, rate) * hop - samples))
    window = _window(hop)
    return torch.stft(padded, 2 * hop, hop, window=window, center=False, return_complex=True).mT


def istft(spectra: Tensor, rate: int) -> Tensor:
    """Transforms spectra back into waveforms `(batch, (time - 1) · hop)`.

    >>> wave = torch.sin(torch.arange(1000) * 0.1)
    >>> spectra = stft(wave[None], rate=16_000)
    >>> spectra.shape, torch.allclose(istft(spectra, 16_000)[0, :1000], wave, atol=1e-6)
    (torch.Size([1, 5, 257]), True)
    """
    hop = hop_length(rate)
    return torch.istft(spectra.mT, 2 * hop, hop, window=_window(hop))


def _window(hop: int) -> Tensor:
    return torch.hann_window(2 * hop, dtype=torch.float64).sqrt().float()


# --- generated voices -------------------------------------------------------------------------

# First three formants of five vowels in Hz, between those published for men and for women.
VOWELS = np.array(
    [[750, 1250, 2600], [500, 1900, 2600], [300, 2400, 3000], [480, 900, 2550], [330, 800, 2400]],
    dtype=np.float64,
)
BANDWIDTHS = np.array([90.0, 120.0, 180.0])  # of the formants in Hz


def generated_voices(
    speakers: int = 10, utterances: int = 40, seconds: float = 2.0
) -> dict[str, datasets.Dataset]:
    """Returns the number of the voice, the number and the length of generated utterances.

    They have a moving pitch, formants, hisses and pauses, like speech. Scores on them show that the
    program works, and say nothing about speech.

    Args:
        speakers: number of voices.
        utterances: number of utterances of each voice.
        seconds: length of an utterance.
    """
    return {"train": from_generator(_voices, numbers=(speakers, utterances), seconds=seconds)}


def _voices(numbers: tuple[int, int], seconds: float, **_: object) -> Iterator[Row]:
    for speaker, utterance in np.ndindex(*numbers):
        yield {"voice": speaker, "utterance": utterance, "seconds": seconds}


def speak(speaker: int, utterance: int, seconds: float, rate: int) -> Waveform:
    """Generates an utterance of a speaker; equal arguments give equal utterances."""
    voice = np.random.default_rng((20_210, speaker))
    base_pitch = 90.0 * 2.4 ** voice.random()  # 90 to 216 Hz
    tract = 0.9 + 0.3 * voice.random()
    random = np.random.default_rng((20_211, speaker, utterance))

    wave = np.zeros(int(seconds * rate))
    start = int(random.uniform(0.0, 0.1) * rate)
    while start < len(wave):
        count = min(int(random.uniform(0.12, 0.35) * rate), len(wave) - start)
        if random.random() < 0.25:
            syllable = 0.25 * _hiss(random, count, rate)
        else:
            syllable = _vowels(random, count, rate, base_pitch, tract)
        fade = np.sin(np.linspace(0, np.pi, count)) ** 0.5
        wave[start : start + count] = syllable * fade * random.uniform(0.4, 1.0)
        pause = random.uniform(0.1, 0.4) if random.random() < 0.3 else random.uniform(0.0, 0.05)
        start += count + int(pause * rate)
    return (0.05 * wave / max(rms(wave), 1e-12)).astype(np.float32)


def _vowels(
    random: np.random.Generator, samples: int, rate: int, base_pitch: float, tract: float
) -> np.ndarray:
    """Returns harmonics under formants that glide from one vowel to another."""
    time = np.linspace(0.0, 1.0, samples)
    level, slope, bend = random.normal(0.0, (0.12, 0.2, 0.1))
    pitch = base_pitch * np.exp(level + slope * time + bend * time**2)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    harmonics = np.arange(1, int(0.45 * rate / pitch.max()) + 1)
    first, second = VOWELS[random.integers(len(VOWELS), size=2)] * tract
    # The envelope changes slowly: it is computed at a few points and interpolated.
    points = np.linspace(0.0, 1.0, 8)
    formants = first + points[:, None] * (second - first)  # (points, formants)
    frequencies = np.interp(points, time, pitch)[:, None] * harmonics  # (points, harmonics)
    distance = (frequencies[:, :, None] - formants[:, None]) / BANDWIDTHS
    envelope = (np.array([1.0, 0.5, 0.25]) / (1 + distance**2)).sum(-1) + 0.01
    envelope /= harmonics**0.5  # the power of a voice falls with frequency
    levels = (np.interp(time, points, harmonic) for harmonic in envelope.T)
    wave = sum(level * np.sin(h * phase) for level, h in zip(levels, harmonics, strict=True))
    return wave / max(rms(wave), 1e-12)


def _hiss(random: np.random.Generator, samples: int, rate: int) -> np.ndarray:
    """Returns noise of high frequencies, as in the sound s."""
    spectrum = np.fft.rfft(random.standard_normal(samples))
    frequencies = np.fft.rfftfreq(samples, 1 / rate)
    cutoff = random.uniform(0.2, 0.35) * rate
    wave = np.fft.irfft(spectrum / (1 + (cutoff / np.maximum(frequencies, 1.0)) ** 6), samples)
    return wave / max(rms(wave), 1e-12)
