"""Which speech to enhance, and which noise to free it from.

- `generated`: voices that are none, made up on the spot; a smoke run;
- `folders`: clean speech, and noise that is mixed in when it is asked for;
- `pairs`: folders of noisy and of clean recordings with the same names, as VoiceBank has them;
- `hub`: such pairs in a dataset of the Hugging Face hub.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from headwise.recipe.settings import Name
from headwise.tasks.parts import DividedSettings, HubSettings
from headwise.tasks.sound.spectrum import Spectrum

Noise = Literal["white", "pink", "brown", "babble", "recordings"]


def _with_group(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if groups < 1:
        raise ValueError(f"{pattern!r} has no group: put what is to be found in (parentheses)")
    return pattern


Pattern = Annotated[str, AfterValidator(_with_group)]  # a regular expression with a group

_SPEAKER = Field(
    None,
    description="a regular expression whose first group is the speaker in a file's path; default: "
    "the folder that the file is in",
)


class PairedFolders(BaseModel):
    """Two folders with recordings of the same utterances, noisy and clean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    noisy: Path = Field(description="folder of WAV or FLAC files: speech with noise")
    clean: Path = Field(description="folder of the same utterances without noise")
    pattern: Pattern | None = Field(
        None,
        description="a regular expression whose first group is the same in the names of a noisy "
        "and a clean file that belong together; default: both have the same name",
    )


class SpeechData(DividedSettings):
    """What all data of speech have in common."""

    rate: int = Field(
        16_000,
        ge=4_000,
        description="samples per second; recordings at another rate are resampled (PESQ: 16000 "
        "wide band, 8000 narrow band)",
    )
    seconds: float = Field(
        4.0,
        ge=0.25,
        description="length of an item: in training an excerpt of a longer recording; shorter ones "
        "of one speaker are joined where noise is mixed in. The validation loss is of the first "
        "so many seconds of each utterance; scores are of all of it, in pieces of at most 30 s",
    )
    divide_by: Literal["file", "speaker"] = Field(
        "file",
        description="what parts that are divided off do not share; babble in a part of one speaker "
        "is of the voices trained on",
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


class MixedSettings(SpeechData):
    """Clean speech into which noise is mixed when it is asked for."""

    noise: list[Noise] = Field(
        ["white", "pink", "brown", "babble"],
        min_length=1,
        description="kinds, drawn from evenly: white, pink and brown noise, babble of other "
        "speakers of the same part (see divide_by), recordings of noise_folder",
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


class GeneratedSpeech(MixedSettings):
    """Signals that move as voices do, made up on the spot: a smoke run, no speech."""

    corpus: Literal["generated"] = Field("generated", description="voices that are none")
    speakers: int = Field(10, ge=3, description="how many voices")
    utterances: int = Field(40, ge=1, description="of each voice")

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if "recordings" in self.noise:
            raise ValueError("noise names recordings, of which generated speech has none")
        return self


class FolderSpeech(MixedSettings):
    """A folder of clean speech, and noise."""

    corpus: Literal["folders"] = Field("folders", description="clean speech, mixed with noise")
    clean: Path = Field(description="folder of WAV or FLAC files with clean speech")
    noise_folder: Path | None = Field(
        None, description="folder of WAV or FLAC files with noise, for the kind recordings"
    )
    speaker_pattern: Pattern | None = _SPEAKER
    validation: PairedFolders | None = Field(
        None, description="pairs to validate on; without them, a share of the clean speech"
    )
    test: PairedFolders | None = Field(
        None, description="pairs to test on; without them, a share of the clean speech"
    )

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if ("recordings" in self.noise) != (self.noise_folder is not None):
            raise ValueError(
                f"noise is {self.noise} and noise_folder is {self.noise_folder}: name the kind "
                f"recordings and a folder of them, or neither"
            )
        return self


class PairedSpeech(SpeechData):
    """Folders of noisy and of clean recordings, such as VoiceBank's."""

    corpus: Literal["pairs"] = Field("pairs", description="noisy recordings beside clean ones")
    train: PairedFolders = Field(description="pairs to train on")
    validation: PairedFolders | None = Field(
        None, description="pairs to validate on; without them, a share of those to train on"
    )
    test: PairedFolders | None = Field(
        None, description="pairs to test on; without them, a share of those to train on"
    )
    speaker_pattern: Pattern | None = _SPEAKER


class HubSpeech(SpeechData, HubSettings):
    """Noisy and clean recordings in a dataset of the Hugging Face hub, or in a local folder."""

    corpus: Literal["hub"] = Field("hub", description="a Hugging Face dataset of pairs")
    noisy_field: str = Field("noisy", description="column of the noisy sound")
    clean_field: str = Field("clean", description="column of the clean sound")
    name_field: str | None = Field(
        "id", description="column of the utterances' names; null calls them by their number"
    )
    speaker_pattern: Pattern | None = Field(
        None,
        description="a regular expression whose first group is the speaker in an utterance's "
        "name; default: they are all of one",
    )
    validation_split: str | None = Field(
        None, description="split to validate on; null takes a share of the training split"
    )


SpeechSettings = Annotated[
    GeneratedSpeech | FolderSpeech | PairedSpeech | HubSpeech, Field(discriminator="corpus")
]
