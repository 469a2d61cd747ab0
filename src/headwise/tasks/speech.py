"""Speech enhancement: a causal model of spectrograms takes the noise out of speech.

It follows section 4.2 and appendix A.2 of Lamb et al. 2021, *Transformers with Competitive
Ensembles of Independent Mechanisms*, https://arxiv.org/abs/2103.00336. The model reads the
magnitudes |X| of the short-time Fourier transform of noisy speech and predicts log(|S| + floor) of
the clean speech S in it, with squared error as the loss. The enhanced waveform has the phase of X.
"""

import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import datasets
import numpy as np
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from headwise.data.divide import KEY, cleaned
from headwise.data.encode import Columns, column_of, digest_of, pad
from headwise.data.load import DataError, Row, generated, shards_of
from headwise.data.settings import Data, Files, absolute
from headwise.data.sound import (
    SoundError,
    num_frames,
    read_channels,
    resampled,
    sounds_below,
)
from headwise.data.utterances import Utterances, item_samples
from headwise.data.voices import speak, voices
from headwise.models.speech import SpeechEnhancer
from headwise.ops import IGNORED_LABEL
from headwise.recipes.recipe import Recipe
from headwise.tasks.enhancing import enhance, enhance_file, figures, scores_of
from headwise.tasks.scores import Outcome
from headwise.tasks.task import Each, Positions, Task, Wish

_GROUP = r"\(.+\)"  # of a regular expression
Noise = Literal["white", "pink", "brown", "babble", "recordings"]


class SpeechData(Data):
    """Noisy speech and the clean speech in it, the columns `noisy` and `clean`.

    A part of `files` has two folders of WAV or FLAC files, `{noisy: folder, clean: folder}`, or one
    of clean speech, into which noise is mixed anew in each epoch. Noise is mixed into a dataset,
    too, if `columns` names one column for both.
    """

    rate: int = Field(16_000, ge=4_000, le=192_000, multiple_of=125)
    """Sampling rate in samples per second; recordings with another rate are resampled. PESQ is wide
    band from 16000 on, and narrow band below."""
    seconds: float = Field(4.0, ge=0.25, le=3600)
    """Length of an item in seconds. Training takes excerpts of longer recordings; where noise is
    mixed in, shorter ones of a speaker are joined. The validation loss is that of the beginning of
    each utterance. Scores are those of whole utterances, in pieces of at most 30 s."""
    pattern: str | None = Field(None, pattern=_GROUP)
    """A regular expression whose first group is equal in the names of a noisy file and of its clean
    file. By default both have the same name."""
    speaker_pattern: str | None = Field(None, pattern=_GROUP)
    """A regular expression whose first group is the speaker in the path of a file below its folder,
    or in the column that `columns.name` names. By default the folder of a file is its speaker."""
    divide_by: Literal["file", "speaker"] = "file"
    """Whether shares of the training data differ in their sounds, or also in their speakers."""
    noise: list[Noise] = Field(["white", "pink", "brown", "babble"], min_length=1)
    """Kinds of noise, all equally likely: white, pink and brown noise, babble of other speakers of
    the same part (of the training part if it has one speaker), recordings of noise_folder."""
    noise_folder: str | None = None
    """A folder of WAV or FLAC files of noise, of which each part has some of its own."""
    snr: tuple[float, float] = (0.0, 40.0)
    """Range of the signal-to-noise ratio in decibels (DNS: 0 to 40). A further test set (`tests`)
    may have a noise, snr and level of its own."""
    level: tuple[float, float] = (-35.0, -15.0)
    """Range of the root mean square of the mixture, in decibels of full scale."""
    seed: int = Field(1, ge=0)
    """Seed of the excerpts, the noise and the levels."""

    @field_validator("noise_folder")
    @classmethod
    def _absolute_folder(cls, folder: str | None) -> str | None:
        return folder and absolute(folder)

    @model_validator(mode="after")
    def _check_speech(self) -> Self:
        if "recordings" in self.noise and self.noise_folder is None:
            raise ValueError(
                f"noise is {self.noise} and noise_folder is {self.noise_folder}, expected a folder "
                f"of recordings"
            )
        if self.streaming:
            raise ValueError("streaming is true, expected false: sounds are read from the disk")
        return self


class SpeechRecipe(Recipe):
    """A recipe of speech enhancement."""

    data: SpeechData
    """The speech and the noise to train and evaluate on."""


