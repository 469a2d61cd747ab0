"""Settings of the speech data: which speech a recipe reads, and which noise is mixed in.

- `generated`: generated voices, which are no speech, for a smoke run;
- `folders`: clean speech in folders; noise is mixed in when an item is read;
- `pairs`: folders of noisy and of clean recordings with the same names, such as VoiceBank's;
- `hub`: pairs of noisy and clean recordings in a dataset of the Hugging Face hub.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from headwise.data.division import Part
from headwise.data.settings import (
    TESTS,
    DividedSettings,
    HubSettings,
    HubTest,
    ValidationSplit,
)
from headwise.data.sound.spectrum import Spectrum
from headwise.recipes.settings import Name
from headwise.settings import LARGEST_SEED, FrozenSettings, Settings

Noise = Literal["white", "pink", "brown", "babble", "recordings"]


def _with_group(pattern: str) -> str:
    try:
        if re.compile(pattern).groups:
            return pattern
        problem = "put the part of the name to be found in (parentheses)"
    except re.error as error:
        problem = str(error)
    raise ValueError(
        f"the pattern is {pattern!r}, expected a regular expression with a group: {problem}"
    )


Pattern = Annotated[str, AfterValidator(_with_group)]  # a regular expression with a group
Decibels = Annotated[float, Field(ge=-200, le=200)]

SpeakerPattern = Annotated[
    Pattern | None,
    Field(
        description="A regular expression whose first group is the speaker in the path of a file "
        "or the name of an utterance. By default the folder of a file stands for its speaker, and "
        "all utterances of a dataset have the same one."
    ),
]


class PairedFolders(FrozenSettings):
    """Two folders with recordings of the same utterances, with and without noise."""

    noisy: Path = Field(description="The folder of WAV or FLAC files of speech with noise.")
    clean: Path
    """The folder of WAV or FLAC files of the same utterances without noise."""
    pattern: Pattern | None = None
    """A regular expression whose first group is equal in the names of a noisy file and of the clean
    file that belongs to it. By default both have the same name."""


HeldOut = Annotated[
    PairedFolders | None,
    Field(
        description="Pairs of recordings for this part. By default a share of the training data "
        "is taken."
    ),
]


class PairedFoldersTest(PairedFolders):
    """A further test set in two folders."""

    corpus: Literal["pairs"] = "pairs"
    """Folders of noisy and of clean recordings."""


class Columns(Settings):
    """The columns of a Hugging Face dataset that hold the recordings."""

    noisy_field: str = Field("noisy", description="The column that holds the noisy recordings.")
    clean_field: str = Field("clean", description="The column that holds the clean recordings.")
    name_field: str | None = "id"
    """The column that holds the names of the utterances. With null, their numbers are their
    names."""


class HubSpeechTest(Columns, HubTest):
    """A further test set that is a split of a Hugging Face dataset."""


SpeechTest = PairedFoldersTest | HubSpeechTest


class SpeechData(DividedSettings):
    """Settings that all speech data have in common."""

    rate: int = Field(16_000, ge=4_000, le=192_000)
    """Sampling rate in samples per second; recordings with another rate are resampled. PESQ is wide
    band at 16000 and narrow band at 8000."""
    seconds: float = Field(4.0, ge=0.25, le=3600)
    """Length of an item in seconds. Training takes an excerpt of longer recordings; where noise is
    mixed in, shorter recordings of one speaker are joined. The validation loss is that of the
    beginning of each utterance. Scores are those of whole utterances, in pieces of at most 30 s."""
    divide_by: Literal["file", "speaker"] = "file"
    """Whether parts that are split off the training data differ only in their files (`file`) or
    also in their speakers. If a part has a single speaker, its babble is made of training
    voices."""
    tests: dict[Name, Annotated[SpeechTest, Field(discriminator="corpus")]] = TESTS
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the excerpts, the noise and the levels."""

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, rate: int) -> int:
        return Spectrum(rate).rate


