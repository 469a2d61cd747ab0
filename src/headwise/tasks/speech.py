"""Speech enhancement: a causal model of spectrograms takes the noise out of speech.

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
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import datasets
import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from headwise.data.divide import KEY, cleaned
from headwise.data.encode import Columns, column_of, digest_of, pad
from headwise.data.load import DataError, Row, generated, shards_of
from headwise.data.noise import SILENCE, rms
from headwise.data.settings import Data, Files
from headwise.data.sound import (
    SUFFIXES,
    SoundError,
    Waveform,
    analyse,
    num_frames,
    read_channels,
    resampled,
    sounds_below,
    speech_package,
    synthesise,
)
from headwise.data.utterances import Utterances, item_samples
from headwise.data.voices import speak, voices
from headwise.files import written_whole
from headwise.models.modeling import HeadwiseModel
from headwise.models.speech import SpeechEnhancer
from headwise.ops.labels import IGNORED_LABEL
from headwise.recipes.recipe import Evaluation, Recipe
from headwise.tasks.pictures import spectrograms, weights_by_position
from headwise.tasks.scores import Outcome, Picture, Score, spread
from headwise.tasks.task import Each, Positions, Task, Wish

_AT_ONCE = 8  # windows of a long sound that are enhanced together
_LOWEST_PESQ = 1.0  # of speech that nobody can hear any more
_LOUDNESS = ("0 to 6", "6 to 12", "12 to 18", "18 to 24", "24 or more")
_GROUP = r"\(.+\)"  # of a regular expression
Noise = Literal["white", "pink", "brown", "babble", "recordings"]


class SpeechData(Data):
    """Noisy speech and the clean speech in it, the columns `noisy` and `clean`.

    A part of `files` has two folders of WAV or FLAC files, `{noisy: folder, clean: folder}`, or one
    of clean speech, `{clean: folder}`, into which noise is mixed anew in each epoch. Noise is mixed
    into a dataset, too, if `columns` names one column for both.
    """

    rate: int = Field(16_000, ge=4_000, le=192_000, multiple_of=125)
    """Sampling rate in samples per second; recordings with another rate are resampled. PESQ is wide
    band from 16000 on, and narrow band below."""
    seconds: float = Field(4.0, ge=0.25, le=3600)
    """Length of an item in seconds. Training takes excerpts of longer recordings; where noise is
    mixed in, shorter ones of a speaker are joined. The validation loss is that of the beginning of
    each utterance. Scores are those of whole utterances, in pieces of at most 30 s."""
    pattern: str | None = Field(None, pattern=_GROUP)
    """A regular expression whose first group is equal in the names of a noisy file and of the clean
    file that belongs to it. By default both have the same name."""
    speaker_pattern: str | None = Field(None, pattern=_GROUP)
    """A regular expression whose first group is the speaker in the path of a file below its folder,
    or in the column that `columns.name` names. By default the folder of a file is its speaker."""
    divide_by: Literal["file", "speaker"] = "file"
    """Whether parts that are shares of the training data differ in their sounds, or also in their
    speakers."""
    noise: list[Noise] = Field(["white", "pink", "brown", "babble"], min_length=1)
    """Kinds of noise, all equally likely: white, pink and brown noise, babble of other speakers of
    the same part (of the training part if it has one speaker), recordings of noise_folder."""
    test_noise: list[Noise] | None = Field(None, min_length=1)
    """Kinds of noise of test parts, perhaps others than in training; by default those of noise."""
    noise_folder: str | None = None
    """A folder of WAV or FLAC files of noise, for the kind recordings. Each part has some of its
    own."""
    snr: tuple[float, float] = (0.0, 40.0)
    """Range of the signal-to-noise ratio in decibels (DNS: 0 to 40)."""
    level: tuple[float, float] = (-35.0, -15.0)
    """Range of the root mean square of the mixture, in decibels of full scale."""
    seed: int = Field(1, ge=0)
    """Seed of the excerpts, the noise and the levels."""

    @field_validator("noise_folder")
    @classmethod
    def _absolute_folder(cls, folder: str | None) -> str | None:
        return folder and str(Path(folder).expanduser().absolute())

    @model_validator(mode="after")
    def _check_speech(self) -> Self:
        kinds = [*self.noise, *(self.test_noise or ())]
        if ("recordings" in kinds) != (self.noise_folder is not None):
            raise ValueError(
                f"noise is {kinds} and noise_folder is {self.noise_folder}, expected both or "
                f"neither: name the kind recordings and their folder, or leave out both"
            )
        if self.streaming:
            raise ValueError("streaming is true, expected false: sounds are read from the disk")
        return self


class SpeechEvaluation(Evaluation):
    """How long sounds are enhanced, and how many spectrograms are drawn."""

    overlap: float = Field(0.5, ge=0, lt=1)
    """The share of a window of data.seconds that only serves as past for the rest of it, in sounds
    that are longer than a window."""
    pictures: int = Field(2, ge=0)
    """How many test utterances get spectrograms."""


class SpeechRecipe(Recipe):
    """A recipe of speech enhancement."""

    data: SpeechData
    """The speech and the noise to train and evaluate on."""
    evaluation: SpeechEvaluation = Field(default_factory=SpeechEvaluation)
    """How the trained model is evaluated."""


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
                if common not in partners:
                    raise DataError(
                        f"{sound['path']} has no partner in {folders['clean']}, which has such as "
                        f"{clean[0][1]['name']}: give both one name, or set data.pattern to a "
                        f"regular expression whose first group is equal in both names"
                    )
                rows.append({"noisy": sound, "clean": partners[common]})
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
        of_noise = data.model_copy(update={"speaker_pattern": None, "divide_by": "file"})
        files = self.read_files({"clean": str(data.noise_folder)}, data)
        rows = cleaned(files, of_noise, "noise", type(self))
        if len(rows) < 3:
            raise DataError(
                f"data.noise_folder has {len(rows)} sounds that can be read, expected at least 3: "
                f"training, validation and test have noise of their own"
            )
        shares = {"test": data.test_fraction, "validation": data.validation_fraction}
        ends = np.cumsum([max(1, round(share * len(rows))) for share in shares.values()])
        chosen = np.split(np.argsort(column_of(rows, KEY)), ends)
        return {
            part: rows.select(some) for part, some in zip((*shares, "train"), chosen, strict=True)
        }

    def encode(self, columns: Columns) -> Columns:
        return columns  # frames are made of an item when it is drawn

    def _items(self, part: str) -> Utterances:
        return self.items(self.rows[part], part)

    def items(self, rows: datasets.Dataset, part: str) -> Utterances:
        utterances, facts = self.utterances(part, fresh=part == "train"), self.facts[part]
        minutes = utterances.sounds.samples.sum() / self.recipe.data.rate / 60
        facts |= {"minutes": f"{minutes:,.1f}", "speakers": len(utterances.sounds.of_speaker)}
        if self.recipe.data.divide_by == "speaker":  # the key of a recording is its speaker
            facts.pop("repeated", None)
            if "also in training" in facts:
                facts["of speakers in training"] = facts.pop("also in training")
        return utterances

    def utterances(self, part: str, *, fresh: bool = False) -> Utterances:
        """Returns the sounds of a part: as they are trained on if `fresh`, else as scored."""
        data, is_test = self.recipe.data, part not in ("train", "validation")
        return Utterances(
            self.rows[part],
            data,
            (is_test and data.test_noise) or data.noise,
            voices=self.rows["train"],
            noise=self.noise.get("test" if is_test else part),
            floor=self.floor,
            seed=(data.seed, int.from_bytes(part.encode())),  # parts have different noise
            fresh=fresh,
        )

    def digest(self, part: str | None = None) -> str:
        if part is None:
            return super().digest()
        return digest_of(super().digest(part), self.utterances(part).made_of)

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        return pad(items, {"inputs": 0, "labels": IGNORED_LABEL, "attention_mask": 0})

    # --- the model ------------------------------------------------------------------------------

    @classmethod
    def sizes(cls, recipe: SpeechRecipe, task: Any = None) -> dict[str, Any]:
        data = recipe.data
        window = num_frames(item_samples(data.seconds, data.rate), data.rate)
        return {"sampling_rate": data.rate, "window": window}

    @classmethod
    def cost_lengths(cls, recipe: SpeechRecipe) -> dict[str, int]:
        return {"decoder": 626}  # ten seconds, as the sounds of DNS's test set

    def save(self, folder: Path) -> None:
        """Writes nothing: the model's configuration has the sampling rate."""

    # --- scores ---------------------------------------------------------------------------------

    def evaluate(
        self, model: HeadwiseModel, part: str, evaluation: Evaluation, each: Each
    ) -> Outcome:
        """Returns PESQ and SI-SDR of the noisy and the enhanced speech, and spectrograms."""
        assert isinstance(model, SpeechEnhancer) and isinstance(evaluation, SpeechEvaluation)
        utterances, rate, overlap = self.utterances(part), self.recipe.data.rate, evaluation.overlap

        def scored(index: int) -> dict[str, float]:
            noisy, clean = utterances.whole(index)
            return figures(clean, noisy, enhance(model, noisy, overlap), rate)

        rows = each(range(len(utterances)), scored)
        table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        by_noise = np.argsort(np.nan_to_num(table["SI-SDR noisy"], nan=np.inf), kind="stable")
        shown = spread(by_noise.tolist(), evaluation.pictures)
        return Outcome(
            scores=_scores(table, rate),
            pictures=[_picture(model, utterances, i, rows[i], overlap) for i in shown],
            digest=self.digest(part),
        )

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """Returns the loudness of the frames of noisy speech, and of the clean speech in them.

        The loudness of a frame is 10 log₁₀ of the sum of its squared magnitudes, in decibels, and
        at least that of a single magnitude of `floor`. The class `loudness` is how far a frame of
        noisy speech is below the loudest of its sequence. The class `speech` says whether the clean
        frame is at most 40 decibels below the loudest one, as in the measure of intelligibility
        STOI (Taal et al. 2011, https://doi.org/10.1109/TASL.2011.2114881).
        """
        known = batch["labels"] != IGNORED_LABEL
        magnitudes = (batch["labels"].exp() - self.floor).clamp(min=0) * known
        noisy, clean = (
            10 * torch.log10(each.float().square().sum(-1).clamp(min=self.floor**2))
            for each in (batch["inputs"], magnitudes)
        )
        steps = ((noisy.amax(1, keepdim=True) - noisy) / 6).long().clamp(max=len(_LOUDNESS) - 1)
        is_speech = (clean >= clean.amax(1, keepdim=True) - 40) & (clean > clean.amin())
        classes = {
            "loudness": (steps, [f"{step} dB below the loudest" for step in _LOUDNESS]),
            "speech": (is_speech.long(), ["no speech", "speech"]),
        }
        levels = {"loudness of noisy speech": noisy, "loudness of clean speech": clean}
        shape = (noisy.size(0), noisy.size(1))
        return {"decoder": Positions(shape, word="frame", classes=classes, levels=levels)}

    @classmethod
    def predict(cls, folder: Path, recipe: Any, model: HeadwiseModel, wish: Wish) -> Iterator[str]:
        """Enhances sound files of any length, rate and number of channels, which they keep.

        A file `NAME.wav` is written to `NAME-enhanced.wav` beside it, or to the file that
        `--output` names, or, with several, into the folder that it names.
        """
        assert isinstance(model, SpeechEnhancer)
        wish.refuse(cls.name, "texts", "number")
        if not wish.inputs:
            raise ValueError("INPUT names no file, expected WAV or FLAC files of noisy speech")
        for source in map(Path, wish.inputs):
            target = source.with_name(f"{source.stem}-enhanced{source.suffix}")
            if wish.output is not None:
                is_folder = wish.output.is_dir() or len(wish.inputs) > 1
                target = wish.output / source.name if is_folder else wish.output
            _enhance_file(model, source, target, recipe.evaluation.overlap)
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
        sounds = [row[side] for side in ("noisy", "clean") if row.get(side) is not None]
        waves = [_wave(sound, data.rate) for sound in sounds]
        lengths = [len(wave) for wave in waves]
        if max(lengths) - min(lengths) > data.rate // 10:
            raise DataError(
                f"{sounds[0]['path']} has {lengths[0]:,} samples at {data.rate} Hz, and its clean "
                f"partner {sounds[1]['path']} {lengths[1]:,}, expected equal numbers"
            )
        name = row.get("name") or sounds[0].get("name") or Path(sounds[0]["path"] or "").name
        speaker = _speaker(str(name), data.speaker_pattern, part)
    samples = min(map(len, waves))
    *noisy, clean = (wave[:samples].tobytes() for wave in waves)
    key = speaker if data.divide_by == "speaker" else hashlib.sha256(clean).hexdigest()
    found = {"name": str(name), "speaker": speaker, "key": key}
    return found | {"noisy": noisy[0] if noisy else None, "clean": clean}


