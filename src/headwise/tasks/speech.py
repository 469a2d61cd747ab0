"""Speech enhancement: a causal model of spectrograms removes noise from speech.

It follows section 4.2 and appendix A.2 of Lamb et al. 2021, *Transformers with Competitive
Ensembles of Independent Mechanisms*, https://arxiv.org/abs/2103.00336. The model reads the
magnitudes |X| of the short-time Fourier transform of noisy speech and predicts log(|S| + floor) of
the clean speech S in it, with squared error as the loss. The enhanced waveform has the phase of X.
"""

import hashlib
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import datasets
import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from headwise.data.encode import Columns, hash_of, numeric_column, pad
from headwise.data.load import DataError, Row, from_generator, shards_of
from headwise.data.settings import Data, Files, absolute
from headwise.data.sound import (
    SILENCE,
    SUFFIXES,
    SoundError,
    Waveform,
    generated_voices,
    istft,
    num_frames,
    read_channels,
    resample,
    rms,
    sound_files,
    speak,
    speech_package,
    stft,
)
from headwise.data.splits import KEY, clean_rows
from headwise.data.utterances import Utterances, item_samples
from headwise.files import written_whole
from headwise.models.speech import SpeechEnhancer
from headwise.ops import IGNORED_LABEL
from headwise.recipes.recipe import Recipe
from headwise.tasks.scores import Outcome, Score
from headwise.tasks.task import Positions, PredictRequest, Task, Track

_GROUP = r"\(.+\)"  # of a regular expression
Noise = Literal["white", "pink", "brown", "babble", "recordings"]


class SpeechData(Data):
    """Noisy speech and the clean speech in it, the columns `noisy` and `clean`.

    A split of `files` has two folders of WAV or FLAC files, `{noisy: folder, clean: folder}`, or
    one folder of clean speech, to which other noise is added in each epoch. Noise is added to a
    dataset, too, if `columns` gives both columns the same name.
    """

    rate: int = Field(16_000, ge=4_000, le=192_000, multiple_of=125)
    """Sampling rate in samples per second; recordings with another rate are resampled. PESQ is wide
    band from 16000, and narrow band below."""
    seconds: float = Field(4.0, ge=0.25, le=3600)
    """Length of an item in seconds. The training uses excerpts of longer recordings; where noise is
    added, shorter recordings of a speaker are joined. The validation loss is computed on the
    beginning of each utterance, the scores on all of it, in pieces of at most 30 s."""
    pattern: str | None = Field(None, pattern=_GROUP)
    """A regular expression whose first group is equal in the names of a noisy file and its clean
    file. By default both have the same name."""
    speaker_pattern: str | None = Field(None, pattern=_GROUP)
    """A regular expression whose first group is the speaker in the path of a file below its folder,
    or in the column that `columns.name` names. By default the folder of a file is its speaker."""
    split_by: Literal["file", "speaker"] = "file"
    """Whether splits of the training data have different files, or also different speakers."""
    noise: list[Noise] = Field(["white", "pink", "brown", "babble"], min_length=1)
    """Kinds of noise, all equally likely: white, pink and brown noise, babble of other speakers of
    the same split (of the training split if it has one speaker), recordings of noise_folder."""
    test_noise: list[Noise] | None = Field(None, min_length=1)
    """Kinds of noise of test splits; by default those of noise."""
    noise_folder: str | None = None
    """A folder of WAV or FLAC files of noise, which are split like the speech."""
    snr: tuple[float, float] = (0.0, 40.0)
    """Range of the signal-to-noise ratio in decibels (DNS: 0 to 40). A further test set (`tests`)
    may have a noise, snr and level of its own."""
    level: tuple[float, float] = (-35.0, -15.0)
    """Range of the root mean square of the mixture, in decibels of full scale."""
    seed: int = Field(1, ge=0)
    """Seed of the excerpts, of the noise and of its levels."""

    source_keys: ClassVar = (*Data.source_keys, "pattern", "speaker_pattern")
    test_keys: ClassVar = (*source_keys, "noise", "test_noise", "snr", "level")

    @field_validator("noise_folder")
    @classmethod
    def _absolute_folder(cls, folder: str | None) -> str | None:
        return folder and absolute(folder)

    @model_validator(mode="after")
    def _check_speech(self) -> Self:
        kinds = [*self.noise, *(self.test_noise or ())]
        if "recordings" in kinds and self.noise_folder is None:
            raise ValueError(
                f"noise is {kinds} and noise_folder is {self.noise_folder}, expected a folder "
                f"of recordings"
            )
        if self.streaming:
            raise ValueError("streaming is true, expected false: sounds are read from the disk")
        return self


