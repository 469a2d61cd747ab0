"""Sound files: WAV and FLAC at any rate and with any number of channels, as waveforms.

A waveform is a float32 array of samples in [-1, 1], mono: the mean of all channels. Reading needs
soundfile and soxr, `pip install "headwise[speech]"`. Whatever cannot be read is an
:class:`AudioError` that names the file.
"""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwise.tasks.sources import CorpusError

Waveform = NDArray[np.float32]  # (samples,)

SUFFIXES = (".wav", ".flac")


class AudioError(CorpusError):
    """Sound that cannot be read or used; the message names the file and says how to mend it."""


class AudioInfo(NamedTuple):
    """What the header of a sound file says."""

    rate: int  # samples per second
    samples: int  # of each channel
    channels: int

    def samples_at(self, rate: int) -> int:
        """How many samples the sound has once it is resampled.

        >>> AudioInfo(44_100, 44_101, 2).samples_at(8_000)
        8000
        """
        return max(1, round(self.samples * rate / self.rate))


def speech_package(name: str) -> Any:
    """A package of the extra `speech`.

    Raises:
        AudioError: it is not installed.
    """
    try:
        return import_module(name)
    except (ImportError, OSError) as error:  # soundfile raises OSError without libsndfile
        raise AudioError(
            f"the package {name} is needed for speech and cannot be imported ({error}); install "
            f'it with\n    pip install "headwise[speech]"'
        ) from None


def find_audio(folder: Path) -> list[Path]:
    """All WAV and FLAC files in a folder and its subfolders, in the order of their paths.

    Raises:
        AudioError: the folder does not exist, or has none.
    """
    if not folder.is_dir():
        raise AudioError(f"{folder} is not a folder; name one with WAV or FLAC files")
    found = sorted(p for p in folder.rglob("[!.]*") if p.suffix.lower() in SUFFIXES)
    if not found:
        raise AudioError(
            f"{folder} has no WAV or FLAC files; name the folder that holds them, or convert what "
            f"is there"
        )
    return found


def audio_info(path: Path) -> AudioInfo:
    """What the header of a sound file says.

    Raises:
        AudioError: it does not exist, is empty, has no samples, or is no sound.
    """
    soundfile = speech_package("soundfile")
    if path.is_dir():
        raise AudioError(f"{path} is a folder; name a WAV or FLAC file in it")
    if not path.is_file():
        raise AudioError(f"{path} does not exist; name a WAV or FLAC file")
    if path.stat().st_size == 0:
        raise AudioError(f"{path} is empty (0 bytes); copy it again, or leave it out")
    try:
        info = soundfile.info(str(path))
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        raise AudioError(_unreadable(path, error)) from None
    if info.frames < 1:
        raise AudioError(f"{path} has a header but no samples; record it again, or leave it out")
    return AudioInfo(info.samplerate, info.frames, info.channels)


def read_audio(path: Path, rate: int, start: int = 0, samples: int | None = None) -> Waveform:
    """A sound file, or a part of it, as a mono waveform at `rate`.

    Args:
        path: a WAV or FLAC file.
        rate: samples per second wanted; the file is resampled to it.
        start: first sample wanted, counted at `rate`.
        samples: how many, at `rate`; all that follow if None. What lies beyond the end is not
            there: the waveform is shorter.

    Raises:
        AudioError: it cannot be read, or has samples that are NaN or infinite.
    """
    soundfile = speech_package("soundfile")
    info = audio_info(path)
    total = info.samples_at(rate)
    wanted = max(0, total - start if samples is None else min(samples, total - start))
    if not wanted:
        return np.zeros(0, np.float32)
    first = min(start * info.rate // rate, info.samples - 1)
    stop = min(info.samples, -(-(start + wanted) * info.rate // rate))
    try:
        sound, _ = soundfile.read(
            str(path), start=first, frames=stop - first, dtype="float32", always_2d=True
        )
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise AudioError(_unreadable(path, error)) from None
    return _fit(resample(_mono(sound, str(path)), info.rate, rate), wanted)


def decode_audio(encoded: bytes, rate: int, name: str) -> Waveform:
    """A sound file that is held in memory, as a mono waveform at `rate`.

    Args:
        encoded: the file's bytes.
        rate: samples per second wanted.
        name: what to call it in errors.
    """
    soundfile = speech_package("soundfile")
    try:
        sound, its_rate = soundfile.read(io.BytesIO(encoded), dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        raise AudioError(_unreadable(name, error)) from None
    if not len(sound):
        raise AudioError(f"{name} has no samples; leave it out")
    return resample(_mono(sound, name), its_rate, rate)


def resample(wave: Waveform, rate: int, wanted: int) -> Waveform:
    """A waveform at another rate.

    >>> resample(np.zeros(441, np.float32), 44_100, 8_000).shape
    (80,)
    """
    if rate == wanted:
        return wave
    samples = max(1, round(len(wave) * wanted / rate))
    return _fit(speech_package("soxr").resample(wave, rate, wanted), samples)


def check_finite(sound: NDArray[np.floating], name: str, first: int = 0) -> None:
    """Raise `AudioError` if a sample is NaN or infinite.

    Args:
        sound: `(samples, ...)`.
        name: of the file.
        first: where in the file the first of these samples stands.
    """
    # A sum is finite only if all are; it is much faster to take than to look at each.
    if np.isfinite(np.sum(sound, dtype=np.float64)):
        return
    wrong = ~np.isfinite(sound.reshape(len(sound), -1)).all(axis=1)
    if wrong.any():
        raise AudioError(
            f"{name}: sample {first + int(wrong.argmax())} is NaN or infinite; export the sound "
            f"again, or leave it out"
        )


def _mono(sound: NDArray[np.float32], name: str) -> Waveform:
    """`(samples, channels)` to the mean of the channels."""
    check_finite(sound, name)
    return np.ascontiguousarray(sound.mean(axis=1, dtype=np.float32))


def _fit(wave: Waveform, samples: int) -> Waveform:
    """Cut, or filled up with silence: resampling may be off by one."""
    if len(wave) < samples:
        wave = np.pad(wave, (0, samples - len(wave)))
    return wave[:samples].astype(np.float32, copy=False)


def _unreadable(name: object, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0].rpartition(": ")[2] or type(error).__name__
    return (
        f"{name} cannot be read as sound ({reason.rstrip('.')}); convert it to WAV or FLAC, or "
        f"leave it out"
    )
