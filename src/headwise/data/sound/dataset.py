"""Data sets of noisy utterances and the clean speech in them, and how items become a batch."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from headwise.data.division import PARTS, Part
from headwise.data.sound.audio import Waveform
from headwise.data.sound.mixing import (
    COLORS,
    at_level,
    babble,
    colored_noise,
    loop,
    mix,
    reverberate,
    room,
)
from headwise.data.sound.recordings import Pair, Recording, by_speaker, chains
from headwise.data.sound.settings import MixedSettings, SpeechData
from headwise.data.sound.spectrum import Spectrum, log_magnitude
from headwise.ops.labels import IGNORED_LABEL

PIECE_SECONDS = 30  # longer recordings are scored in pieces; PESQ is made for 8 to 30 s


class Frames(TypedDict):
    """An item: the spectrograms of one utterance with and without noise, `(time, bins)` each."""

    inputs: Tensor  # magnitudes of the noisy speech
    labels: Tensor  # log magnitudes of the clean speech


class Piece(NamedTuple):
    """The unit that is scored: one recording, several that are joined, or a part of a long one.

    Attributes:
        recordings: indices of the recordings.
        start: the first sample.
        samples: the number of samples.
    """

    recordings: tuple[int, ...]
    start: int
    samples: int


class Utterances(Dataset[Frames], ABC):
    """The utterances of one part.

    They are seen in two ways. The model is trained on items, and the validation loss is computed
    on items: excerpts of at most `samples` samples. Scores are computed on pieces: whole
    recordings, or parts of them where a recording is longer than `limit`. Outside training there
    is one item for each piece, its beginning.

    Args:
        clean: recordings of clean speech.
        part: which of the three parts it is.
        settings: say how long an item is, and at which sampling rate.
        floor: a number that is added to magnitudes before their logarithm is taken.
        further: the other recordings that the utterances are made of.

    Attributes:
        spectrum: the transform that makes frames of waveforms.
        samples: how many samples an item has at most.
        named: the recordings that give the pieces their names.
        lengths: the length of each item in frames.
        pieces: the pieces; no sample is in two of them.
        limit: how many samples a piece has at most.
        mixed: what decides on noise that is mixed in.
    """

    mixed: tuple[object, ...] = ()
    lengths: list[int]
    pieces: list[Piece]

    def __init__(
        self,
        clean: Sequence[Recording],
        part: Part,
        settings: SpeechData,
        floor: float,
        *further: Sequence[Recording],
    ) -> None:
        self.clean = self.named = list(clean)
        self._further = further
        self.part = part
        self.training = part == "train"
        self.epoch = 0
        self.spectrum = Spectrum(settings.rate)
        self.floor = floor
        self.samples = self.spectrum.num_samples(settings.seconds)
        self.limit = max(PIECE_SECONDS * self.spectrum.rate, self.samples)

    def __len__(self) -> int:
        return len(self.lengths)

    def set_epoch(self, epoch: int) -> None:
        """Draws training noise anew for this epoch; other parts sound the same in every epoch."""
        self.epoch = epoch if self.training else 0

    def __getitem__(self, index: int) -> Frames:
        pair = np.stack(self.excerpt(range(len(self))[index]))
        noisy, clean = self.spectrum.analyse(torch.from_numpy(pair)).abs()  # (time, bins) each
        return {"inputs": noisy, "labels": log_magnitude(clean, self.floor)}

    def excerpt(self, index: int) -> tuple[Waveform, Waveform]:
        """Returns the noisy and the clean waveform of an item, cut to `samples` samples."""
        noisy, clean = self.whole(index)
        return noisy[: self.samples], clean[: self.samples]

    @abstractmethod
    def whole(self, index: int) -> tuple[Waveform, Waveform]:
        """Returns the noisy and the clean waveform of a piece."""

    def name(self, index: int) -> str:
        """Returns the name of a piece, and where it begins in a long recording."""
        recordings, start, _ = self.pieces[index]
        first, *others = (self.named[i].name for i in recordings)
        seconds = start // self.spectrum.rate
        behind = f", from {seconds // 60}:{seconds % 60:02}" if seconds else ""
        return (f"{first} and {len(others)} more" if others else first) + behind

    def digest(self) -> str:
        """Returns a hash of names, speakers and samples of all recordings."""
        digest = hashlib.sha256()
        for recordings in (self.clean, *self._further):
            for recording in recordings:
                text = f"{recording.name}\0{recording.speaker}\0{recording.digest}\0"
                digest.update(text.encode("utf-8", "surrogatepass"))
            digest.update(b"\0")
        return digest.hexdigest()

    def items_digest(self) -> str:
        """Returns a hash of what is scored: the recordings, their noise and their pieces."""
        made_of = (self.digest(), self.spectrum.rate, self.mixed, self.pieces)
        return hashlib.sha256(repr(made_of).encode()).hexdigest()

    def _cut(self, totals: Mapping[tuple[int, ...], int]) -> list[Piece]:
        """Cuts recordings that are joined, and have so many samples together, into equal pieces."""
        pieces = []
        for recordings, samples in totals.items():
            number = -(-samples // self.limit)
            ends = [samples * end // number for end in range(number + 1)]
            pieces += [Piece(recordings, start, end - start) for start, end in pairwise(ends)]
        return pieces


def collate(items: Sequence[Frames]) -> dict[str, Tensor]:
    """Joins items into a batch; shorter items are padded at their end.

    Returns:
        `inputs` and `labels`, `(batch, time, bins)`, which are 0 and -100 at padding, and
        `attention_mask`, `(batch, time)`, which is 1 at frames and 0 at padding.
    """
    lengths = torch.tensor([len(item["inputs"]) for item in items])
    pad = torch.nn.utils.rnn.pad_sequence
    inputs = pad([item["inputs"] for item in items], batch_first=True)
    labels = pad([item["labels"] for item in items], True, padding_value=IGNORED_LABEL)
    mask = torch.arange(inputs.size(1)) < lengths.unsqueeze(1)
    return {"inputs": inputs, "labels": labels, "attention_mask": mask.long()}


class MixedUtterances(Utterances):
    """Clean recordings into which noise is mixed when an item is read.

    Recordings of one speaker that are shorter than an item are joined. In training, an item is
    drawn anew in each epoch: the recordings, the excerpt, the noise and the levels depend on seed,
    epoch and index alone. The other parts are the same in each epoch, with noise of their own.

    Args:
        clean: recordings of clean speech.
        noise: recordings of noise for the kind `recordings`; empty if it is not used.
        voices: recordings of speech for the kind `babble`, which takes other speakers from them.
        mixing: how noise is mixed in.
        part, floor: see `Utterances`.
    """

    def __init__(
        self,
        clean: Sequence[Recording],
        noise: Sequence[Recording],
        voices: Sequence[Recording],
        mixing: MixedSettings,
        *,
        part: Part,
        floor: float,
    ) -> None:
        super().__init__(clean, part, mixing, floor, noise, voices)
        self.noise, self.voices = list(noise), list(voices)
        self.mixing = mixing
        self.mixed = (
            mixing.noise_of(part),
            mixing.snr,
            mixing.level,
            mixing.reverberation,
            mixing.seed,
        )
        self._speakers = by_speaker(self.clean)
        self._voices = by_speaker(self.voices)
        spectrum, samples = self.spectrum, self.samples
        joined = chains(self.clean, samples)
        self.pieces = self._cut(
            {several: sum(self.clean[i].samples for i in several) for several in joined}
        )
        if self.training:
            # An epoch has as much sound as the recordings: a long recording makes several items.
            self._firsts = [
                first
                for first, *_ in joined
                for _ in range(max(1, self.clean[first].samples // samples))
            ]
            self.lengths = [spectrum.num_frames(samples)] * len(self._firsts)
        else:
            self.lengths = [
                spectrum.num_frames(min(piece.samples, samples)) for piece in self.pieces
            ]

    def excerpt(self, index: int) -> tuple[Waveform, Waveform]:
        if not self.training:
            return super().excerpt(index)
        draw = self._draw(index)
        first = self.clean[self._firsts[index]]
        if first.samples >= self.samples:
            start = int(draw.integers(first.samples - self.samples + 1))
            clean = first.read(start, self.samples)
        else:
            clean = _talk(draw, self.clean, self._speakers[first.speaker], self.samples)
        return self._mix(draw, clean, first.speaker)

    def whole(self, index: int) -> tuple[Waveform, Waveform]:
        piece = self.pieces[index]
        first, *others = (self.clean[i] for i in piece.recordings)
        if others:
            clean = np.concatenate([first.read(), *(other.read() for other in others)])
            clean = clean[piece.start :][: piece.samples]
        else:
            clean = first.read(piece.start, piece.samples)
        return self._mix(self._draw(index), clean, first.speaker)

    def _draw(self, index: int) -> np.random.Generator:
        number = PARTS.index(self.part)  # so that parts do not have equal noise
        return np.random.default_rng((self.mixing.seed, number, self.epoch, index))

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
        kinds = self.mixing.noise_of(self.part)
        kind = kinds[int(draw.integers(len(kinds)))]
        if kind in COLORS:
            return colored_noise(draw, samples, kind)
        if kind == "babble":
            others = [name for name in self._voices if name != speaker]
            talkers = [others[draw.integers(len(others))] for _ in range(draw.integers(3, 7))]
            return babble([_talk(draw, self.voices, self._voices[t], samples) for t in talkers])
        recording = self.noise[draw.integers(len(self.noise))]
        if recording.samples > samples:
            start = int(draw.integers(recording.samples - samples + 1))
            return recording.read(start, samples)
        return loop(recording.read(), samples, int(draw.integers(recording.samples)))


class PairedUtterances(Utterances):
    """Recordings of noisy speech, each with a recording of the clean speech in it.

    Args:
        pairs: the recordings.
        part, floor: see `Utterances`.
        settings: have also the seed of the excerpts, drawn anew in each epoch of training.
    """

    def __init__(
        self, pairs: Sequence[Pair], part: Part, settings: SpeechData, floor: float
    ) -> None:
        self.noisy = [pair.noisy for pair in pairs]
        super().__init__([pair.clean for pair in pairs], part, settings, floor, self.noisy)
        self.named = self.noisy
        self.seed = settings.seed
        self._samples = [min(noisy.samples, clean.samples) for noisy, clean in pairs]
        self.pieces = self._cut({(index,): count for index, count in enumerate(self._samples)})
        items = self._samples if self.training else [piece.samples for piece in self.pieces]
        self.lengths = [self.spectrum.num_frames(min(count, self.samples)) for count in items]

    def excerpt(self, index: int) -> tuple[Waveform, Waveform]:
        if not self.training:
            return super().excerpt(index)
        draw = np.random.default_rng((self.seed, self.epoch, index))
        count = self._samples[index]
        start = int(draw.integers(max(0, count - self.samples) + 1))
        return self._pair(index, start, min(self.samples, count))

    def whole(self, index: int) -> tuple[Waveform, Waveform]:
        (recording,), start, samples = self.pieces[index]
        return self._pair(recording, start, samples)

    def _pair(self, index: int, start: int, samples: int) -> tuple[Waveform, Waveform]:
        return self.noisy[index].read(start, samples), self.clean[index].read(start, samples)


def _talk(
    draw: np.random.Generator, recordings: Sequence[Recording], of: Sequence[int], samples: int
) -> Waveform:
    """Joins random recordings of one speaker until they have enough samples."""
    pieces: list[Waveform] = []
    missing = samples
    while missing > 0:
        recording = recordings[of[int(draw.integers(len(of)))]]
        start = int(draw.integers(max(1, recording.samples - missing + 1)))
        pieces.append(recording.read(start, missing))
        missing -= max(1, len(pieces[-1]))
    wave = np.concatenate(pieces)
    return np.pad(wave, (0, samples - len(wave)))
