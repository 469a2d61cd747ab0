"""Sounds as waveforms, from WAV and FLAC files, and the frames of their spectra.

A waveform is a float32 array of samples of about -1 to 1, mono. Frame t of a waveform x is the
discrete Fourier transform of the samples around t · hop,

    X[t, f] = Σₙ w[n] x[(t − 1) · hop + n] exp(−2πi f n / 2hop),    n = 0 … 2hop − 1,

with windows of 32 ms every 16 ms, the times of Lamb et al. 2021. The window w is the square root of
Hann's, before the transform and after its inverse: the squares of two neighbours add up to one, so
that a spectrum which is not changed gives its waveform back. Before and behind it there is silence.
"""

import io
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from headwise.data.load import DataError, Row

Waveform = NDArray[np.float32]  # (samples,)
SUFFIXES = (".wav", ".flac")
SILENCE = 1e-5  # a waveform with a smaller root mean square (-100 dB of full scale) is silent


class SoundError(DataError):
    """A sound that cannot be read, while others of the same data may be."""


def speech_package(name: str) -> Any:
    """Returns a package of the extra `speech`."""
    try:
        return import_module(name)
    except (ImportError, OSError) as error:  # soundfile raises OSError without libsndfile
        raise DataError(f'speech needs {name} ({error}): pip install "headwise[speech]"') from None


def sounds_below(folder: str, pattern: str | None) -> list[tuple[str, Row]]:
    """Returns the WAV and FLAC files below a folder, each with what it and its partner share.

    That is the first group of a regular expression in its name, or else its name. Of a file are
    its `path`, its `name` below the folder, and a `stamp`, which tells it from what was there.
    """
    found = []
    for path in sorted(Path(folder).rglob("*")):
        if path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
            name, stat = path.relative_to(folder).as_posix(), path.stat()
            match = re.search(pattern, name) if pattern else None
            common = match[1] if match else name.rpartition(".")[0]
            stamp = f"{stat.st_size} {stat.st_mtime_ns}"
            found.append((common, {"path": str(path), "name": name, "stamp": stamp}))
    if not found:
        raise DataError(f"{folder} has no WAV or FLAC files: name a folder that has some")
    return found


def read_channels(sound: Row) -> tuple[NDArray[np.float32], int]:
    """Returns the samples of a sound, `(samples, channels)`, and its sampling rate.

    The sound is a file's `bytes`, or its `path`. If it cannot be read, a `SoundError` names it.
    """
    soundfile, content = speech_package("soundfile"), sound.get("bytes")
    name = sound.get("path") or "a sound without a name"
    try:
        file = io.BytesIO(content) if content else sound["path"]
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        raise SoundError(f"{name} cannot be read as sound ({error})") from error
    if not len(samples) or not np.isfinite(samples).all():
        raise SoundError(f"{name} has no samples, or some that are no numbers")
    return samples, rate


def resampled(samples: NDArray[np.float32], rate: int, wanted: int) -> NDArray[np.float32]:
    """Returns samples `(samples, ...)` of one sampling rate at another."""
    return samples if rate == wanted else speech_package("soxr").resample(samples, rate, wanted)


def rms(wave: np.ndarray) -> float:
    """Returns the root mean square of a waveform; 0 if it has no samples."""
    return float(np.sqrt(np.mean(np.square(wave, dtype=np.float64)))) if len(wave) else 0.0


# --- spectra ----------------------------------------------------------------------------------


def hop_of(rate: int) -> int:
    """Returns the number of samples of 16 ms."""
    return rate * 16 // 1000


def num_frames(samples: int, rate: int) -> int:
    """Returns how many frames a waveform has; each of its samples is in two of them.

    >>> [num_frames(samples, rate=8_000) for samples in (1, 128, 129)]
    [2, 2, 3]
    """
    return -(-samples // hop_of(rate)) + 1


def analyse(waves: Tensor, rate: int) -> Tensor:
    """Transforms waveforms `(batch, samples)` into complex spectra `(batch, time, bins)`."""
    hop, samples = hop_of(rate), waves.size(1)
    silent = pad(waves, (hop, num_frames(samples, rate) * hop - samples))
    return torch.stft(
        silent, 2 * hop, hop, window=_window(hop), center=False, return_complex=True
    ).mT


def synthesise(spectra: Tensor, rate: int) -> Tensor:
    """Transforms spectra back into waveforms `(batch, (time - 1) · hop)`.

    >>> wave = torch.sin(torch.arange(1000) * 0.1)
    >>> spectra = analyse(wave[None], rate=16_000)
    >>> spectra.shape, torch.allclose(synthesise(spectra, 16_000)[0, :1000], wave, atol=1e-6)
    (torch.Size([1, 5, 257]), True)
    """
    hop = hop_of(rate)
    return torch.istft(spectra.mT, 2 * hop, hop, window=_window(hop))


def _window(hop: int) -> Tensor:
    return torch.hann_window(2 * hop, dtype=torch.float64).sqrt().float()
