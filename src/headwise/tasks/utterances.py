"""Noisy speech and the clean speech in it, as a data set: mixed when asked for, or recorded so."""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from headwise.tasks.audio import AudioError, Waveform
from headwise.tasks.mixing import (
    COLORS,
    at_level,
    babble,
    colored_noise,
    loop,
    mix,
    reverberate,
    room,
)
from headwise.tasks.recordings import Recording, by_speaker, chains
from headwise.tasks.spectrum import Spectrum, log_magnitude

SCORED_SECONDS = 30  # of an utterance at most; PESQ is made for 8 to 30 s
IGNORED_LABEL = -100.0


class Frames(TypedDict):
    """An utterance as the model reads it, both `(time, bins)`."""

    inputs: Tensor  # magnitudes of the noisy sound
    labels: Tensor  # log magnitudes of the clean one


class Utterances(Dataset[Frames], ABC):
    """Utterances of one part.

    Args:
        spectrum: what frames are.
        floor: added to magnitudes before the logarithm.
        samples: length of an item; what is longer is cut.

    Attributes:
        lengths: of each item, in frames.
    """

    lengths: list[int]

    def __init__(self, spectrum: Spectrum, floor: float, samples: int) -> None:
        self.spectrum = spectrum
        self.floor = floor
        self.samples = samples

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Frames:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} utterances")
        pair = np.stack(self.excerpt(index % len(self)))
        noisy, clean = self.spectrum.analyse(torch.from_numpy(pair)).abs()  # (time, bins) each
        return {"inputs": noisy, "labels": log_magnitude(clean, self.floor)}

    def excerpt(self, index: int) -> tuple[Waveform, Waveform]:
        """Noisy and clean waveforms of an item."""
        noisy, clean = self.whole(index)
        return noisy[: self.samples], clean[: self.samples]

    @abstractmethod
    def whole(self, index: int) -> tuple[Waveform, Waveform]:
        """Noisy and clean waveforms of all of an utterance, to be scored."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call an utterance."""

    @abstractmethod
    def digest(self) -> str:
        """A hash of what the utterances are made of."""


def collate(items: Sequence[Frames]) -> dict[str, Tensor]:
    """Join items into a batch, padded behind the shorter ones.

    Returns:
        `inputs` and `labels` `(batch, time, bins)`, 0 and -100 at padding, and `attention_mask`
        `(batch, time)`, 1 at frames.
    """
    lengths = torch.tensor([len(item["inputs"]) for item in items])
    pad = torch.nn.utils.rnn.pad_sequence
    inputs = pad([item["inputs"] for item in items], batch_first=True)
    labels = pad([item["labels"] for item in items], True, padding_value=IGNORED_LABEL)
    mask = torch.arange(inputs.size(1)) < lengths.unsqueeze(1)
    return {"inputs": inputs, "labels": labels, "attention_mask": mask.long()}


@dataclass(frozen=True)
class Mixing:
    """What is done to clean speech; ranges are drawn from evenly.

    Attributes:
        noise: kinds of noise, drawn from evenly.
        snr: signal-to-noise ratio, in decibels.
        level: root mean square of the mixture, in decibels of full scale.
        reverberation: share of the utterances that are spoken in a room.
        seed: of all that is drawn.
    """

    noise: Sequence[str]
    snr: tuple[float, float]
    level: tuple[float, float]
    reverberation: float
    seed: int


