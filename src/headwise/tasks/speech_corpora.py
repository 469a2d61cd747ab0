"""Speech to be enhanced: settings, and what they name in three parts.

- `generated`: voices that are none, made up on the spot; a smoke run;
- `folders`: clean speech, and noise that is mixed in when it is asked for;
- `pairs`: folders of noisy and of clean recordings with the same names, as VoiceBank has them;
- `hub`: such pairs in a dataset of the Hugging Face hub.

Files that cannot be read are skipped and counted by name; it is an error if none is left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import Self

from headwise.tasks.audio import (
    AudioError,
    AudioInfo,
    Waveform,
    decode_audio,
)
from headwise.tasks.recordings import (
    Recording,
    Skipped,
    divide,
    hold,
    of_wave,
    read_folder,
)
from headwise.tasks.settings import Name
from headwise.tasks.spectrum import Spectrum
from headwise.tasks.utterances import MixedUtterances, Mixing, PairedUtterances, Utterances
from headwise.tasks.voices import speak

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
Noise = Literal["white", "pink", "brown", "babble", "recordings"]
Fraction = Annotated[float, Field(gt=0, lt=0.5)]


# --- settings ---------------------------------------------------------------------------------


class PairedFolders(BaseModel):
    """Two folders with recordings of the same utterances, noisy and clean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    noisy: Path = Field(description="folder of WAV or FLAC files: speech with noise")
    clean: Path = Field(description="folder of the same utterances without noise")
    pattern: str | None = Field(
        None,
        description="a regular expression whose first group is the same in the names of a noisy "
        "and a clean file that belong together; default: both have the same name",
    )

    @field_validator("pattern")
    @classmethod
    def _check(cls, pattern: str | None) -> str | None:
        return _pattern(pattern)


