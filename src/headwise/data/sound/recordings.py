"""Recordings at one sampling rate, prepared once, whose samples stand in the cache."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headwise.data.parts import Facts, read_facts, write_facts
from headwise.data.rows import growing, mapped
from headwise.data.sound.audio import AudioError, Waveform
from headwise.data.sources import skipped_in_words
from headwise.data.store import stored

Sounds = Callable[[list[str]], Iterable[tuple[str, Waveform]]]
_NAMES, _SAMPLES = "names.json", "samples.npy"


@dataclass(frozen=True)
class Recording:
    """One recording, mono, at the sampling rate of its collection.

    Attributes:
        name: the name of its file.
        speaker: who speaks; the speaker of noise is the folder of its file.
        samples: how many samples it has.
        file: the array that holds the samples of its collection, of shape `(samples,)`.
        start: where in the array its first sample stands.
        digest: a hash of its samples.
    """

    name: str
    speaker: str
    samples: int
    file: Path = field(repr=False)
    start: int = field(repr=False)
    digest: str = field(default="", repr=False)

    def read(self, start: int = 0, samples: int | None = None) -> Waveform:
        """Returns a part of the recording; to its end if `samples` is None."""
        end = self.samples if samples is None else min(self.samples, start + samples)
        return _opened(self.file)[self.start + start : self.start + end]


class Pair(NamedTuple):
    """A noisy and a clean recording of one utterance."""

    noisy: Recording
    clean: Recording

    @property
    def name(self) -> str:
        return self.noisy.name

    @property
    def speaker(self) -> str:
        return self.noisy.speaker


def prepared(
    made_of: Iterable[object],
    sounds: Sounds,
    where: object,
    skipped: list[str],
    speaker: Callable[[str], str],
) -> list[Recording]:
    """Returns the recordings of a collection from the cache, into which they are read first.

    Args:
        made_of: what tells the collection from others, see `stored`.
        sounds: yields the name and the samples of each recording; it is given a list, to which it
            adds the reasons why files cannot be read.
        where: what errors call the collection.
        skipped: receives these reasons.
        speaker: returns who speaks in the recording of a name.

    Raises:
        AudioError: no recording can be read.
    """

    def make(folder: Path) -> None:
        reasons: list[str] = []
        found: list[tuple[str, int, str]] = []
        with growing(folder / _SAMPLES, np.float32) as add:
            for name, wave in sounds(reasons):
                add(wave)
                found.append((name, len(wave), hashlib.sha256(wave.data).hexdigest()))
        if not found:
            raise AudioError(
                f"{where} has 0 recordings that can be read, expected at least one: "
                f"{skipped_in_words(reasons)}"
            )
        (folder / _NAMES).write_text(json.dumps(found), encoding="utf-8")
        write_facts(folder, Facts(parts={}, skipped=reasons))

    folder = stored("sounds", made_of, make)
    skipped += read_facts(folder).skipped
    recordings, start = [], 0
    file = folder / _SAMPLES
    for name, samples, digest in json.loads((folder / _NAMES).read_text(encoding="utf-8")):
        recordings.append(Recording(name, speaker(name), samples, file, start, digest))
        start += samples
    return recordings


@cache
def _opened(file: Path) -> Waveform:
    return np.asarray(mapped(file))


def chains(recordings: Sequence[Recording], samples: int) -> list[tuple[int, ...]]:
    """Joins short recordings of one speaker until they have at least `samples` samples.

    A recording that is long enough by itself is not joined. The last chain of a speaker may be
    shorter than `samples`.

    Returns:
        For each chain the indices of its recordings.

    >>> short = [Recording(name, "me", 4, Path("samples.npy"), 0) for name in "abcde"]
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
