"""Collections of recordings: read from folders, told apart by speaker, divided into parts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from headwise.tasks.sound.audio import (
    AudioError,
    AudioInfo,
    Waveform,
    audio_info,
    find_audio,
    read_audio,
)

Key = TypeVar("Key", bound=Hashable)

# Samples of a collection that is small enough to be kept in memory, as half a gigabyte.
HELD = 2**27


@dataclass(frozen=True)
class Recording:
    """One recording, mono, at the rate of its collection.

    Attributes:
        name: that of its file.
        speaker: who speaks; noise has one too, its folder.
        samples: how many there are.
        read: a part of it: `read(start, samples)`; without arguments all of it.
    """

    name: str
    speaker: str
    samples: int
    read: Callable[..., Waveform] = field(repr=False)


@dataclass
class Skipped:
    """Files that could not be used, and why."""

    reasons: list[str] = field(default_factory=list)

    def add(self, error: Exception | str) -> None:
        self.reasons.append(str(error))

    def __str__(self) -> str:
        shown = "; ".join(reason.partition(";")[0] for reason in self.reasons[:5])
        more = len(self.reasons) - 5
        return f"{len(self.reasons):,} ({shown}{f'; and {more:,} more' if more > 0 else ''})"


def read_folder(
    folder: Path, rate: int, skipped: Skipped, speaker_pattern: str | None = None
) -> list[Recording]:
    """The WAV and FLAC files of a folder and its subfolders, by their names.

    Args:
        folder: where they are.
        rate: samples per second wanted.
        skipped: takes note of what cannot be read.
        speaker_pattern: a regular expression whose first group is the speaker in a file's path
            below `folder`; without it, the folder that the file is in.

    Raises:
        AudioError: there is no such folder, none of its files can be read, or the pattern does
            not match one of them.
    """
    folder = folder.expanduser()
    recordings = []
    for path in find_audio(folder):
        name = path.relative_to(folder).as_posix()
        try:
            info = audio_info(path)
        except AudioError as error:
            skipped.add(error)
            continue
        recordings.append(_of_file(path, name, info, rate, _speaker(name, speaker_pattern)))
    recordings = hold(recordings, skipped)
    if not recordings:
        raise AudioError(f"{folder} has no file that can be used: {skipped}")
    return recordings


def of_wave(name: str, speaker: str, wave: Waveform) -> Recording:
    """A recording that is in memory."""
    return Recording(name, speaker, len(wave), partial(_piece, wave))


def hold(recordings: Sequence[Recording], skipped: Skipped) -> list[Recording]:
    """Keep a small collection in memory, which also finds what cannot be read to its end."""
    if sum(recording.samples for recording in recordings) > HELD:
        return list(recordings)
    held = []
    for recording in recordings:
        try:
            wave = recording.read()
        except AudioError as error:
            skipped.add(error)
            continue
        held.append(replace(recording, samples=len(wave), read=partial(_piece, wave)))
    return held


def divide(
    keys: Iterable[Key], validation_fraction: float, test_fraction: float, what: str
) -> dict[str, list[Key]]:
    """Keys, such as names of files, in three parts, none of them empty.

    They are sorted by a hash; the first are the test part, the next the validation part. Which
    part a key is in does not depend on the order in which they come, and on no seed.

    Args:
        keys: what to divide; repeated ones count once.
        validation_fraction, test_fraction: the shares, rounded up; 0 for none of that part.
        what: they are, for the error.

    Raises:
        AudioError: too few.

    >>> divide("abcdef", 0.2, 0.2, "letters")
    {'train': ['e', 'a'], 'validation': ['c', 'b'], 'test': ['d', 'f']}
    """
    ordered = sorted(set(keys), key=lambda key: hashlib.sha256(str(key).encode()).digest())
    num_test = -int(-len(ordered) * test_fraction // 1)
    num_held_out = num_test - int(-len(ordered) * validation_fraction // 1)
    if num_held_out >= len(ordered):
        raise AudioError(
            f"there are {len(ordered)} {what}, too few for training, validation and test; give "
            f"more, or smaller fractions, or folders of their own for validation and test"
        )
    return {
        "train": ordered[num_held_out:],
        "validation": ordered[num_test:num_held_out],
        "test": ordered[:num_test],
    }


def chains(recordings: Sequence[Recording], samples: int) -> list[tuple[int, ...]]:
    """Indices of recordings of one speaker that make up at least so many samples together.

    The last chain of a speaker may be shorter. Recordings that are long enough stand by themselves.

    >>> short = [Recording(name, "me", 4, list) for name in "abcde"]
    >>> sorted(len(chain) for chain in chains(short, samples=8))
    [1, 2, 2]
    """
    found: list[tuple[int, ...]] = []
    for indices in by_speaker(recordings).values():
        # What files are named after, such as the words in them, should not be side by side.
        mixed = sorted(indices, key=lambda i: hashlib.sha256(recordings[i].name.encode()).digest())
        chain: tuple[int, ...] = ()
        for index in mixed:
            if recordings[index].samples >= samples:
                found.append((index,))
                continue
            chain = (*chain, index)
            if sum(recordings[i].samples for i in chain) >= samples:
                found.append(chain)
                chain = ()
        if chain:
            found.append(chain)
    return sorted(found)


def by_speaker(recordings: Sequence[Recording]) -> dict[str, list[int]]:
    """Indices of the recordings of each speaker."""
    found: dict[str, list[int]] = {}
    for index, recording in enumerate(recordings):
        found.setdefault(recording.speaker, []).append(index)
    return found


def _of_file(path: Path, name: str, info: AudioInfo, rate: int, speaker: str) -> Recording:
    return Recording(name, speaker, info.samples_at(rate), partial(read_audio, path, rate))


def _speaker(name: str, pattern: str | None) -> str:
    if pattern is None:
        return name.rpartition("/")[0]
    match = re.search(pattern, name)
    if match is None:
        raise AudioError(
            f"{name}: speaker_pattern {pattern!r} finds no speaker in this name; its first group "
            f"has to match in the path of each file"
        )
    return match.group(1)


def _piece(wave: Waveform, start: int = 0, samples: int | None = None) -> Waveform:
    return wave[start : None if samples is None else start + samples]