class SpeechRecipe(Recipe):
    """A recipe of speech enhancement."""

    data: SpeechData
    """The speech and the noise."""


class SpeechEnhancement(Task):
    """Noisy utterances and the clean speech in them; see `Task`."""

    name = "speech-enhancement"
    recipe_class = SpeechRecipe
    model_class = SpeechEnhancer
    built_in: ClassVar = {"generated": generated_voices}
    columns: ClassVar = {"noisy": "noisy", "clean": "clean", "name": None}
    key = "key"
    item_name = "utterances"
    loss_unit = "squared error of log magnitudes"
    stacks = (("decoder", 626),)  # ten seconds, the length of DNS's test sounds
    rows_at_once = 16  # a recording may be long
    clean_keys: ClassVar = {"rate", "speaker_pattern", "split_by"}
    # The bytes of float32 samples; `noisy` is None where noise is added.
    clean_features = datasets.Features(
        dict.fromkeys(("noisy", "clean"), datasets.Value("large_binary"))
        | dict.fromkeys(("name", "speaker", "key"), datasets.Value("string"))
    )

    # --- rows -----------------------------------------------------------------------------------

    @staticmethod
    def read_files(files: Files, data: Any) -> datasets.Dataset:
        folders = files if isinstance(files, dict) else {"clean": files}
        if folders.keys() not in ({"clean"}, {"noisy", "clean"}):
            raise DataError(
                f"the folders of a split are {', '.join(folders)}, expected clean, or noisy and "
                f"clean"
            )
        rows: list[Row] = []
        for shard in shards_of(folders):
            clean = sound_files(shard["clean"], data.pattern)
            if "noisy" not in shard:
                rows += [{"noisy": None, "clean": sound} for _, sound in clean]
                continue
            partners = dict(clean)
            for key, sound in sound_files(shard["noisy"], data.pattern):
                rows.append({"noisy": sound, "clean": partners.get(key)})
        return from_generator(_yield_rows, rows=rows)

    @classmethod
    def clean(cls, columns: Columns, data: Any, split: str) -> Columns:
        """Reads recordings; those that cannot be read, or have no clean partner, are left out."""
        rows = []
        for values in zip(*columns.values(), strict=True):
            try:
                rows.append(_recording(dict(zip(columns, values, strict=True)), data, split))
            except SoundError as error:
                warnings.warn(f"{error}: it is left out", stacklevel=2)
        return {column: [row[column] for row in rows] for column in cls.clean_features}

    def open(self, folder: Path | None) -> None:
        data = self.recipe.data
        self.floor = self.config(self.recipe).floor
        self.cache_key = [data.rate, data.seconds, self.floor]
        self.noise = {} if data.noise_folder is None else self._read_noise(data)

    def _read_noise(self, data: SpeechData) -> dict[str, datasets.Dataset]:
        """Returns the recordings of noise of each split."""
        changes: dict[str, Any] = {"speaker_pattern": None, "split_by": "file", "columns": {}}
        files = self.read_files(str(data.noise_folder), data)
        rows = clean_rows(files, data.model_copy(update=changes), "noise", type(self))
        if len(rows) < 3:
            raise DataError(
                f"data.noise_folder has {len(rows)} sounds that can be read, expected at least 3: "
                f"training, validation and test have noise of their own"
            )
        shares = np.array([data.test_fraction, data.validation_fraction])
        ends = np.maximum(1, (shares * len(rows)).round()).astype(int).cumsum()
        chosen = np.split(np.argsort(numeric_column(rows, KEY)), ends)
        return dict(zip(("test", "validation", "train"), map(rows.select, chosen), strict=True))

    def encode(self, columns: Columns) -> Columns:
        return columns  # an item computes its frames when it is used

    def _split_items(self, split: str, *, is_training: bool | None = None) -> Utterances:
        data = self.recipe.data
        if data.split_by == "speaker":  # the key of a recording is its speaker
            self.facts[split].pop("repeated", None)
        is_training = split == "train" if is_training is None else is_training
        return Utterances(split, self.rows, self.noise, data, self.floor, is_training=is_training)

    def content_hash(self, split: str | None = None) -> str:
        if split is None:
            return super().content_hash()
        return hash_of(super().content_hash(split), self.splits[split].cache_key)

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

    def evaluate(self, model: Any, split: str, evaluation: Any, track: Track = iter) -> Outcome:
        """Computes PESQ and SI-SDR of the noisy and the enhanced speech."""
        utterances, rate = self._split_items(split, is_training=False), self.recipe.data.rate

        def score(index: int) -> dict[str, float]:
            noisy, clean = utterances.piece_waves(index)
            return utterance_scores(clean, noisy, enhance(model, noisy), rate)

        rows = [score(index) for index in track(range(len(utterances)))]
        table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        return Outcome(scores=mean_scores(table, rate))

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """Returns the loudness of noisy and clean frames, and which frames are speech.

        The loudness is 10 log₁₀ of the sum of the squared magnitudes, in decibels; the sum is at
        least floor². A frame is speech if its clean loudness is at most 40 decibels below that of
        the loudest frame, as in the measure of intelligibility STOI (Taal et al. 2011,
        https://doi.org/10.1109/TASL.2011.2114881).
        """
        magnitudes = (batch["labels"].exp() - self.floor).clamp(min=0)  # 0 at padding
        silence = self.floor**2
        sides = {"noisy": batch["inputs"], "clean": magnitudes}
        powers = {k: x.float().square().sum(-1).clamp(min=silence) for k, x in sides.items()}
        levels = {f"loudness of {k} speech": 10 * x.log10() for k, x in powers.items()}
        clean = powers["clean"]
        is_speech = (clean > silence) & (clean >= 1e-4 * clean.amax(1, keepdim=True))
        classes = {"speech": (is_speech.long(), ["no speech", "speech"])}
        return {"decoder": Positions(clean.shape, word="frame", classes=classes, levels=levels)}

    @classmethod
    def predict(
        cls, folder: Path, recipe: Any, model: Any, request: PredictRequest
    ) -> Iterator[str]:
        """Enhances sound files of any length, rate and number of channels, which are kept.

        The enhanced `NAME.wav` is `NAME-enhanced.wav` beside it, or `--output` for a single file.
        """
        request.refuse(cls.name, "texts", "number")
        if not request.inputs:
            raise ValueError("INPUT is not given, expected WAV or FLAC files of noisy speech")
        if request.output is not None and len(request.inputs) > 1:
            raise ValueError("--output is one file and INPUT several: leave --output out")
        for source in map(Path, request.inputs):
            target = request.output or source.with_stem(f"{source.stem}-enhanced")
            enhance_file(model, source, target)
            yield f"written: {target}"