class MixedSettings(SpeechData):
    """Clean speech, and the noise that is mixed in when an item is read."""

    noise: list[Noise] = Field(["white", "pink", "brown", "babble"], min_length=1)
    """Kinds of noise, all equally likely: white, pink and brown noise, babble of other speakers of
    the same part (see divide_by), and recordings of noise_folder."""
    test_noise: list[Noise] | None = Field(None, min_length=1)
    """Kinds of noise of the test part, such as some that training does not have. By default those
    of noise."""
    snr: tuple[Decibels, Decibels] = (0.0, 40.0)
    """Range of the signal-to-noise ratio in decibels (DNS: 0 to 40)."""
    level: tuple[Decibels, Decibels] = (-35.0, -15.0)
    """Range of the root mean square of the mixture, in decibels of full scale."""
    reverberation: float = Field(0.0, ge=0, le=1)
    """Probability that reverberation of a generated room is added to the noisy speech of an item.
    Sound in the room decays within 0.2 to 0.8 s. The clean speech has no reverberation."""

    def noise_of(self, part: Part) -> list[Noise]:
        """The kinds of noise of a part."""
        return self.test_noise if part == "test" and self.test_noise else self.noise

    @property
    def all_noise(self) -> list[Noise]:
        """The kinds of noise of all parts."""
        return [*self.noise, *(self.test_noise or [])]

    @field_validator("snr", "level")
    @classmethod
    def _check_range(cls, ends: tuple[float, float]) -> tuple[float, float]:
        if ends[0] > ends[1]:
            raise ValueError(
                f"the range is {list(ends)}, expected its lower end first: exchange the two"
            )
        return ends


class GeneratedSpeech(MixedSettings):
    """Generated signals that move as voices do; they are no speech and serve a smoke run."""

    corpus: Literal["generated"] = "generated"
    """Generated voices, which are no speech."""
    speakers: int = Field(10, ge=3, le=1000, description="How many voices are generated.")
    utterances: int = Field(40, ge=1, le=1000, description="How many utterances each voice has.")

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if "recordings" in self.all_noise:
            raise ValueError(
                f"noise is {self.all_noise}, expected no recordings: generated speech has none; "
                "leave them out, or set corpus: folders"
            )
        return self


class FolderSpeech(MixedSettings):
    """A folder of clean speech, and noise that is mixed in."""

    corpus: Literal["folders"] = "folders"
    """Folders of clean speech, into which noise is mixed."""
    clean: Path = Field(description="The folder of WAV or FLAC files of clean speech.")
    noise_folder: Path | None = None
    """The folder of WAV or FLAC files of noise, for the kind recordings."""
    speaker_pattern: SpeakerPattern = None
    validation: HeldOut = None
    test: HeldOut = None

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if ("recordings" in self.all_noise) != (self.noise_folder is not None):
            raise ValueError(
                f"noise is {self.all_noise} and noise_folder is {self.noise_folder}, expected both "
                "or neither: name the kind recordings and their folder, or leave out both"
            )
        return self


class PairedSpeech(SpeechData):
    """Folders of noisy and of clean recordings, such as VoiceBank's."""

    corpus: Literal["pairs"] = "pairs"
    """Folders of noisy and of clean recordings."""
    train: PairedFolders = Field(description="Pairs of recordings for training.")
    validation: HeldOut = None
    test: HeldOut = None
    speaker_pattern: SpeakerPattern = None


class HubSpeech(Columns, SpeechData, HubSettings):
    """Noisy and clean recordings in a dataset of the Hugging Face hub, or in a local folder."""

    corpus: Literal["hub"] = "hub"
    """A dataset of pairs of recordings on the Hugging Face hub."""
    speaker_pattern: SpeakerPattern = None
    validation_split: ValidationSplit = None


SpeechSettings = Annotated[
    GeneratedSpeech | FolderSpeech | PairedSpeech | HubSpeech, Field(discriminator="corpus")
]
