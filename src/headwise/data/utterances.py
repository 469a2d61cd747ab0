"""The utterances of one part: recordings on the disk, the noise in them, and their frames."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
import torch

from headwise.data.encode import Item, Items, digest
from headwise.data.load import DataError
from headwise.data.noise import COLORS, at_level, babble, colored_noise, mix
from headwise.data.sound import Waveform, analyse, hop_of, num_frames

_PIECE = 30  # seconds; longer recordings are scored in pieces, as PESQ is made for 8 to 30 s
Draw = np.random.Generator


def item_samples(seconds: float, rate: int) -> int:
    """Returns how many samples an item has, whole hops."""
    return max(1, round(seconds * rate / hop_of(rate))) * hop_of(rate)


class Recordings:
    """The waveforms of rows, of which only what is used comes into memory.

    Attributes:
        samples: how many samples each of them has.
        speakers: who speaks in it.
        of_speaker: the rows of each speaker.
        has_noise: whether each has a noisy waveform, too.
        digest: tells them from others.
    """

    def __init__(self, rows: datasets.Dataset) -> None:
        self._rows, self.digest = rows.with_format("arrow"), digest(rows)
        columns = self._rows[:]
        self.samples = pc.binary_length(columns["clean"]).to_numpy() // 4
        self.has_noise = columns["noisy"].null_count == 0
        self.speakers: list[str] = columns["speaker"].to_pylist()
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

    In training the items are excerpts, as many as there is sound for. In other parts they are the
    beginnings of the pieces that are scored: utterances, or parts of long ones. Where noise is
    mixed in, an utterance is as many recordings of a speaker as are as long as an item.

    Args:
        rows: waveforms in `clean` and perhaps in `noisy`, with `name` and `speaker`.
        data: settings of the recipe.
        kinds: the kinds of noise that are mixed in.
        voices: recordings of which babble is made if `rows` have a single speaker.
        noise: recordings of noise, for the kind `recordings`.
        floor: what is added to magnitudes before their logarithm is taken.
        seed, fresh: see `Items`; with `fresh` the items are those of training.
    """

    def __init__(
        self,
        rows: datasets.Dataset,
        data: Any,
        kinds: Sequence[str],
        voices: datasets.Dataset,
        noise: datasets.Dataset | None,
        floor: float,
        seed: Sequence[int],
        *,
        fresh: bool,
    ) -> None:
        self.data, self.kinds, self.floor = data, kinds, floor
        self.names, self.sounds = rows["name"], Recordings(rows)
        self.voices = self.sounds if len(self.sounds.of_speaker) > 1 else Recordings(voices)
        self.noise = None if noise is None else Recordings(noise)
        self.size = item_samples(data.seconds, data.rate)
        utterances = [[row] for row in range(len(rows))]
        if not self.sounds.has_noise:
            self._check_voices()
            utterances = self._joined()
        pieces = [piece for each in utterances for piece in self._pieces(each, fresh)]
        samples = np.minimum([piece["samples"] for piece in pieces], self.size).tolist()
        super().__init__(
            datasets.Dataset.from_list(pieces),
            np.array([num_frames(each, data.rate) for each in samples]),
            self._frames,
            seed,
            fresh=fresh,
        )

    def _check_voices(self) -> None:
        if "babble" in self.kinds and self.voices.of_speaker.keys() <= {self.sounds.speakers[0]}:
            raise DataError(
                f"noise is {self.kinds} and there is one speaker, expected several: babble is made "
                f"of other speakers; set data.speaker_pattern so that it finds them, put the files "
                f"of each speaker into a folder, or leave babble out of data.noise"
            )

    def _joined(self) -> list[list[int]]:
        """Joins recordings of a speaker until they are as long as an item."""
        found: list[list[int]] = []
        for rows in self.sounds.of_speaker.values():
            several: list[int] = []
            # As they stand in a folder, recordings of the same word would often come together.
            for row in np.random.default_rng(0).permutation(rows).tolist():
                several.append(row)
                if self.sounds.samples[several].sum() >= self.size:
                    found.append(several)
                    several = []
            found += [several] if several else []
        return sorted(found)

    def _pieces(self, rows: list[int], fresh: bool) -> list[Item]:
        """Returns the items of an utterance: its recordings, and where in them they are."""
        total = int(self.sounds.samples[rows].sum())
        if fresh:
            return [{"rows": rows, "start": 0, "samples": total}] * max(1, total // self.size)
        number = -(-total // max(_PIECE * self.data.rate, self.size))
        ends = [total * end // number for end in range(number + 1)]
        return [
            {"rows": rows, "start": start, "samples": end - start} for start, end in pairwise(ends)
        ]

    @property
    def made_of(self) -> list[object]:
        """All that what is scored depends on beside the rows."""
        if self.sounds.has_noise:
            return [self.size]
        noise = None if self.noise is None else self.noise.digest
        return [self.size, self.kinds, self.data.snr, self.data.level, self.seed, noise]

    def name(self, index: int) -> str:
        """Returns what an item is called."""
        first, *others = self.rows[index]["rows"]
        return f"{self.names[first]}{f' and {len(others)} more' if others else ''}"

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
        noise = self._noise(draw, len(clean), self.sounds.speakers[piece["rows"][0]])
        noisy = mix(clean, noise, draw.uniform(*self.data.snr))
        return at_level(noisy, clean, draw.uniform(*self.data.level))

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
            return babble([self.voices.talk(draw, name, samples) for name in talkers])
        assert self.noise is not None
        wave = self.noise.read(int(draw.integers(len(self.noise.samples))))
        starts = len(wave) - samples + 1 if len(wave) > samples else len(wave)
        start = int(draw.integers(starts))
        return np.take(wave, range(start, start + samples), mode="wrap")  # a short one is repeated