def _wave(sound: Row, rate: int) -> Waveform:
    samples, own_rate = read_channels(sound)
    return resampled(samples.mean(axis=1), own_rate, rate)


def _speaker(name: str, pattern: str | None, part: str) -> str:
    if pattern is None:
        return name.rpartition("/")[0]
    match = re.search(pattern, name)
    if match is None and part == "train":
        raise DataError(
            f"data.speaker_pattern is {pattern!r}, which does not match the name {name!r}: set a "
            f"regular expression whose first group is the speaker"
        )
    return match[1] if match else ""


# --- enhancement ----------------------------------------------------------------------------------


@torch.no_grad()
def enhance(model: SpeechEnhancer, noisy: Waveform, overlap: float = 0.5) -> Waveform:
    """Takes the noise out of a waveform of any length, at the sampling rate of the model.

    A sound that is longer than the items of training is read in windows of their length, each of
    which begins with frames that are enhanced already: they are the past of the others.

    Args:
        model: the model in evaluation mode.
        noisy: the waveform, `(samples,)`.
        overlap: the share of a window that is only past.
    """
    config = model.config
    spectra = analyse(torch.from_numpy(noisy)[None], config.sampling_rate)[0]  # (time, bins)
    magnitudes, time = spectra.abs(), len(spectra)
    window = min(config.window, time)
    new = max(1, config.window - config.lookahead - int(overlap * config.window))
    starts = [*range(0, time - window, new), time - window]
    clean, done = torch.empty_like(magnitudes), 0
    for first in range(0, len(starts), _AT_ONCE):
        some = starts[first : first + _AT_ONCE]
        inputs = torch.stack([magnitudes[start : start + window] for start in some])
        logs = model(inputs=inputs.to(model.device)).logits.float().cpu()
        for start, found in zip(some, logs.exp() - config.floor, strict=True):
            clean[done : start + window] = found[done - start :].clamp(min=0)
            done = start + window - config.lookahead  # frames whose future was heard, too
    enhanced = synthesise(torch.polar(clean, spectra.angle())[None], config.sampling_rate)
    return enhanced[0, : len(noisy)].numpy()


