"""The utterances of one split: recordings, the noise that is added to them, and their frames.

Each item has a random generator of its own, from which its excerpt, its noise and its level follow.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
import torch

from headwise.data.encode import EncodedDataset, Item, content_hash
from headwise.data.load import DataError
from headwise.data.sound import SILENCE, Waveform, hop_length, num_frames, rms, stft

COLORS = {"white": 0.0, "pink": 1.0, "brown": 2.0}
_PIECE_SECONDS = 30  # longer recordings are scored in pieces, as PESQ is made for 8 to 30 s
Random = np.random.Generator


def item_samples(seconds: float, rate: int) -> int:
    """Returns the number of samples of an item: a multiple of the hop length."""
    return max(1, round(seconds * rate / hop_length(rate))) * hop_length(rate)


def colored_noise(random: Random, samples: int, color: str) -> Waveform:
    """Returns Gaussian noise whose power falls with frequency f as 1/f^a, where `COLORS` has a.

    Its root mean square is 1. Below 20 periods in the whole length its power is constant, because
    otherwise most of it would be inaudible.
    """
    spectrum = np.fft.rfft(random.standard_normal(samples))
    frequencies = np.maximum(np.arange(len(spectrum)), min(20, len(spectrum) - 1))
    noise = np.fft.irfft(spectrum * np.maximum(frequencies, 1) ** (-COLORS[color] / 2), samples)
    return (noise / max(rms(noise), 1e-12)).astype(np.float32)


def mix(clean: Waveform, noise: Waveform, snr: float, level: float) -> tuple[Waveform, Waveform]:
    """Adds noise to clean speech; returns the noisy speech and the clean speech, scaled alike.

    Args:
        clean: clean speech, `(samples,)`.
        noise: noise of the same length.
        snr: the ratio of their powers over the whole length, in decibels. If speech or noise is
            silent, they are added unchanged.
        level: the root mean square of the noisy speech in decibels of full scale; it is lower where
            the noisy or the clean speech would be clipped.
    """
    is_silent = min(rms(clean), rms(noise)) <= SILENCE
    gain = 1.0 if is_silent else rms(clean) / rms(noise) * 10 ** (-snr / 20)
    noisy = (clean + gain * noise).astype(np.float32)
    if (loudness := rms(noisy)) <= SILENCE:
        return noisy, clean
    peak = max(np.abs(noisy).max(), np.abs(clean).max())
    scale = min(10 ** (level / 20) / loudness, 0.99 / peak)
    return (noisy * scale).astype(np.float32), (clean * scale).astype(np.float32)


class Recordings:
    """The recordings of a data set: the waveform of a row is read only when it is used.

    Attributes:
        samples, speakers: the length and the speaker of each row.
        rows_by_speaker: the rows of each speaker.
        has_noise: whether each row has a noisy waveform, too.
    """

    def __init__(self, rows: datasets.Dataset) -> None:
        self._rows = rows.with_format("arrow")
        columns = self._rows[:]
        self.samples = pc.binary_length(columns["clean"]).to_numpy() // 4
        self.speakers = columns["speaker"].to_pylist()
        self.has_noise = columns["noisy"].null_count == 0
        self.rows_by_speaker: dict[str, list[int]] = {}
        for row, speaker in enumerate(self.speakers):
            self.rows_by_speaker.setdefault(speaker, []).append(row)

    def read(self, row: int, column: str = "clean") -> Waveform:
        """Returns the waveform of a row."""
        return np.frombuffer(self._rows[row][column][0].as_buffer(), np.float32)

    def talk(self, random: Random, speaker: str, samples: int) -> Waveform:
        """Joins excerpts of random recordings of a speaker to a given length."""
        waves: list[Waveform] = []
        while samples > 0:
            wave = self.read(int(random.choice(self.rows_by_speaker[speaker])))
            start = int(random.integers(max(1, len(wave) - samples + 1)))
            waves.append(wave[start : start + samples])
            samples -= len(waves[-1])
        return np.concatenate(waves)


class Utterances(EncodedDataset):
    """Noisy speech, and the clean speech in it.

    For training the items are random excerpts; otherwise they are the beginnings of the pieces that
    are scored. Where noise is added, recordings of a speaker that are shorter than an item are
    joined.

    Args:
        split: the name of the split.
        rows: the waveforms of all splits.
        noise: the recordings of noise by split, for the kind `recordings`.
        data: the settings of the speech and the noise.
        floor: is added to magnitudes before their logarithm is taken.
        is_training: whether the items are random excerpts.

    Attributes:
        cache_key: the settings, beside the rows, on which the scored items depend.
    """

    def __init__(
        self,
        split: str,
        rows: Mapping[str, datasets.Dataset],
        noise: Mapping[str, datasets.Dataset],
        data: Any,
        floor: float,
        *,
        is_training: bool,
    ) -> None:
        split_noise = noise.get(split if split in ("train", "validation") else "test")
        if split not in ("train", "validation"):
            # A further test set may have its own kinds and levels of noise.
            test = data.test_set(split) if split in data.tests else data
            kinds = data.tests.get(split, {}).get("noise") or test.test_noise or test.noise
            data = data.model_copy(update={"noise": kinds, "snr": test.snr, "level": test.level})
        self.data, self.floor, self.is_training = data, floor, is_training
        self.size = item_samples(data.seconds, data.rate)
        self.sounds = Recordings(rows[split])
        self.noise = split_noise and Recordings(split_noise)
        has_others = len(self.sounds.rows_by_speaker) > 1
        self.talkers = self.sounds if has_others else Recordings(rows["train"])
        seed = (data.seed, int.from_bytes(split.encode()))  # splits have different noise
        self.cache_key: list[object] = [self.size]
        utterances = [[row] for row in range(len(self.sounds.speakers))]
        if not self.sounds.has_noise:
            speakers = self.sounds.rows_by_speaker | self.talkers.rows_by_speaker
            if "babble" in data.noise and len(speakers) == 1:
                raise DataError(
                    f"noise is {data.noise} and there is one speaker, expected several, since "
                    f"babble is made of other speakers: set data.speaker_pattern, put the files of "
                    f"each speaker into a folder, or leave babble out of data.noise"
                )
            noise_hash = split_noise and content_hash(split_noise)
            self.cache_key += [data.noise, data.snr, data.level, seed, noise_hash]
            utterances = self._join_short()
        pieces = [piece for utterance in utterances for piece in self._pieces(utterance)]
        frames = [num_frames(min(piece["samples"], self.size), data.rate) for piece in pieces]
        items, lengths = datasets.Dataset.from_list(pieces), np.array(frames)
        super().__init__(items, lengths, self._frames, seed, resample_each_epoch=is_training)

    def _join_short(self) -> list[list[int]]:
        """Groups the recordings of each speaker, until each group is as long as an item."""
        groups: list[list[int]] = []
        for rows in self.sounds.rows_by_speaker.values():
            group: list[int] = []
            # In the order of a folder, recordings of the same word would often be joined.
            for row in np.random.default_rng(0).permutation(rows).tolist():
                if not group or self.sounds.samples[group].sum() >= self.size:
                    group = []
                    groups.append(group)
                group.append(row)
        return sorted(groups)

    def _pieces(self, rows: list[int]) -> list[Item]:
        """Returns the items of an utterance: its recordings, and the begin and length in them."""
        total = int(self.sounds.samples[rows].sum())
        piece = {"speaker": self.sounds.speakers[rows[0]], "rows": rows}
        if self.is_training:
            return [{**piece, "start": 0, "samples": total}] * max(1, total // self.size)
        number = -(-total // max(_PIECE_SECONDS * self.data.rate, self.size))
        ends = [total * end // number for end in range(number + 1)]
        return [{**piece, "start": start, "samples": end - start} for start, end in pairwise(ends)]

    def piece_waves(self, index: int) -> tuple[Waveform, Waveform]:
        """Returns the noisy and the clean waveform of a piece that is scored."""
        return self._waves(self.rows[index], np.random.default_rng((*self.seed, 0, index)))

    def item_waves(self, piece: Item, random: Random) -> tuple[Waveform, Waveform]:
        """Returns the noisy and the clean waveform of an item."""
        if self.is_training:
            samples = min(piece["samples"], self.size)
            start = int(random.integers(piece["samples"] - samples + 1))
            piece = {**piece, "start": start, "samples": samples}
        noisy, clean = self._waves(piece, random)
        return noisy[: self.size], clean[: self.size]

    def _frames(self, piece: Item, random: Random) -> Item:
        pair = torch.from_numpy(np.stack(self.item_waves(piece, random)))
        noisy, clean = stft(pair, self.data.rate).abs()
        labels = torch.log(clean + self.floor).numpy()
        mask = np.ones(len(labels), np.int64)
        return {"inputs": noisy.numpy(), "labels": labels, "attention_mask": mask}

    def _waves(self, piece: Item, random: Random) -> tuple[Waveform, Waveform]:
        clean = self._read(piece, "clean")
        if self.sounds.has_noise:
            return self._read(piece, "noisy"), clean
        noise = self._random_noise(random, len(clean), piece["speaker"])
        return mix(clean, noise, random.uniform(*self.data.snr), random.uniform(*self.data.level))

    def _read(self, piece: Item, column: str) -> Waveform:
        waves = [self.sounds.read(row, column) for row in piece["rows"]]
        joined = waves[0] if len(waves) == 1 else np.concatenate(waves)
        return joined[piece["start"] :][: piece["samples"]]

    def _random_noise(self, random: Random, samples: int, speaker: str) -> Waveform:
        kind = self.data.noise[int(random.integers(len(self.data.noise)))]
        if kind in COLORS:
            return colored_noise(random, samples, kind)
        if kind == "babble":
            others = [other for other in self.talkers.rows_by_speaker if other != speaker]
            chosen = random.choice(others, size=random.integers(3, 7)).tolist()
            waves = [self.talkers.talk(random, other, samples) for other in chosen]
            audible = [wave / rms(wave) for wave in waves if rms(wave) > SILENCE]
            return np.sum(audible or [np.zeros(samples)], axis=0).astype(np.float32)
        assert self.noise is not None
        wave = self.noise.read(int(random.integers(len(self.noise.samples))))
        start = int(random.integers(len(wave) - samples + 1 if len(wave) > samples else len(wave)))
        return np.take(wave, range(start, start + samples), mode="wrap")  # a short one is repeated