# --- rows -----------------------------------------------------------------------------------------


def _yield_rows(rows: Sequence[Row], **_: object) -> Iterator[Row]:
    yield from rows


def _recording(row: Row, data: SpeechData, split: str) -> Row:
    """Returns the waveforms, the name and the speaker of a row, which may be a generated voice."""
    if "voice" in row:
        waves = [speak(row["voice"], row["utterance"], row["seconds"], data.rate)]
        name, speaker = f"voice {row['voice']}, {row['utterance']}", str(row["voice"])
    else:
        if len({data.columns.get(side, side) for side in ("noisy", "clean")}) == 1:
            row = {**row, "noisy": None}  # one column of clean speech, to which noise is added
        if row["clean"] is None:
            name = (row.get("noisy") or {}).get("path") or "a sound"
            raise SoundError(
                f"{name} has no clean partner: give both the same name, or set data.pattern"
            )
        sounds = [row[side] for side in ("noisy", "clean") if row.get(side) is not None]
        read = [read_channels(sound) for sound in sounds]
        waves = [resample(samples.mean(axis=1), rate, data.rate) for samples, rate in read]
        lengths = [len(wave) for wave in waves]
        if max(lengths) - min(lengths) > data.rate // 10:
            raise SoundError(
                f"{sounds[0]['path'] or 'a sound'} has {lengths[0]:,} samples, and its clean "
                f"partner {lengths[1]:,}, expected equal numbers"
            )
        name = str(row.get("name") or sounds[0].get("name") or Path(sounds[0]["path"] or "").name)
        speaker = _speaker(name, data.speaker_pattern, split)
    samples = min(map(len, waves))
    *noisy, clean = (wave[:samples].tobytes() for wave in waves)
    return {
        "noisy": noisy[0] if noisy else None,
        "clean": clean,
        "name": name,
        "speaker": speaker,
        "key": speaker if data.split_by == "speaker" else hashlib.sha256(clean).hexdigest(),
    }