def _enhance_file(model: SpeechEnhancer, source: Path, target: Path, overlap: float) -> None:
    """Enhances each channel of a sound file, and writes another of the same rate and length."""
    soundfile, own = speech_package("soundfile"), model.config.sampling_rate
    if target.suffix.lower() not in SUFFIXES or target.absolute() == source.absolute():
        raise ValueError(
            f"the new file is {target}, expected another one than {source}, whose name ends in "
            f"{' or '.join(SUFFIXES)}; name it with --output"
        )
    samples, rate = read_channels({"path": str(source)})
    enhanced = np.zeros_like(samples)
    for channel, noisy in enumerate(samples.T):
        clean = enhance(model, np.ascontiguousarray(resampled(noisy, rate, own)), overlap)
        clean = resampled(clean, own, rate)[: len(noisy)]
        enhanced[: len(clean), channel] = clean
    kind = soundfile.info(str(source)).subtype
    subtype = kind if soundfile.check_format(target.suffix[1:].upper(), kind) else None
    with written_whole(target) as partial:
        soundfile.write(str(partial), enhanced, rate, subtype=subtype)


# --- scores ---------------------------------------------------------------------------------------


def si_sdr(clean: Waveform, heard: Waveform) -> float:
    """Returns the scale-invariant signal-to-distortion ratio in decibels.

    Le Roux et al. 2019, *SDR – half-baked or well done?*, https://arxiv.org/abs/1811.02508:
    10 log₁₀ (‖αs‖² / ‖αs − ŝ‖²) with α = ⟨ŝ, s⟩ / ‖s‖², of clean speech s and speech ŝ.
    It is at most 100; -100 if ⟨ŝ, s⟩ is 0; NaN if the clean speech is silent.

    >>> clean = np.array([1.0, 0.0, -1.0, 0.0])
    >>> round(si_sdr(clean, 3 * clean + np.array([0.0, 0.3, 0.0, 0.3])), 1)
    20.0
    """
    s, estimate = clean.astype(np.float64), heard.astype(np.float64)
    if rms(s) <= SILENCE:
        return math.nan
    target = estimate @ s / (s @ s) * s
    wanted, distortion = target @ target, np.sum((target - estimate) ** 2)
    if wanted == 0:
        return -100.0
    return float(10 * np.log10(wanted / max(float(distortion), 1e-10 * float(wanted))))


