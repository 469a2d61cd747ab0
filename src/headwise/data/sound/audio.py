"""Sound files as waveforms: WAV and FLAC, at any sampling rate and with any number of channels.

A waveform is a float32 array of samples in [-1, 1]. It is mono, the mean of all channels. Reading
needs soundfile and soxr, `pip install "headwise[speech]"`. A file that cannot be read raises an
`AudioError` that names it.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwise.data.sources import CorpusError, files_below

Waveform = NDArray[np.float32]  # (samples,)

SUFFIXES = (".wav", ".flac")
# The largest sample, that of 32-bit integers which were saved without scaling: the squares and sums
# of spectra stay far within float32.
LOUDEST = 2.0**31
# How many samples may be read at once over all channels: 3 hours at 48 kHz, 2 GiB. Formats that
# compress silence hold any length in a few bytes.
LONGEST = 2**29


class AudioError(CorpusError):
    """A sound cannot be read or used; the message names the file and says how to mend it."""


def speech_package(name: str) -> Any:
    """Imports a package of the extra `speech`."""
    try:
        return import_module(name)
    except (ImportError, OSError) as error:  # soundfile raises OSError without libsndfile
        raise AudioError(
            f"the package {name} cannot be imported ({error}), but speech needs it; install it "
            f'with\n    pip install "headwise[speech]"'
        ) from None


def find_audio(folder: Path) -> list[Path]:
    """Returns the WAV and FLAC files of a folder and its subfolders, ordered by their paths."""
    if not folder.is_dir():
        raise AudioError(f"{folder} is not a folder, expected one of WAV or FLAC files")
    files = [path for path in files_below(folder) if not path.name.startswith(".")]
    found = [path for path in files if path.suffix.lower() in SUFFIXES]
    if not found:
        raise AudioError(
            f"{folder} has no WAV or FLAC files, expected at least one; name the folder that has "
            f"them, or convert the files that are there"
        )
    return found


def audio_info(path: Path) -> Any:
    """Reads the header of a sound file.

    Returns:
        A closed `soundfile.SoundFile`, which still tells its `samplerate`, its `channels`, its
        `subtype`, and as `frames` the number of samples of each channel.
    """
    with opened(path, str(path)) as sound:
        return sound


def read_audio(
    source: Path | bytes, rate: int, *, samples: int | None = None, name: object = None
) -> Waveform:
    """Reads a sound file, or its beginning, as a mono waveform.

    Args:
        source: a WAV or FLAC file, or the content of one.
        rate: sampling rate of the waveform in samples per second; the file is resampled to it.
        samples: how many samples are read at most, counted at `rate`; None reads to the end.
        name: what errors call the sound; by default the path of the file.

    Raises:
        AudioError: if the file cannot be read, is too long, or has samples that no sound has; see
            `check_samples`.
    """
    name = str(name or source)
    with opened(source, name) as sound:
        total = samples_at(sound.frames, sound.samplerate, rate)
        wanted = total if samples is None else min(samples, total)
        wave = _read(sound, name, min(sound.frames, -(-wanted * sound.samplerate // rate)))
    return _fit(resample(wave, sound.samplerate, rate), wanted)


def samples_at(samples: int, rate: int, wanted: int) -> int:
    """Returns how many samples a sound has after it is resampled from `rate` to the rate `wanted`.

    >>> samples_at(44_101, 44_100, 8_000)
    8000
    """
    return max(1, round(samples * wanted / rate))


def resample(wave: Waveform, rate: int, wanted: int) -> Waveform:
    """Resamples a waveform from the sampling rate `rate` to the rate `wanted`.

    >>> resample(np.zeros(441, np.float32), 44_100, 8_000).shape
    (80,)
    """
    if rate == wanted:
        return wave
    resampled = speech_package("soxr").resample(wave, rate, wanted)
    return _fit(resampled, samples_at(len(wave), rate, wanted))


def check_samples(sound: NDArray[np.floating], name: str, first: int = 0) -> None:
    """Raises `AudioError` if a sample is NaN, infinite, or larger than `LOUDEST`.

    The samples, `(samples, channels)`, are those of a file from the position `first` on.
    """
    # Both are NaN if a sample is, and are much faster to find than a test of each.
    if not len(sound) or (sound.min() >= -LOUDEST and sound.max() <= LOUDEST):
        return
    position, channel = np.argwhere(~(np.abs(sound) <= LOUDEST))[0]
    raise AudioError(
        f"{name}: sample {first + position} is {sound[position, channel]:g}, expected numbers of "
        f"about -1 to 1, and none beyond {LOUDEST:,.0f}; export the sound again, or leave it out"
    )


def check_whole(found: int, expected: int, name: str, unit: str = "samples") -> None:
    """Raises `AudioError` if a file has less than its header says."""
    if found < expected:
        raise AudioError(
            f"{name} has {found:,} {unit}, expected {expected:,} by its header: it was cut off; "
            f"copy it again, or leave it out"
        )


@contextmanager
def opened(source: Path | bytes, name: str) -> Iterator[Any]:
    """Opens a `soundfile.SoundFile`; errors, also those of reading, name the file."""
    soundfile = speech_package("soundfile")
    if isinstance(source, Path) and not source.is_file():
        raise AudioError(f"{name} is not a file, expected a WAV or FLAC file")
    readable = name.encode("utf-8", "backslashreplace").decode()
    if readable != name:
        raise AudioError(f"{readable} has a name that is not UTF-8; rename it, or leave it out")
    try:
        with soundfile.SoundFile(
            source if isinstance(source, Path) else io.BytesIO(source)
        ) as sound:
            if sound.frames < 1:
                raise AudioError(
                    f"{name} has no samples, expected at least one; record it again, or leave it "
                    f"out"
                )
            # Of a WAV file libsndfile reads what there is, and notes so in its log. Programs that
            # write to a pipe do not know the length, and fill its field with ones.
            cut = re.search(r"^data : (\d+) \(should be (\d+)\)$", sound.extra_info, re.MULTILINE)
            if cut is not None and int(cut[1]) < 2**31:
                check_whole(int(cut[2]), int(cut[1]), name, "bytes")
            yield sound
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        reason = str(error).strip().split("\n")[0].rpartition(": ")[2] or type(error).__name__
        raise AudioError(
            f"{name} cannot be read as sound ({reason.rstrip('.')}); convert it to WAV or FLAC, or "
            f"leave it out"
        ) from None


def _read(sound: Any, name: str, samples: int) -> Waveform:
    """Reads samples of an opened `soundfile.SoundFile`; returns the mean of its channels."""
    if samples * sound.channels > LONGEST:
        raise AudioError(
            f"{name} has {samples:,} samples in {sound.channels} channels, expected at most "
            f"{LONGEST:,} in all; cut it into parts, or leave it out"
        )
    read = sound.read(samples, dtype="float32", always_2d=True)
    check_whole(len(read), samples, name)
    check_samples(read, name)
    return np.ascontiguousarray(read.mean(axis=1, dtype=np.float32))


def _fit(wave: Waveform, samples: int) -> Waveform:
    """Cuts or pads a waveform to a length: resampling may be one sample off."""
    if len(wave) < samples:
        wave = np.pad(wave, (0, samples - len(wave)))
    return wave[:samples].astype(np.float32, copy=False)
