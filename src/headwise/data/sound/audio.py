"""Sound files as waveforms: WAV and FLAC, at any sampling rate and with any number of channels.

A waveform is a float32 array of samples in [-1, 1]. It is mono, the mean of all channels. Reading
needs soundfile and soxr, `pip install "headwise[speech]"`. A file that cannot be read raises an
`AudioError` that names it.
"""

from __future__ import annotations

import io
import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwise.data.sources import CorpusError

Waveform = NDArray[np.float32]  # (samples,)

SUFFIXES = (".wav", ".flac")
RATES = (1_000, 1_000_000)  # the sampling rates of sound
# The largest sample, that of 32-bit integers which were saved without scaling: the squares and sums
# of spectra stay far within float32.
LOUDEST = 2.0**31
# How many samples a sound in memory may have over all channels: 3 hours at 48 kHz, 2 GiB.
# Formats that compress silence hold any length in a few bytes.
LONGEST = 2**29


class AudioError(CorpusError):
    """A sound cannot be read or used; the message names the file and says how to mend it."""


class AudioInfo(NamedTuple):
    """The header of a sound file.

    Attributes:
        rate: sampling rate in samples per second.
        samples: number of samples of each channel.
        channels: number of channels.
    """

    rate: int
    samples: int
    channels: int

    def samples_at(self, rate: int) -> int:
        """Returns how many samples the sound has after it is resampled to `rate`.

        >>> AudioInfo(44_100, 44_101, 2).samples_at(8_000)
        8000
        """
        return max(1, round(self.samples * rate / self.rate))


def speech_package(name: str) -> Any:
    """Imports a package of the extra `speech`.

    Raises:
        AudioError: if the package is not installed.
    """
    try:
        return import_module(name)
    except (ImportError, OSError) as error:  # soundfile raises OSError without libsndfile
        raise AudioError(
            f"the package {name} cannot be imported ({error}), but speech needs it; install it "
            f'with\n    pip install "headwise[speech]"'
        ) from None


def find_audio(folder: Path) -> list[Path]:
    """Returns the WAV and FLAC files of a folder and its subfolders, in the order of their paths.

    Raises:
        AudioError: if the folder does not exist or has no such files.
    """
    if not folder.is_dir():
        raise AudioError(f"{folder} is not a folder, expected one of WAV or FLAC files")
    found = sorted(p for p in folder.rglob("[!.]*") if p.suffix.lower() in SUFFIXES)
    if not found:
        raise AudioError(
            f"{folder} has no WAV or FLAC files, expected at least one; name the folder that has "
            f"them, or convert the files that are there"
        )
    return found


def audio_info(path: Path) -> AudioInfo:
    """Reads the header of a sound file.

    Raises:
        AudioError: if the file does not exist, is empty, has no samples, or is no sound.
    """
    soundfile = speech_package("soundfile")
    if path.is_dir():
        raise AudioError(f"{path} is a folder, expected a WAV or FLAC file; name one in it")
    if not path.exists():
        raise AudioError(f"{path} does not exist, expected a WAV or FLAC file")
    if not path.is_file():
        raise AudioError(f"{path} is a pipe or a device, expected a WAV or FLAC file; leave it out")
    if path.stat().st_size == 0:
        raise AudioError(
            f"{path} is empty, expected a WAV or FLAC file; copy it again, or leave it out"
        )
    try:
        with soundfile.SoundFile(str(path)) as sound:
            return _header(sound, path)
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        raise AudioError(_unreadable(path, error)) from None