class MixedUtterances(Utterances):
    """Clean recordings with noise mixed in when an item is asked for.

    Recordings of one speaker that are shorter than an item are joined. In training an item is drawn
    anew in each epoch: which recordings, which piece of them, the noise and how loud it is are a
    function of seed, epoch and index alone. Other parts are fixed.

    Args:
        clean: speech.
        noise: recordings for the kind `recordings`; may be empty without it.
        voices: speech for the kind `babble`, of which that of other speakers is taken.
        mixing: how to mix.
        training: whether it is the training part.
        spectrum, floor, samples: as for `Utterances`.
    """

    def __init__(
        self,
        clean: Sequence[Recording],
        noise: Sequence[Recording],
        voices: Sequence[Recording],
        mixing: Mixing,
        *,
        training: bool,
        spectrum: Spectrum,
        floor: float,
        samples: int,
    ) -> None:
        super().__init__(spectrum, floor, samples)
        self.clean, self.noise, self.voices = list(clean), list(noise), list(voices)
        self.mixing = mixing
        self.training = training
        self.epoch = 0
        self._speakers = by_speaker(self.clean)
        self._voices = by_speaker(self.voices)
        self.chains = chains(self.clean, samples)
        if training:
            # An epoch is as much sound as there is: a long recording gives several items.
            self.chains = [
                chain
                for chain in self.chains
                for _ in range(max(1, self.clean[chain[0]].samples // samples))
            ]
            self.lengths = [spectrum.num_frames(samples)] * len(self.chains)
        else:
            totals = [sum(self.clean[i].samples for i in chain) for chain in self.chains]
            self.lengths = [spectrum.num_frames(min(total, samples)) for total in totals]

    def set_epoch(self, epoch: int) -> None:
        """Which epoch's draws come next; nothing but training has any."""
        self.epoch = epoch if self.training else 0

    def excerpt(self, index: int) -> tuple[Waveform, Waveform]:
        if not self.training:
            return super().excerpt(index)
        draw = self._draw(index)
        first = self.clean[self.chains[index][0]]
        if first.samples >= self.samples:
            start = int(draw.integers(first.samples - self.samples + 1))
            clean = _read(first, start, self.samples)
        else:
            clean = _talk(draw, self.clean, self._speakers[first.speaker], self.samples)
        return self._mix(draw, clean, first.speaker)

    def whole(self, index: int) -> tuple[Waveform, Waveform]:
        limit = SCORED_SECONDS * self.spectrum.rate
        chain = self.chains[index]
        clean = np.concatenate([_read(self.clean[i], 0, limit) for i in chain])[:limit]
        return self._mix(self._draw(index), clean, self.clean[chain[0]].speaker)

    def name(self, index: int) -> str:
        first, *others = (self.clean[i].name for i in self.chains[index])
        return f"{first} and {len(others)} more" if others else first

    def digest(self) -> str:
        return _digest(self.clean, self.noise, self.voices)

    def _draw(self, index: int) -> np.random.Generator:
        return np.random.default_rng((self.mixing.seed, self.training, self.epoch, index))

    def _mix(
        self, draw: np.random.Generator, clean: Waveform, speaker: str
    ) -> tuple[Waveform, Waveform]:
        noise = self._noise(draw, len(clean), speaker)
        heard = clean
        if draw.random() < self.mixing.reverberation:
            heard = reverberate(clean, room(draw, self.spectrum.rate, draw.uniform(0.2, 0.8)))
        noisy = mix(heard, noise, draw.uniform(*self.mixing.snr))
        return at_level(noisy, clean, draw.uniform(*self.mixing.level))

    def _noise(self, draw: np.random.Generator, samples: int, speaker: str) -> Waveform:
        kind = self.mixing.noise[int(draw.integers(len(self.mixing.noise)))]
        if kind in COLORS:
            return colored_noise(draw, samples, kind)
        if kind == "babble":
            others = [name for name in self._voices if name != speaker]
            talkers = [others[draw.integers(len(others))] for _ in range(draw.integers(3, 7))]
            return babble([_talk(draw, self.voices, self._voices[t], samples) for t in talkers])
        recording = self.noise[draw.integers(len(self.noise))]
        if recording.samples > samples:
            start = int(draw.integers(recording.samples - samples + 1))
            return _read(recording, start, samples)
        return loop(_read(recording), samples, int(draw.integers(recording.samples)))


class PairedUtterances(Utterances):
    """Recordings of noisy speech beside those of the clean speech in them.

    Args:
        clean, noisy: of which number n belong together.
        training: whether it is the training part, of which each epoch sees other pieces.
        seed: of these.
        spectrum, floor, samples: as for `Utterances`.
    """

    def __init__(
        self,
        clean: Sequence[Recording],
        noisy: Sequence[Recording],
        *,
        training: bool,
        seed: int,
        spectrum: Spectrum,
        floor: float,
        samples: int,
    ) -> None:
        super().__init__(spectrum, floor, samples)
        self.clean, self.noisy = list(clean), list(noisy)
        self.training = training
        self.seed = seed
        self.epoch = 0
        self._samples = [
            min(pair[0].samples, pair[1].samples)
            for pair in zip(self.clean, self.noisy, strict=True)
        ]
        self.lengths = [spectrum.num_frames(min(count, samples)) for count in self._samples]

    def set_epoch(self, epoch: int) -> None:
        """Which epoch's draws come next; nothing but training has any."""
        self.epoch = epoch if self.training else 0

    def excerpt(self, index: int) -> tuple[Waveform, Waveform]:
        start, longer = 0, self._samples[index] - self.samples
        if self.training and longer > 0:
            draw = np.random.default_rng((self.seed, self.epoch, index))
            start = int(draw.integers(longer + 1))
        return self._pair(index, start, min(self.samples, self._samples[index]))

    def whole(self, index: int) -> tuple[Waveform, Waveform]:
        limit = SCORED_SECONDS * self.spectrum.rate
        return self._pair(index, 0, min(limit, self._samples[index]))

    def name(self, index: int) -> str:
        return self.noisy[index].name

    def digest(self) -> str:
        return _digest(self.clean, self.noisy)

    def _pair(self, index: int, start: int, samples: int) -> tuple[Waveform, Waveform]:
        noisy, clean = (
            _read(recordings[index], start, samples) for recordings in (self.noisy, self.clean)
        )
        return noisy, clean


def _talk(
    draw: np.random.Generator, recordings: Sequence[Recording], of: Sequence[int], samples: int
) -> Waveform:
    """Recordings drawn from those of one speaker until there are enough samples."""
    pieces: list[Waveform] = []
    missing = samples
    while missing > 0:
        recording = recordings[of[int(draw.integers(len(of)))]]
        start = int(draw.integers(max(1, recording.samples - missing + 1)))
        pieces.append(_read(recording, start, missing))
        missing -= max(1, len(pieces[-1]))
    wave = np.concatenate(pieces)
    return np.pad(wave, (0, samples - len(wave)))


def _read(recording: Recording, start: int = 0, samples: int | None = None) -> Waveform:
    """A piece of a recording; silence if it turns out to be broken in the middle of a run."""
    try:
        return recording.read(start, samples)
    except AudioError as error:
        warnings.warn(f"silence is taken in place of a recording: {error}", stacklevel=2)
        wanted = recording.samples - start if samples is None else samples
        return np.zeros(min(wanted, recording.samples - start), np.float32)


def _digest(*collections: Sequence[Recording]) -> str:
    digest = hashlib.sha256()
    for recordings in collections:
        for recording in recordings:
            text = f"{recording.name}\0{recording.speaker}\0{recording.samples}\0"
            digest.update(text.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()