@cache
def _pesq() -> Any:
    """Returns the package pesq; None if it is not installed, which is said once."""
    try:
        return speech_package("pesq")
    except DataError as error:
        warnings.warn(f"{error}. Speech is scored by SI-SDR alone", stacklevel=2)
        return None


def pesq_score(clean: Waveform, heard: Waveform, rate: int) -> float:
    """Returns the Perceptual Evaluation of Speech Quality, as MOS-LQO, from about 1 (bad) to 4.5.

    Rix et al. 2001, *Perceptual evaluation of speech quality (PESQ)*,
    https://doi.org/10.1109/ICASSP.2001.941023. It is wide band (ITU-T P.862.2) if `rate` is at
    least 16 kHz, else narrow band (P.862.1), and NaN if no speech is found.
    """
    at, band = (16_000, "wb") if rate >= 16_000 else (8_000, "nb")
    waves = [resampled(wave, rate, at) for wave in (clean, heard)]
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(_pesq().pesq(at, *waves, band))
    except (_pesq().PesqError, ValueError):  # no utterance; silence, or what is no number
        return math.nan


def figures(clean: Waveform, noisy: Waveform, enhanced: Waveform, rate: int) -> dict[str, float]:
    """Returns PESQ, if it is installed, and SI-SDR of an utterance, enhanced and noisy."""
    found = {}
    if _pesq() is not None:
        before, after = (pesq_score(clean, wave, rate) for wave in (noisy, enhanced))
        # No speech in the noisy sound is nothing to score; none in the enhanced one is the worst.
        after = before if math.isnan(before) else np.nan_to_num(after, nan=_LOWEST_PESQ)
        found = {"PESQ": float(after), "PESQ noisy": before}
    return found | {"SI-SDR": si_sdr(clean, enhanced), "SI-SDR noisy": si_sdr(clean, noisy)}