def read_audio(path: Path, rate: int, start: int = 0, samples: int | None = None) -> Waveform:
    """Reads a sound file, or a part of it, as a mono waveform.

    Args:
        path: a WAV or FLAC file.
        rate: sampling rate of the waveform in samples per second; the file is resampled to it.
        start: the first sample that is read, counted at `rate`.
        samples: how many samples are read, counted at `rate`; None reads to the end. The waveform
            is shorter if the file ends before.

    Raises:
        AudioError: if the file cannot be read, or has samples that no sound has; see
            `check_samples`.
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
    """Decodes a sound file that is in memory to a mono waveform.

    Args:
        encoded: the content of the file.
        rate: sampling rate of the waveform in samples per second.
        name: the name of the file in errors.

    Raises:
        AudioError: if the content cannot be decoded, is too long, or has samples that no sound has;
            see `check_samples`.
    """
    soundfile = speech_package("soundfile")
    try:
        with soundfile.SoundFile(io.BytesIO(encoded)) as file:
            header = _header(file, name)
            if header.samples * header.channels > LONGEST:
                raise AudioError(
                    f"{name} has {header.samples:,} samples in {header.channels} channels, "
                    f"expected at most {LONGEST:,} in all; cut it into parts, or leave it out"
                )
            sound = file.read(dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        raise AudioError(_unreadable(name, error)) from None
    return resample(_mono(sound, name), header.rate, rate)


def resample(wave: Waveform, rate: int, wanted: int) -> Waveform:
    """Resamples a waveform from the sampling rate `rate` to the rate `wanted`.

    >>> resample(np.zeros(441, np.float32), 44_100, 8_000).shape
    (80,)
    """
    if rate == wanted:
        return wave
    samples = max(1, round(len(wave) * wanted / rate))
    return _fit(speech_package("soxr").resample(wave, rate, wanted), samples)


def _header(sound: Any, name: object) -> AudioInfo:
    """Returns the header of an opened `soundfile.SoundFile`.

    Raises:
        AudioError: if it has no samples, a sampling rate that no sound has, or less sound than it
            says.
    """
    if sound.frames < 1:
        raise AudioError(
            f"{name} has no samples, expected at least one; record it again, or leave it out"
        )
    if not RATES[0] <= sound.samplerate <= RATES[1]:
        raise AudioError(
            f"{name} has {sound.samplerate:,} samples per second by its header, expected "
            f"{RATES[0]:,} to {RATES[1]:,}: resampled, it would have another length by far; mend "
            f"its header, or leave it out"
        )
    # libsndfile reads what there is, and notes so in its log.
    cut = re.search(r"^data : (\d+) \(should be (\d+)\)$", sound.extra_info, re.MULTILINE)
    # Programs that write to a pipe do not know the length, and fill the field with ones.
    if cut is not None and int(cut[2]) < int(cut[1]) < 2**31:
        raise AudioError(
            f"{name} has {int(cut[2]):,} bytes of sound, expected {int(cut[1]):,} by its header: "
            f"it was cut off; copy it again, or leave it out"
        )
    if sound.format == "FLAC" and not _has_last_sample(sound):
        raise AudioError(
            f"{name} has fewer samples than the {sound.frames:,} of its header: it was cut off, or "
            f"its header is wrong; copy it again, or leave it out"
        )
    return AudioInfo(sound.samplerate, sound.frames, sound.channels)


def _has_last_sample(sound: Any) -> bool:
    """Whether an opened `soundfile.SoundFile` has as many samples as its header says."""
    try:
        sound.seek(sound.frames - 1)
        found = len(sound.read(1)) == 1
        sound.seek(0)
    except RuntimeError:  # of which soundfile's own errors are a kind
        return False
    return found


def check_samples(sound: NDArray[np.floating], name: str, first: int = 0) -> None:
    """Raises `AudioError` if a sample is NaN, infinite, or larger than `LOUDEST`.

    Args:
        sound: samples, `(samples, ...)`.
        name: the name of the file in the error.
        first: position of the first of these samples in the file.
    """
    # Both are NaN if a sample is, and are much faster to find than a test of each.
    if not len(sound) or (sound.min() >= -LOUDEST and sound.max() <= LOUDEST):
        return
    flat = sound.reshape(len(sound), -1)
    position = int((~(np.abs(flat) <= LOUDEST)).any(axis=1).argmax())
    value = next(value for value in flat[position] if not abs(value) <= LOUDEST)
    raise AudioError(
        f"{name}: sample {first + position} is {value:g}, expected numbers of about -1 to 1, and "
        f"none beyond {LOUDEST:,.0f}; export the sound again, or leave it out"
    )


def _mono(sound: NDArray[np.float32], name: str) -> Waveform:
    """Returns the mean of the channels of `(samples, channels)`."""
    check_samples(sound, name)
    return np.ascontiguousarray(sound.mean(axis=1, dtype=np.float32))


def _fit(wave: Waveform, samples: int) -> Waveform:
    """Cuts or pads a waveform to a length: resampling may be one sample off."""
    if len(wave) < samples:
        wave = np.pad(wave, (0, samples - len(wave)))
    return wave[:samples].astype(np.float32, copy=False)


def _unreadable(name: object, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0].rpartition(": ")[2] or type(error).__name__
    return (
        f"{name} cannot be read as sound ({reason.rstrip('.')}); convert it to WAV or FLAC, or "
        f"leave it out"
    )
