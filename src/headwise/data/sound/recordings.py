"""Recordings, read from their files when they are needed or kept in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from headwise.data.sound.audio import AudioError, Waveform

# A collection with at most this many samples is kept in memory, where it takes half a gigabyte.
HELD = 2**27


@dataclass(frozen=True)
class Recording:
    """One recording, mono, at the sampling rate of its collection.

    Attributes:
        name: the name of its file.
        speaker: who speaks; the speaker of noise is the folder of its file.
        samples: how many samples it has.
        read: reads a part of it, `read(start, samples)`; without arguments it reads all of it.
    """

    name: str
    speaker: str
    samples: int
    read: Callable[..., Waveform] = field(repr=False)


class Pair(NamedTuple):
    """A noisy and a clean recording of one utterance."""

    noisy: Recording
    clean: Recording


@dataclass
class Skipped:
    """The reasons why files were left out."""

    reasons: list[str] = field(default_factory=list)

    def add(self, error: Exception | str) -> None:
        self.reasons.append(str(error))

    def __str__(self) -> str:
        shown = "; ".join(reason.partition(";")[0] for reason in self.reasons[:5])
        more = len(self.reasons) - 5
        return f"{len(self.reasons):,} ({shown}{f'; and {more:,} more' if more > 0 else ''})"


def of_wave(name: str, speaker: str, wave: Waveform) -> Recording:
    """Returns a recording of a waveform that is in memory."""
    return Recording(name, speaker, len(wave), partial(part_of, wave))


def part_of(wave: Waveform, start: int = 0, samples: int | None = None) -> Waveform:
    """Returns a part of a waveform; to its end if `samples` is None."""
    return wave[start : None if samples is None else start + samples]


def hold(recordings: Sequence[Recording], skipped: Skipped) -> list[Recording]:
    """Reads a collection of at most `HELD` samples into memory; returns a larger one unchanged."""
    if sum(recording.samples for recording in recordings) > HELD:
        return list(recordings)
    held = []
    for recording in recordings:
        try:
            held.append(of_wave(recording.name, recording.speaker, recording.read()))
        except AudioError as error:
            skipped.add(error)
    return held


def chains(recordings: Sequence[Recording], samples: int) -> list[tuple[int, ...]]:
    """Joins short recordings of one speaker until they have at least `samples` samples.

    A recording that is long enough by itself is not joined. The last chain of a speaker may be
    shorter than `samples`.

    Returns:
        For each chain the indices of its recordings.

    >>> short = [Recording(name, "me", 4, list) for name in "abcde"]
    >>> sorted(len(chain) for chain in chains(short, samples=8))
    [1, 2, 2]
    """
    found: list[tuple[int, ...]] = []
    for indices in by_speaker(recordings).values():
        # In the order of their names, recordings of the same word would often stand together.
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
    """Returns the indices of the recordings of each speaker."""
    found: dict[str, list[int]] = {}
    for index, recording in enumerate(recordings):
        found.setdefault(recording.speaker, []).append(index)
    return found
