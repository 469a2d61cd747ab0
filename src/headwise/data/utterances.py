"""The utterances of one part: recordings, the noise that is mixed into them, and their frames.

All random numbers are drawn from the generator of an item.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

import datasets
import numpy as np
import pyarrow.compute as pc
import torch

from headwise.data.encode import Item, Items, digest
from headwise.data.load import DataError
from headwise.data.sound import SILENCE, Waveform, analyse, hop_of, num_frames, rms

if TYPE_CHECKING:
    from headwise.tasks.speech import SpeechEnhancement

COLORS = {"white": 0.0, "pink": 1.0, "brown": 2.0}
_PIECE = 30  # seconds; longer recordings are scored in pieces, as PESQ is made for 8 to 30 s
Draw = np.random.Generator


def item_samples(seconds: float, rate: int) -> int:
    """Returns how many samples an item has, whole hops."""
    return max(1, round(seconds * rate / hop_of(rate))) * hop_of(rate)


# --- noise ------------------------------------------------------------------------------------


def colored_noise(draw: Draw, samples: int, color: str) -> Waveform:
    """Returns Gaussian noise whose power falls with frequency f as 1/f^a, with a of `COLORS`.

    Its root mean square is 1. Below 20 periods in the whole length its power is constant, because
    otherwise most of it would be inaudible.
    """
    spectrum = np.fft.rfft(draw.standard_normal(samples))
    frequencies = np.maximum(np.arange(len(spectrum)), min(20, len(spectrum) - 1))
    shaped = np.fft.irfft(spectrum * np.maximum(frequencies, 1) ** (-COLORS[color] / 2), samples)
    return (shaped / max(rms(shaped), 1e-12)).astype(np.float32)


def mix(clean: Waveform, noise: Waveform, snr: float, level: float) -> tuple[Waveform, Waveform]:
    """Returns noisy speech, and the clean speech in it.

    Args:
        clean: clean speech, `(samples,)`.
        noise: noise of the same length.
        snr: the ratio of their powers over the whole length, in decibels. If one of the two is
            silent, there is none, and they are added as they are.
        level: the root mean square of the noisy speech in decibels of full scale; it is lower
            where one of the two would be clipped.
    """
    signal, disturbance = rms(clean), rms(noise)
    is_silent = min(signal, disturbance) <= SILENCE
    gain = 1.0 if is_silent else signal / disturbance * 10 ** (-snr / 20)
    noisy = (clean + gain * noise).astype(np.float32)
    if (loudness := rms(noisy)) <= SILENCE:
        return noisy, clean
    peak = max(np.abs(noisy).max(), np.abs(clean).max())
    scale = min(10 ** (level / 20) / loudness, 0.99 / peak)
    return (noisy * scale).astype(np.float32), (clean * scale).astype(np.float32)


# --- recordings and items ---------------------------------------------------------------------


class Recordings:
    """The waveforms of rows, of which only what is used comes into memory.

    Attributes:
        samples, names, speakers: how long each of them is, what it is called, and who speaks.
        of_speaker: the rows of each speaker.
        has_noise: whether each has a noisy waveform, too.
    """

    def __init__(self, rows: datasets.Dataset) -> None:
        self._rows = rows.with_format("arrow")
        columns = self._rows[:]
        self.samples = pc.binary_length(columns["clean"]).to_numpy() // 4
        self.names, self.speakers = (columns[name].to_pylist() for name in ("name", "speaker"))
        self.has_noise = columns["noisy"].null_count == 0
        self.of_speaker: dict[str, list[int]] = {}
        for row, speaker in enumerate(self.speakers):
            self.of_speaker.setdefault(speaker, []).append(row)

    def read(self, row: int, column: str = "clean") -> Waveform:
        """Returns the waveform of a row."""
        return np.frombuffer(self._rows[row][column][0].as_buffer(), np.float32)

    def talk(self, draw: Draw, speaker: str, samples: int) -> Waveform:
        """Joins random recordings of a speaker until they have as many samples."""
        waves: list[Waveform] = []
        while samples > 0:
            wave = self.read(int(draw.choice(self.of_speaker[speaker])))
            start = int(draw.integers(max(1, len(wave) - samples + 1)))
            waves.append(wave[start : start + samples])
            samples -= len(waves[-1])
        return np.concatenate(waves)


class Utterances(Items):
    """Noisy speech, and the clean speech in it.

    In training the items are excerpts, else the beginnings of the pieces that are scored. Where
    noise is mixed in, recordings of a speaker are joined until they are as long as an item.

    Args:
        task: has the waveforms of all parts, and those of noise for the kind `recordings`.
        part: the part whose utterances these are.
        fresh: whether the items are those of training.

    Attributes:
        made_of: all that what is scored depends on beside the rows.
    """

    def __init__(self, task: "SpeechEnhancement", part: str, *, fresh: bool) -> None:
        data, is_test = task.recipe.data, part not in ("train", "validation")
        noise = task.noise.get("test" if is_test else part)
        if part in data.tests:  # which may have noise of its own
            own = data.test_set(part)
            noisy = {name: getattr(own, name) for name in ("noise", "snr", "level")}
            data = data.model_copy(update=noisy)
        self.data, self.floor, self.kinds = data, task.floor, data.noise
        self.size = item_samples(data.seconds, data.rate)
        self.sounds, self.noise = Recordings(task.rows[part]), noise and Recordings(noise)
        several = len(self.sounds.of_speaker) > 1
        self.voices = self.sounds if several else Recordings(task.rows["train"])
        seed = (data.seed, int.from_bytes(part.encode()))  # parts have different noise
        self.made_of: list[object] = [self.size]
        utterances = [[row] for row in range(len(self.sounds.names))]
        if not self.sounds.has_noise:
            speakers = self.sounds.of_speaker | self.voices.of_speaker
            if "babble" in self.kinds and len(speakers) == 1:
                raise DataError(
                    f"noise is {self.kinds} and there is one speaker, expected several, of which "
                    f"babble is made: set data.speaker_pattern, put the files of each speaker into "
                    f"a folder, or leave babble out of data.noise"
                )
            self.made_of += [self.kinds, data.snr, data.level, seed, noise and digest(noise)]
            utterances = self._joined()
        pieces = [piece for each in utterances for piece in self._pieces(each, fresh)]
        frames = [num_frames(min(piece["samples"], self.size), data.rate) for piece in pieces]
        rows = datasets.Dataset.from_list(pieces)
        super().__init__(rows, np.array(frames), self._frames, seed, fresh=fresh)

    def _joined(self) -> list[list[int]]:
        """Joins recordings of a speaker until they are as long as an item."""
        found: list[list[int]] = []
        for rows in self.sounds.of_speaker.values():
            several: list[int] = []
            # As they stand in a folder, recordings of the same word would often come together.
            for row in np.random.default_rng(0).permutation(rows).tolist():
                if not several or self.sounds.samples[several].sum() >= self.size:
                    several = []
                    found.append(several)
                several.append(row)
        return sorted(found)

    def _pieces(self, rows: list[int], fresh: bool) -> list[Item]:
        """Returns the items of an utterance: its recordings, and where in them they are."""
        total = int(self.sounds.samples[rows].sum())
        first, *others = rows
        name = self.sounds.names[first] + (f" and {len(others)} more" if others else "")
        piece = {"name": name, "speaker": self.sounds.speakers[first], "rows": rows}
        if fresh:
            return [{**piece, "start": 0, "samples": total}] * max(1, total // self.size)
        number = -(-total // max(_PIECE * self.data.rate, self.size))
        ends = [total * end // number for end in range(number + 1)]
        return [{**piece, "start": start, "samples": end - start} for start, end in pairwise(ends)]

    def whole(self, index: int) -> tuple[Waveform, Waveform]:
        """Returns the noisy and the clean waveform of a piece that is scored."""
        return self._waves(self.rows[index], np.random.default_rng((*self.seed, 0, index)))

    def seen(self, piece: Item, draw: Draw) -> tuple[Waveform, Waveform]:
        """Returns the noisy and the clean waveform of which the frames of an item are made."""
        if self.fresh:
            samples = min(piece["samples"], self.size)
            start = int(draw.integers(piece["samples"] - samples + 1))
            piece = {**piece, "start": start, "samples": samples}
        noisy, clean = self._waves(piece, draw)
        return noisy[: self.size], clean[: self.size]

    def _frames(self, piece: Item, draw: Draw) -> Item:
        pair = torch.from_numpy(np.stack(self.seen(piece, draw)))
        noisy, clean = analyse(pair, self.data.rate).abs()
        labels = torch.log(clean + self.floor).numpy()
        mask = np.ones(len(labels), np.int64)
        return {"inputs": noisy.numpy(), "labels": labels, "attention_mask": mask}

    def _waves(self, piece: Item, draw: Draw) -> tuple[Waveform, Waveform]:
        clean = self._read(piece, "clean")
        if self.sounds.has_noise:
            return self._read(piece, "noisy"), clean
        noise = self._noise(draw, len(clean), piece["speaker"])
        return mix(clean, noise, draw.uniform(*self.data.snr), draw.uniform(*self.data.level))

    def _read(self, piece: Item, column: str) -> Waveform:
        waves = [self.sounds.read(row, column) for row in piece["rows"]]
        joined = waves[0] if len(waves) == 1 else np.concatenate(waves)
        return joined[piece["start"] :][: piece["samples"]]

    def _noise(self, draw: Draw, samples: int, speaker: str) -> Waveform:
        kind = self.kinds[int(draw.integers(len(self.kinds)))]
        if kind in COLORS:
            return colored_noise(draw, samples, kind)
        if kind == "babble":
            others = [name for name in self.voices.of_speaker if name != speaker]
            talkers = draw.choice(others, size=draw.integers(3, 7)).tolist()
            voices = [self.voices.talk(draw, name, samples) for name in talkers]
            heard = [voice / rms(voice) for voice in voices if rms(voice) > SILENCE]
            return np.sum(heard or [np.zeros(samples)], axis=0).astype(np.float32)
        assert self.noise is not None
        wave = self.noise.read(int(draw.integers(len(self.noise.samples))))
        start = int(draw.integers(len(wave) - samples + 1 if len(wave) > samples else len(wave)))
        return np.take(wave, range(start, start + samples), mode="wrap")  # a short one is repeated