def _scores(table: Mapping[str, np.ndarray], rate: int) -> list[Score]:
    """Returns the means over the utterances that have a score, of the enhanced speech first."""
    band = "wide band, P.862.2" if rate >= 16_000 else "narrow band, P.862.1"
    units = {"PESQ": (f"{band}, MOS-LQO", 2), "SI-SDR": ("dB", 1)}
    scores = []
    for name in [name for name in units if name in table]:
        note, digits = units[name]
        after, before = table[name], table[f"{name} noisy"]
        if silent := int(np.isnan(after).sum()):
            note += f"; {silent} of {len(after)} utterances left out: no speech found"
        for column, values in (
            (name, after),
            (f"{name} gain", after - before),
            (f"{name} noisy", before),
        ):
            rows = np.stack([np.nan_to_num(values), ~np.isnan(values)], axis=1)
            scores.append(Score.of(column, rows, "ratio", digits=digits, note=note))
    return scores


def _picture(
    model: SpeechEnhancer,
    utterances: Utterances,
    index: int,
    scores: Mapping[str, float],
    overlap: float,
) -> Picture:
    """Draws the beginning of an utterance, and below it what its systems did at each frame."""
    rate = model.config.sampling_rate
    noisy, clean = (wave[: utterances.size] for wave in utterances.whole(index))
    waves = {"noisy": noisy, "clean": clean, "enhanced": enhance(model, noisy, overlap)}
    sounds = {
        label: analyse(torch.tensor(wave)[None], rate).abs()[0] for label, wave in waves.items()
    }
    decided = weights_by_position(model, inputs=sounds["noisy"][None].to(model.device))
    caption = ", ".join(
        f"{name} {scores[f'{name} noisy']:.2f} → {scores[name]:.2f}"
        for name in ("PESQ", "SI-SDR")
        if name in scores
    )
    if decided:
        units = sorted({system.unit for system, _ in decided})
        caption += f". Below: the weight of each {' and '.join(units)} over the frames, by layer"
    maps = [(f"layer {system.layer}", weights[0]) for system, weights in decided]
    return Picture.of(utterances.name(index), spectrograms(sounds, maps, rate), f"{caption}.")