class SpeechEnhancement(Task):
    """Noisy utterances and the clean speech in them; see `Task`."""

    name = "speech-enhancement"
    recipe_class = SpeechRecipe
    model_class = SpeechEnhancer
    built_in: ClassVar = {"generated": voices}
    columns: ClassVar = {"noisy": "noisy", "clean": "clean", "name": None}
    key = "key"
    item_name = "utterances"
    loss_unit = "squared error of log magnitudes"
    pipeline = "audio-to-audio"
    counted = (("decoder", 626),)  # ten seconds, as the sounds of DNS's test set
    rows_at_once = 16  # a recording may be long
    clean_keys: ClassVar = {"rate", "speaker_pattern", "divide_by"}
    # The bytes of float32 samples; `noisy` is None where noise is mixed in.
    clean_features = datasets.Features(
        dict.fromkeys(("noisy", "clean"), datasets.Value("large_binary"))
        | dict.fromkeys(("name", "speaker", "key"), datasets.Value("string"))
    )

    # --- rows -----------------------------------------------------------------------------------

    @staticmethod
    def read_files(files: Files, data: Any) -> datasets.Dataset:
        given = files if isinstance(files, dict) else {"clean": files}
        if given.keys() not in ({"clean"}, {"noisy", "clean"}):
            raise DataError(
                f"the folders of a part are {', '.join(given)}, expected clean, or noisy and clean"
            )
        rows: list[Row] = []
        for folders in shards_of(given):
            clean = sounds_below(folders["clean"], data.pattern)
            if "noisy" not in folders:
                rows += [{"noisy": None, "clean": sound} for _, sound in clean]
                continue
            partners = dict(clean)
            for common, sound in sounds_below(folders["noisy"], data.pattern):
                rows.append({"noisy": sound, "clean": partners.get(common)})
        return generated(_given, rows=rows)

    @classmethod
    def clean(cls, columns: Columns, data: Any, part: str) -> Columns:
        found = []
        for row in zip(*columns.values(), strict=True):
            try:
                found.append(_recording(dict(zip(columns, row, strict=True)), data, part))
            except SoundError as error:
                warnings.warn(f"{error}: it is left out", stacklevel=2)
        return {column: [row[column] for row in found] for column in cls.clean_features}

    def open(self, folder: Path | None) -> None:
        data = self.recipe.data
        self.floor = self.config(self.recipe).floor
        self.made_of = [data.rate, data.seconds, self.floor]
        self.noise = {} if data.noise_folder is None else self._noise(data)

    def _noise(self, data: SpeechData) -> dict[str, datasets.Dataset]:
        """Returns the recordings of noise of each part."""
        own: dict[str, Any] = {"speaker_pattern": None, "divide_by": "file", "columns": {}}
        of_noise = data.model_copy(update=own)
        files = self.read_files(str(data.noise_folder), data)
        rows = cleaned(files, of_noise, "noise", type(self))
        if len(rows) < 3:
            raise DataError(
                f"data.noise_folder has {len(rows)} sounds that can be read, expected at least 3: "
                f"training, validation and test have noise of their own"
            )
        shares = np.array([data.test_fraction, data.validation_fraction])
        ends = np.maximum(1, (shares * len(rows)).round()).astype(int).cumsum()
        chosen = np.split(np.argsort(column_of(rows, KEY)), ends)
        return dict(zip(("test", "validation", "train"), map(rows.select, chosen), strict=True))

    def encode(self, columns: Columns) -> Columns:
        return columns  # frames are made of an item when it is drawn

    def _items(self, part: str) -> Utterances:
        if self.recipe.data.divide_by == "speaker":  # the key of a recording is its speaker
            self.facts[part].pop("repeated", None)
        return Utterances(self, part, fresh=part == "train")

    def digest(self, part: str | None = None) -> str:
        if part is None:
            return super().digest()
        return digest_of(super().digest(part), self.parts[part].made_of)

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        return pad(items, {"inputs": 0, "labels": IGNORED_LABEL, "attention_mask": 0})

    # --- the model ------------------------------------------------------------------------------

    @classmethod
    def sizes(cls, recipe: SpeechRecipe, task: Any = None) -> dict[str, Any]:
        rate = recipe.data.rate
        window = num_frames(item_samples(recipe.data.seconds, rate), rate)
        return {"sampling_rate": rate, "window": window}

    def save(self, folder: Path) -> None:
        """Writes nothing: the model's configuration has the sampling rate."""

    # --- scores ---------------------------------------------------------------------------------

    def evaluate(self, model: Any, part: str, evaluation: Any, each: Each) -> Outcome:
        """Returns PESQ and SI-SDR of the noisy and the enhanced speech."""
        utterances = self.parts[part]
        utterances = Utterances(self, part, fresh=False) if utterances.fresh else utterances
        rate = self.recipe.data.rate

        def scored(index: int) -> dict[str, float]:
            noisy, clean = utterances.whole(index)
            return figures(clean, noisy, enhance(model, noisy), rate)

        rows = each(range(len(utterances)), scored)
        table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        return Outcome(scores=scores_of(table, rate))

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """Returns the loudness of the frames of noisy speech, and of the clean speech in them.

        It is 10 log₁₀ of the sum of the squared magnitudes, in decibels, and at least that of a
        single magnitude of `floor`. The class `speech` says whether the clean frame is at most 40
        decibels below the loudest one, as in the measure of intelligibility STOI (Taal et al. 2011,
        https://doi.org/10.1109/TASL.2011.2114881).
        """
        magnitudes = (batch["labels"].exp() - self.floor).clamp(min=0)  # 0 at padding
        least = self.floor**2
        sides = {"noisy": batch["inputs"], "clean": magnitudes}
        powers = {k: x.float().square().sum(-1).clamp(min=least) for k, x in sides.items()}
        levels = {f"loudness of {k} speech": 10 * x.log10() for k, x in powers.items()}
        clean = powers["clean"]
        is_speech = (clean > least) & (clean >= 1e-4 * clean.amax(1, keepdim=True))
        classes = {"speech": (is_speech.long(), ["no speech", "speech"])}
        return {"decoder": Positions(clean.shape, word="frame", classes=classes, levels=levels)}

    @classmethod
    def predict(cls, folder: Path, recipe: Any, model: Any, wish: Wish) -> Iterator[str]:
        """Enhances sound files of any length, rate and number of channels, which they keep.

        `NAME.wav` is written to `NAME-enhanced.wav` beside it, or a single one to `--output`.
        """
        wish.refuse(cls.name, "texts", "number")
        if not wish.inputs:
            raise ValueError("INPUT is not given, expected WAV or FLAC files of noisy speech")
        if wish.output is not None and len(wish.inputs) > 1:
            raise ValueError("--output is one file and INPUT several: leave --output out")
        for source in map(Path, wish.inputs):
            target = wish.output or source.with_stem(f"{source.stem}-enhanced")
            enhance_file(model, source, target)
            yield f"written: {target}"


