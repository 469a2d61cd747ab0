"""Settings of labelled text: which examples are read."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headwise.tasks.parts import DividedSettings, HubSettings

Problem = Literal["classification", "regression"]
GlueTask = Literal["MNLI", "QNLI", "SST-2", "STS-B"]
# Packages that are installed with headwise, written in Python and well documented.
PACKAGES = ("huggingface_hub", "matplotlib", "networkx", "numpy", "pandas")

_TEXT_FIELD = Field("sentence", description="Column of the text.")
_PAIR_FIELD = Field(None, description="Column of the second text, for pairs of texts.")
_LABEL_FIELD = Field("label", description="Column of the label.")
_PROBLEM: Any = Field(
    "classification",
    description="classification: labels are names of classes; regression: labels are numbers.",
)
CLASSES = Field(
    None,
    description="Names of the classes, in the order of the outputs of the model. Default: the "
    "labels of the training data, sorted.",
)


class ExampleLimits(BaseModel):
    """Settings that all examples have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_length: int = Field(
        512,
        ge=8,
        description="Largest number of tokens of an example, special tokens included. Longer "
        "examples are cut at the end, of a pair the longer text first. A batch has "
        "training.batch_tokens / max_length examples.",
    )


class ExampleSettings(ExampleLimits, DividedSettings):
    """Settings of examples of which parts may be divided off."""


class Docstrings(ExampleSettings):
    """The first paragraphs of docstrings, labelled with the Python package in which they are.

    They are small, real and offline: they are read from the source files of packages that are
    installed with headwise. Each package gives as many examples as the one with the fewest.
    """

    corpus: Literal["docstrings"] = Field("docstrings", description="Selects the built-in corpus.")
    packages: list[str] = Field(
        default_factory=lambda: list(PACKAGES),
        min_length=2,
        description="Names of the packages, which are the classes.",
    )


class Glue(ExampleSettings):
    """A task of GLUE, from the Hugging Face hub or from the files of GLUE's own archive.

    GLUE's test parts have no labels. As in the papers, its development part is the test part here;
    the validation part is a share of the training part.
    """

    corpus: Literal["glue"] = Field("glue", description="Selects a task of GLUE.")
    task: GlueTask = Field(description="Task of GLUE.")
    name: str = Field(
        "nyu-mll/glue", description="Name of the dataset on the Hugging Face hub, or its folder."
    )
    revision: str | None = Field(
        None, description="Tag or commit of the dataset, which pins its content."
    )
    folder: Path | None = Field(
        None,
        description="Folder of the task with GLUE's train.tsv and dev.tsv; nothing is read from "
        "the hub then.",
    )


class LabelledFiles(ExampleSettings):
    """Files of tab-separated values without quoting, whose first line names the columns."""

    corpus: Literal["files"] = Field("files", description="Selects files of tab-separated values.")
    train: Path = Field(
        description="File of the training examples in UTF-8; gzip if its name ends in .gz."
    )
    validation: Path | None = Field(
        None,
        description="File of the validation examples. Without it a share of the training examples "
        "is used.",
    )
    test: Path | None = Field(
        None,
        description="File of the test examples. Without it a share of the training examples is "
        "used.",
    )
    text_field: str = _TEXT_FIELD
    pair_field: str | None = _PAIR_FIELD
    label_field: str = _LABEL_FIELD
    problem: Problem = _PROBLEM
    classes: list[str] | None = CLASSES


class LabelledHub(ExampleSettings, HubSettings):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    corpus: Literal["hub"] = Field("hub", description="Selects a Hugging Face dataset.")
    text_field: str = _TEXT_FIELD
    pair_field: str | None = _PAIR_FIELD
    label_field: str = _LABEL_FIELD
    problem: Problem = _PROBLEM
    classes: list[str] | None = CLASSES


LabelledSettings = Annotated[
    Docstrings | Glue | LabelledFiles | LabelledHub, Field(discriminator="corpus")
]