class _Speech(BaseModel):
    """What all data of speech have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rate: int = Field(
        16_000,
        ge=4_000,
        description="samples per second; recordings at another rate are resampled (PESQ: 16000 "
        "wide band, 8000 narrow band)",
    )
    seconds: float = Field(
        4.0,
        ge=0.25,
        description="length of an item: longer recordings are cut in training, shorter ones of "
        "one speaker joined where noise is mixed in",
    )
    validation_fraction: Fraction = Field(
        0.1,
        description="share of the training data that becomes the validation part, where none "
        "is given",
    )
    test_fraction: Fraction = Field(
        0.1,
        description="share of the training data that becomes the test part, where none is given",
    )
    divide_by: Literal["file", "speaker"] = Field(
        "file", description="what parts that are divided off do not share"
    )
    transfer: dict[Name, PairedFolders] = Field(
        default_factory=dict,
        description="name to folders of further test sets, scored beside the test part",
    )
    seed: int = Field(1, ge=0, description="of pieces, noise and levels that are drawn")

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, rate: int) -> int:
        return Spectrum(rate).rate


class _Mixed(_Speech):
    """Clean speech into which noise is mixed when it is asked for."""

    noise: list[Noise] = Field(
        ["white", "pink", "brown", "babble"],
        min_length=1,
        description="kinds, drawn from evenly: white, pink and brown noise, babble of other "
        "speakers of the same part, recordings of noise_folder",
    )
    snr: tuple[float, float] = Field(
        (0.0, 40.0), description="range of signal-to-noise ratios in decibels (DNS: 0 to 40)"
    )
    level: tuple[float, float] = Field(
        (-35.0, -15.0),
        description="range of levels of the mixture, in decibels of full scale (root mean square)",
    )
    reverberation: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of utterances spoken in a generated room that decays within 0.2 to "
        "0.8 s; the clean speech stays dry",
    )

    @field_validator("snr", "level")
    @classmethod
    def _check_range(cls, ends: tuple[float, float]) -> tuple[float, float]:
        if ends[0] > ends[1]:
            raise ValueError(f"is a range from {ends[0]} to {ends[1]}: put the smaller one first")
        return ends


class GeneratedSpeech(_Mixed):
    """Signals that move as voices do, made up on the spot: a smoke run, no speech."""

    corpus: Literal["generated"] = Field("generated", description="voices that are none")
    speakers: int = Field(10, ge=3, description="how many voices")
    utterances: int = Field(40, ge=1, description="of each voice")

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if "recordings" in self.noise:
            raise ValueError("noise names recordings, of which generated speech has none")
        return self


class FolderSpeech(_Mixed):
    """A folder of clean speech, and noise."""

    corpus: Literal["folders"] = Field("folders", description="clean speech, mixed with noise")
    clean: Path = Field(description="folder of WAV or FLAC files with clean speech")
    noise_folder: Path | None = Field(
        None, description="folder of WAV or FLAC files with noise, for the kind recordings"
    )
    speaker_pattern: str | None = Field(
        None,
        description="a regular expression whose first group is the speaker in a file's path; "
        "default: the folder that the file is in",
    )
    validation: PairedFolders | None = Field(
        None, description="pairs to validate on; without them, a share of the clean speech"
    )
    test: PairedFolders | None = Field(
        None, description="pairs to test on; without them, a share of the clean speech"
    )

    @field_validator("speaker_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        return _pattern(pattern)

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if ("recordings" in self.noise) != (self.noise_folder is not None):
            raise ValueError(
                f"noise is {self.noise} and noise_folder is {self.noise_folder}: name the kind "
                f"recordings and a folder of them, or neither"
            )
        return self


class PairedSpeech(_Speech):
    """Folders of noisy and of clean recordings, such as VoiceBank's."""

    corpus: Literal["pairs"] = Field("pairs", description="noisy recordings beside clean ones")
    train: PairedFolders = Field(description="pairs to train on")
    validation: PairedFolders | None = Field(
        None, description="pairs to validate on; without them, a share of those to train on"
    )
    test: PairedFolders | None = Field(
        None, description="pairs to test on; without them, a share of those to train on"
    )
    speaker_pattern: str | None = Field(
        None,
        description="a regular expression whose first group is the speaker in a file's path; "
        "default: the folder that the file is in",
    )

    @field_validator("speaker_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        return _pattern(pattern)


class HubSpeech(_Speech):
    """Noisy and clean recordings in a dataset of the Hugging Face hub, or in a local folder."""

    corpus: Literal["hub"] = Field("hub", description="a Hugging Face dataset of pairs")
    name: str = Field(
        description="name on the hub, or a local folder with train.parquet, test.parquet, ..."
    )
    config: str | None = Field(None, description="configuration (subset) of the dataset")
    revision: str | None = Field(
        None, description="branch, tag or commit of the dataset, to pin its content"
    )
    noisy_field: str = Field("noisy", description="column of the noisy sound")
    clean_field: str = Field("clean", description="column of the clean sound")
    name_field: str | None = Field(
        "id", description="column of the utterances' names; null calls them by their number"
    )
    speaker_pattern: str | None = Field(
        None,
        description="a regular expression whose first group is the speaker in an utterance's "
        "name; default: they are all of one",
    )
    train_split: str = Field("train", description="split to train on")
    validation_split: str | None = Field(
        None, description="split to validate on; null takes a share of the training split"
    )
    test_split: str | None = Field(
        "test", description="split to test on; null takes a share of the training split"
    )

    @field_validator("speaker_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        return _pattern(pattern)


SpeechSettings = Annotated[
    GeneratedSpeech | FolderSpeech | PairedSpeech | HubSpeech, Field(discriminator="corpus")
]


def _pattern(pattern: str | None) -> str | None:
    if pattern is None:
        return None
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if groups < 1:
        raise ValueError(f"{pattern!r} has no group: put what is to be found in (parentheses)")
    return pattern


# --- the corpus -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A noisy and a clean recording of one utterance."""

    noisy: Recording
    clean: Recording


@dataclass
class SpeechCorpus:
    """Utterances in three parts, none of them empty.

    Attributes:
        train, validation, test: the parts.
        transfer: further test sets, by name.
        notes: what they are, label to words.
    """

    train: Utterances
    validation: Utterances
    test: Utterances
    transfer: dict[str, Utterances]
    notes: dict[str, str]


def load_speech(settings: Any, floor: float) -> SpeechCorpus:
    """Read what the settings name, and divide off the parts that are not given.

    Args:
        settings: `GeneratedSpeech`, `FolderSpeech`, `PairedSpeech` or `HubSpeech`.
        floor: added to magnitudes before the logarithm.

    Raises:
        AudioError: data that cannot be read, or too little to fill the three parts; the message
            names the folder or file and says how to mend it.
    """
    skipped = Skipped()
    if isinstance(settings, _Mixed):
        parts, origin = _load_mixed(settings, floor, skipped)
    else:
        parts, origin = _load_pairs(settings, floor, skipped)
    transfer: dict[str, Utterances] = {
        name: _paired(settings, floor, read_pairs(folders, settings.rate, skipped))
        for name, folders in settings.transfer.items()
    }
    notes = {"corpus": origin}
    notes |= {part: _summary(parts[part], settings.seconds) for part in PARTS}
    notes |= {name: _summary(utterances, settings.seconds) for name, utterances in transfer.items()}
    if skipped.reasons:
        notes["skipped"] = str(skipped)
    return SpeechCorpus(**parts, transfer=transfer, notes=notes)


def read_pairs(
    folders: PairedFolders, rate: int, skipped: Skipped, speaker_pattern: str | None = None
) -> list[Pair]:
    """The pairs of two folders, in the order of the noisy files' names.

    Raises:
        AudioError: a folder that cannot be read, or no pair in the two of them.
    """
    noisy = read_folder(folders.noisy, rate, skipped, speaker_pattern)
    clean = read_folder(folders.clean, rate, skipped)
    partners = {_common_name(recording.name, folders.pattern): recording for recording in clean}
    pairs = []
    for recording in noisy:
        partner = partners.pop(_common_name(recording.name, folders.pattern), None)
        if partner is None:
            skipped.add(f"{folders.noisy / recording.name} has no partner in {folders.clean}")
        elif abs(partner.samples - recording.samples) > rate // 10:
            skipped.add(f"{folders.noisy / recording.name} is not as long as its clean partner")
        else:
            pairs.append(Pair(recording, partner))
    for recording in partners.values():
        skipped.add(f"{folders.clean / recording.name} has no partner in {folders.noisy}")
    if not pairs:
        raise AudioError(
            f"{folders.noisy} and {folders.clean} have no files that belong together, such as "
            f"{noisy[0].name} and {clean[0].name}: give them the same names, or set pattern to a "
            f"regular expression whose first group is the same in both names"
        )
    return pairs


def _load_mixed(
    settings: GeneratedSpeech | FolderSpeech | Any, floor: float, skipped: Skipped
) -> tuple[dict[Part, Utterances], str]:
    """Parts whose utterances are mixed, but for those that are given as pairs."""
    given: dict[Part, list[Pair]] = {}
    noise: dict[str, list[Recording]] = {part: [] for part in PARTS}
    if isinstance(settings, GeneratedSpeech):
        clean = _generate(settings)
        origin = (
            f"{settings.speakers} generated voices with {settings.utterances} utterances each: a "
            f"smoke run, no speech"
        )
    else:
        clean = read_folder(settings.clean, settings.rate, skipped, settings.speaker_pattern)
        origin = f"clean speech of {settings.clean.name}"
        for part in ("validation", "test"):
            folders = getattr(settings, part)
            if folders is not None:
                given[part] = read_pairs(folders, settings.rate, skipped)
        if settings.noise_folder is not None:
            found = read_folder(settings.noise_folder, settings.rate, skipped)
            origin += f", noise of {settings.noise_folder.name}"
            noise = _divide(found, settings, given, "file", "files of noise")
    if "babble" in settings.noise and len({recording.speaker for recording in clean}) < 2:
        raise AudioError(
            "noise names babble, which is made of other speakers, but all speech is of one; set "
            "speaker_pattern so that it finds them, put each speaker's files into a folder, or "
            "leave babble out of noise"
        )
    divided = _divide(clean, settings, given, settings.divide_by, f"{settings.divide_by}s")
    mixing = Mixing(
        settings.noise, settings.snr, settings.level, settings.reverberation, settings.seed
    )
    spectrum = Spectrum(settings.rate)
    parts: dict[Part, Utterances] = {}
    for part in PARTS:
        if part in given:
            parts[part] = _paired(settings, floor, given[part])
            continue
        voices = divided[part]
        if len({recording.speaker for recording in voices}) < 2:
            voices = divided["train"]  # a part of one speaker: the others are those trained on
        if "babble" in settings.noise and len({r.speaker for r in [*voices, *divided[part]]}) < 2:
            raise AudioError(
                "noise names babble, but there is one speaker to train on; set divide_by: file, "
                "or leave babble out of noise"
            )
        parts[part] = MixedUtterances(
            divided[part],
            noise[part],
            voices,
            mixing,
            training=part == "train",
            spectrum=spectrum,
            floor=floor,
            samples=spectrum.num_samples(settings.seconds),
        )
    return parts, origin


def _load_pairs(
    settings: PairedSpeech | HubSpeech, floor: float, skipped: Skipped
) -> tuple[dict[Part, Utterances], str]:
    given: dict[Part, list[Pair]] = {}
    for part in PARTS:
        if isinstance(settings, PairedSpeech):
            folders = getattr(settings, part)
            if folders is not None:
                pattern = settings.speaker_pattern if part == "train" else None
                given[part] = read_pairs(folders, settings.rate, skipped, pattern)
        else:
            split = getattr(settings, f"{part}_split")
            if split is not None:
                given[part] = _read_hub(settings, split, skipped)
    origin = settings.name if isinstance(settings, HubSpeech) else settings.train.noisy.name
    train = given.pop("train")
    by_name = {pair.noisy.name: pair for pair in train}
    divided = _divide(
        [pair.noisy for pair in train], settings, given, settings.divide_by, "utterances"
    )
    parts: dict[Part, Utterances] = {}
    for part in PARTS:
        pairs = given.get(part) or [by_name[recording.name] for recording in divided[part]]
        parts[part] = _paired(settings, floor, pairs, training=part == "train")
    return parts, f"pairs of {origin}"


def _divide(
    recordings: Sequence[Recording],
    settings: _Speech,
    given: dict[Part, list[Pair]],
    by: str,
    what: str,
) -> dict[str, list[Recording]]:
    """Recordings in the parts that are not given."""

    def key(recording: Recording) -> str:
        return recording.speaker if by == "speaker" else recording.name

    keys = divide(
        map(key, recordings),
        0.0 if "validation" in given else settings.validation_fraction,
        0.0 if "test" in given else settings.test_fraction,
        what,
    )
    chosen = {part: set(of_part) for part, of_part in keys.items()}
    return {part: [r for r in recordings if key(r) in chosen[part]] for part in PARTS}


def _paired(
    settings: _Speech, floor: float, pairs: Sequence[Pair], *, training: bool = False
) -> PairedUtterances:
    spectrum = Spectrum(settings.rate)
    return PairedUtterances(
        [pair.clean for pair in pairs],
        [pair.noisy for pair in pairs],
        training=training,
        seed=settings.seed,
        spectrum=spectrum,
        floor=floor,
        samples=spectrum.num_samples(settings.seconds),
    )


def _generate(settings: GeneratedSpeech) -> list[Recording]:
    return [
        of_wave(
            f"voice-{speaker}/{utterance}",
            f"voice-{speaker}",
            speak(speaker, utterance, settings.seconds, settings.rate),
        )
        for speaker in range(settings.speakers)
        for utterance in range(settings.utterances)
    ]


def _read_hub(settings: HubSpeech, split: str, skipped: Skipped) -> list[Pair]:
    """The pairs of one split; the sound is decoded here, not by datasets, which needs ffmpeg."""
    from datasets import Audio, load_dataset

    where = f"dataset {settings.name}, split {split}"
    try:
        data = load_dataset(settings.name, settings.config, split=split, revision=settings.revision)
    except Exception as error:  # what it raises depends on the format and on the network
        reason = str(error).strip().split("\n")[0]
        raise AudioError(
            f"{where} cannot be read: {reason}. Check name, config and the splits"
        ) from error
    columns = [settings.noisy_field, settings.clean_field]
    for column in [*columns, *filter(None, [settings.name_field])]:
        if column not in data.column_names:
            raise AudioError(
                f"{where}: there is no column {column!r}; there are "
                f"{', '.join(data.column_names)}. Set noisy_field, clean_field and name_field to "
                f"three of these, or name_field to null"
            )
    for column in columns:
        data = data.cast_column(column, Audio(decode=False))
    noisy: list[Recording] = []
    clean: list[Recording] = []
    for row in range(len(data)):
        name = str(row if settings.name_field is None else data[row][settings.name_field])
        speaker = ""
        if settings.speaker_pattern is not None:
            match = re.search(settings.speaker_pattern, name)
            if match is None:
                raise AudioError(
                    f"{where}: speaker_pattern {settings.speaker_pattern!r} finds no speaker in "
                    f"the name {name!r}; its first group has to match in each"
                )
            speaker = match.group(1)
        try:
            for column, found in zip(columns, (noisy, clean), strict=True):
                read = partial(_read_row, data, row, column, settings.rate)
                found.append(Recording(name, speaker, len(read()), read))
        except AudioError as error:
            skipped.add(error)
            del noisy[len(clean) :]
    if not noisy:
        raise AudioError(f"{where} has no sound that can be used: {skipped}")
    # Both or none, so that they stay beside each other.
    held = hold([*noisy, *clean], skipped)
    noisy, clean = held[: len(held) // 2], held[len(held) // 2 :]
    return [Pair(*pair) for pair in zip(noisy, clean, strict=True)]


def _read_row(
    data: Any, row: int, column: str, rate: int, start: int = 0, samples: int | None = None
) -> Waveform:
    sound = data[row][column]
    name = sound.get("path") or f"row {row}, column {column}"
    encoded = sound["bytes"] if sound.get("bytes") else Path(sound["path"]).read_bytes()
    wave = decode_audio(encoded, rate, name)
    return wave[start : None if samples is None else start + samples]


def _common_name(name: str, pattern: str | None) -> str:
    if pattern is None:
        return name.rpartition(".")[0]
    match = re.search(pattern, name)
    return name if match is None else match.group(1)


def _summary(utterances: Utterances, seconds: float) -> str:
    clean = getattr(utterances, "clean", [])
    total = sum(recording.samples for recording in clean) / utterances.spectrum.rate
    speakers = len({recording.speaker for recording in clean})
    of = f" of {speakers} speakers" if speakers > 1 else ""
    return (
        f"{len(utterances):,} items of at most {seconds:g} s from {len(clean):,} recordings{of}, "
        f"{total / 60:,.1f} minutes"
    )


__all__ = [
    "PARTS",
    "AudioInfo",
    "FolderSpeech",
    "GeneratedSpeech",
    "HubSpeech",
    "PairedFolders",
    "PairedSpeech",
    "SpeechCorpus",
    "SpeechSettings",
    "load_speech",
    "read_pairs",
]
