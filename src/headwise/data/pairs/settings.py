"""Settings of parallel text: which pairs are read, and which training pairs are left out."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from headwise.data.settings import (
    MAX_BYTES,
    TESTS,
    DividedSettings,
    HubSettings,
    HubTest,
    PlainFiles,
    StreamedSettings,
    part_of_files,
)
from headwise.recipes.settings import Name
from headwise.settings import FrozenSettings


class FilePair(FrozenSettings):
    """Two text files; line n of one is the translation of line n of the other."""

    source: Path
    """Text file in UTF-8 with one sentence per line; gzip if its name ends in .gz."""
    target: Path
    """Text file with the translations, with the same number of lines."""


class FilePairTest(FilePair, PlainFiles):
    """A further test set in two text files."""


class HubPairTest(HubTest):
    """A further test set that is a split of a Hugging Face dataset."""

    source_field: str = Field(description="Column of the source text.")
    target_field: str = Field(description="Column of the target text.")


class PairSettings(DividedSettings):
    """Settings that all parallel corpora have."""

    max_bytes: int | None = MAX_BYTES
    max_length: int | None = Field(None, ge=1, le=10_000_000)
    """Training pairs with more words than this on either side are left out (IWSLT14: 175). Given
    validation and test parts are never filtered."""
    max_ratio: float | None = Field(None, ge=1, le=1_000_000)
    """A training pair is left out if its longer side has more than this factor times the words of
    its shorter side (IWSLT14: 1.5)."""
    drop_leaks: bool = False
    """Whether training pairs whose source also occurs in the validation or test part are left out.
    Otherwise they are kept and counted, as in published work, and as those of further test sets
    always are."""
    tests: dict[Name, Annotated[FilePairTest | HubPairTest, Field(discriminator="corpus")]] = TESTS


class InterfaceStrings(PairSettings):
    """English interface strings of JupyterLab and their translations: small, real, offline.

    They need the language pack: `pip install "headwise[demo]"`.

    Their division differs from that of all other data: a hash of the English string alone decides
    its part, and the share of a part is a probability. So a string stays in its part in every
    release of the package and for every language, and published figures stay comparable.
    """

    corpus: Literal["interface-strings"] = "interface-strings"
    """Selects the built-in corpus."""
    language: Literal["fr", "de", "zh-CN"] = "fr"
    """Language into which English is translated."""


class OwnPairs(StreamedSettings, PairSettings):
    """Settings of pairs that are not built in."""

    target_language: str | None = None
    """Code of the target language. BLEU needs it for languages that put no spaces between words
    (zh, ja)."""

    @model_validator(mode="after")
    def _check_leaks(self) -> Self:
        if self.streaming and self.drop_leaks:
            raise ValueError(
                "drop_leaks is true and streaming is true, expected one of them: a stream is not "
                "compared with the other parts; leave out drop_leaks"
            )
        return self


class ParallelFiles(OwnPairs, PlainFiles):
    """Plain text files with one sentence per line, optionally compressed with gzip."""

    train: FilePair = Field(description="Files of the training pairs.")
    validation: FilePair | None = part_of_files("validation", "Files", "pairs")
    test: FilePair | None = part_of_files("test", "Files", "pairs")


class ParallelHub(OwnPairs, HubSettings):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    source_field: str
    """Column of the source text; translation.de is the field de of the column translation."""
    target_field: str
    """Column of the target text, written in the same way as source_field."""


ParallelSettings = Annotated[
    InterfaceStrings | ParallelFiles | ParallelHub, Field(discriminator="corpus")
]
