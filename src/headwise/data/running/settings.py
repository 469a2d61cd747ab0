"""Settings of running text: which documents are read."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

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

Documents = Literal["blank-line", "title", "line", "none"]


class Divided(FrozenSettings):
    """How text is divided into documents."""

    documents: Documents = "blank-line"
    """Where a new document begins. blank-line: after a blank line; title: at a line such as `=
    Title =` of WikiText; line: at every line (or row); none: a file is one document."""


# A single file may be written without the brackets of a list.
Paths = Annotated[
    list[Path],
    BeforeValidator(lambda given: [given] if isinstance(given, (str, Path)) else given),
    Field(min_length=1),
]


class TextFilesTest(Divided, PlainFiles):
    """A further test set in plain text files."""

    files: Paths = Field(description="File of the text, or a list of files.")


class TextHubTest(Divided, HubTest):
    """A further test set that is a split of a Hugging Face dataset."""

    field: str = Field("text", description="Column of the text.")


class RunningTextSettings(DividedSettings):
    """Settings that built-in running text and text of one's own share."""

    key_of_tests = "files"

    max_bytes: int | None = MAX_BYTES
    tests: dict[Name, Annotated[TextFilesTest | TextHubTest, Field(discriminator="corpus")]] = TESTS


class PydocTopics(RunningTextSettings):
    """The English of Python's reference manual, which comes with Python: small, real, offline."""

    corpus: Literal["pydoc-topics"] = "pydoc-topics"
    """Selects the built-in text."""


class PackageDocs(RunningTextSettings):
    """The docstrings of installed Python packages: larger than Python's manual, and offline."""

    corpus: Literal["package-docs"] = "package-docs"
    """Selects the docstrings of packages."""
    packages: list[str] = Field(["scipy"], min_length=1)
    """Names of installed packages, as they are imported."""


class OwnText(Divided, StreamedSettings, RunningTextSettings):
    """Settings of text that is not built in."""


class TextFiles(OwnText, PlainFiles):
    """Plain text files in UTF-8; gzip if the name ends in .gz."""

    train: Paths = Field(description="File of the training text, or a list of files.")
    validation: Paths | None = part_of_files("validation", "File", "text, or a list of files")
    test: Paths | None = part_of_files("test", "File", "text, or a list of files")


class TextHub(OwnText, HubSettings):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    field: str = "text"
    """Column of the text; a row holds a line or a document. a.b is the field b of the column a."""


TextSettings = Annotated[
    PydocTopics | PackageDocs | TextFiles | TextHub, Field(discriminator="corpus")
]