# --- rows -----------------------------------------------------------------------------------------


def _given(rows: Sequence[Row], **_: object) -> Iterator[Row]:
    yield from rows


def _recording(row: Row, data: SpeechData, part: str) -> Row:
    """Returns the waveforms of a row: of files, of a dataset, or of a generated voice."""
    if "voice" in row:
        waves = [speak(row["voice"], row["utterance"], row["seconds"], data.rate)]
        name, speaker = f"voice {row['voice']}, {row['utterance']}", str(row["voice"])
    else:
        if row["clean"] is None:
            raise SoundError(
                f"{row['noisy']['path'] or 'a sound'} has no clean partner: give both one name, or "
                f"set data.pattern"
            )
        sounds = [row[side] for side in ("noisy", "clean") if row.get(side) is not None]
        read = [read_channels(sound) for sound in sounds]
        waves = [resampled(samples.mean(axis=1), rate, data.rate) for samples, rate in read]
        lengths = [len(wave) for wave in waves]
        if max(lengths) - min(lengths) > data.rate // 10:
            raise SoundError(
                f"{sounds[0]['path'] or 'a sound'} has {lengths[0]:,} samples, and its clean "
                f"partner {lengths[1]:,}, expected equal numbers"
            )
        name = str(row.get("name") or sounds[0].get("name") or Path(sounds[0]["path"] or "").name)
        speaker = _speaker(name, data.speaker_pattern, part)
    samples = min(map(len, waves))
    *noisy, clean = (wave[:samples].tobytes() for wave in waves)
    return {
        "noisy": noisy[0] if noisy else None,
        "clean": clean,
        "name": name,
        "speaker": speaker,
        "key": speaker if data.divide_by == "speaker" else hashlib.sha256(clean).hexdigest(),
    }


def _speaker(name: str, pattern: str | None, part: str) -> str:
    if pattern is None:
        return name.rpartition("/")[0]
    match = re.search(pattern, name)
    if match is None and part == "train":
        raise DataError(
            f"data.speaker_pattern is {pattern!r}, which does not match the name {name!r}"
        )
    return match[1] if match else ""