def _speaker(name: str, pattern: str | None, split: str) -> str:
    if pattern is None:
        return name.rpartition("/")[0]
    match = re.search(pattern, name)
    if match is None and split == "train":
        raise DataError(
            f"data.speaker_pattern is {pattern!r}, which does not match the name {name!r}"
        )
    return match[1] if match else ""


# --- enhancing ------------------------------------------------------------------------------------


@torch.no_grad()
def enhance(model: SpeechEnhancer, noisy: Waveform) -> Waveform:
    """Removes the noise from a waveform `(samples,)`, at the sampling rate of the model.

    A long sound is read in overlapping windows, as long as the items of training. The first half of
    a window is already enhanced: it is the context of the second half.
    """
    config = model.config
    spectra = stft(torch.tensor(noisy)[None], config.sampling_rate)[0]  # (time, bins)
    magnitudes = spectra.abs()
    time, window = len(magnitudes), min(config.window, len(magnitudes))
    past = max(0, min(window // 2, window - config.lookahead - 1))
    clean, done = torch.empty_like(magnitudes), 0
    while done < time:
        start = min(max(0, done - past), time - window)
        end = start + window
        logs = model(inputs=magnitudes[None, start:end].to(model.device)).logits[0].float().cpu()
        clean[done:end] = (logs.exp() - config.floor)[done - start :].clamp(min=0)
        # The last frames are enhanced again in the next window, with the frames that they look
        # ahead to.
        done = end if end == time else end - config.lookahead
    enhanced = istft(torch.polar(clean, spectra.angle())[None], config.sampling_rate)
    return enhanced[0, : len(noisy)].numpy()


def enhance_file(model: SpeechEnhancer, source: Path, target: Path) -> None:
    """Enhances each channel of a sound file, and writes a file of the same rate and length."""
    soundfile, model_rate = speech_package("soundfile"), model.config.sampling_rate
    if target.suffix.lower() not in SUFFIXES or target.resolve() == source.resolve():
        raise ValueError(
            f"the new file is {target}, expected another one than {source}, whose name ends in "
            f"{' or '.join(SUFFIXES)}; name it with --output"
        )
    samples, rate = read_channels({"path": str(source)})
    channels = [enhance(model, noisy) for noisy in resample(samples, rate, model_rate).T]
    clean = resample(np.stack(channels, axis=1), model_rate, rate)
    enhanced = np.zeros_like(samples)
    enhanced[: len(clean)] = clean[: len(samples)]
    with written_whole(target) as partial:
        soundfile.write(str(partial), enhanced, rate)


def si_sdr(clean: Waveform, estimate: Waveform) -> float:
    """Returns the scale-invariant signal-to-distortion ratio in decibels.

    Le Roux et al. 2019, *SDR – half-baked or well done?*, https://arxiv.org/abs/1811.02508:
    10 log₁₀ (‖αs‖² / ‖αs − ŝ‖²) with α = ⟨ŝ, s⟩ / ‖s‖², for clean speech s and an estimate ŝ.
    It is at most 100; -100 if ⟨ŝ, s⟩ is 0; NaN if the clean speech is silent.

    >>> clean = np.array([1.0, 0.0, -1.0, 0.0])
    >>> round(si_sdr(clean, 3 * clean + np.array([0.0, 0.3, 0.0, 0.3])), 1)
    20.0
    """
    s, estimate = clean.astype(np.float64), estimate.astype(np.float64)
    if rms(s) <= SILENCE:
        return math.nan
    target = estimate @ s / (s @ s) * s
    signal, distortion = target @ target, np.sum((target - estimate) ** 2)
    if signal == 0:
        return -100.0
    return float(10 * np.log10(signal / max(float(distortion), 1e-10 * float(signal))))


def pesq_score(clean: Waveform, estimate: Waveform, rate: int) -> float:
    """Returns the Perceptual Evaluation of Speech Quality, as MOS-LQO, from about 1 (bad) to 4.5.

    Rix et al. 2001, *Perceptual evaluation of speech quality (PESQ)*,
    https://doi.org/10.1109/ICASSP.2001.941023. It is wide band (ITU-T P.862.2) if `rate` is at
    least 16 kHz, else narrow band (P.862.1), and NaN if no speech is found.
    """
    band_rate, band = (16_000, "wb") if rate >= 16_000 else (8_000, "nb")
    waves = [resample(wave, rate, band_rate) for wave in (clean, estimate)]
    package = speech_package("pesq")
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(package.pesq(band_rate, *waves, band))
    except (package.PesqError, ValueError):  # no utterance, silence, or NaN
        return math.nan


def utterance_scores(
    clean: Waveform, noisy: Waveform, enhanced: Waveform, rate: int
) -> dict[str, float]:
    """Returns SI-SDR, and PESQ if it is installed, of the enhanced and the noisy utterance."""
    pesq = {}
    if find_spec("pesq") is None:
        warnings.warn("pesq is not installed: speech is scored by SI-SDR alone", stacklevel=2)
    else:
        before, after = (pesq_score(clean, wave, rate) for wave in (noisy, enhanced))
        # If PESQ finds no speech in the noisy sound, there is no score; in the enhanced one, 1.
        after = before if math.isnan(before) else float(np.nan_to_num(after, nan=1.0))
        pesq = {"PESQ": after, "PESQ noisy": before}
    return pesq | {"SI-SDR": si_sdr(clean, enhanced), "SI-SDR noisy": si_sdr(clean, noisy)}


def mean_scores(table: Mapping[str, np.ndarray], rate: int) -> list[Score]:
    """Returns mean scores of enhanced speech, of their gains, and of noisy speech."""
    band = "wide band, P.862.2" if rate >= 16_000 else "narrow band, P.862.1"
    scores = []
    for name, note, digits in (("PESQ", f"{band}, MOS-LQO", 2), ("SI-SDR", "dB", 1)):
        if name not in table:
            continue
        after, before = table[name], table[f"{name} noisy"]
        if silent := int(np.isnan(after).sum()):
            note += f"; {silent} of {len(after)} utterances left out: no speech found"
        columns = {name: after, f"{name} gain": after - before, f"{name} noisy": before}
        for column, values in columns.items():
            rows = np.stack([np.nan_to_num(values), ~np.isnan(values)], axis=1)
            scores.append(Score.from_rows(column, rows, "ratio", digits=digits, note=note))
    return scores
