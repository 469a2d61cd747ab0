"""Settings of labelled text: which examples are read, or made for probing."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from headwise.data.running.settings import TextSettings
from headwise.data.settings import (
    MAX_BYTES,
    TESTS,
    DividedSettings,
    HubSettings,
    HubTest,
    SampledSettings,
    StreamedSettings,
    part_of_files,
)
from headwise.recipes.settings import Name
from headwise.settings import LARGEST_SEED, FrozenSettings

Problem = Literal["classification", "regression"]
GlueTask = Literal["MNLI", "QNLI", "SST-2", "STS-B"]
# Packages that are installed with headwise, written in Python and well documented.
PACKAGES = ("huggingface_hub", "matplotlib", "networkx", "numpy", "pandas")


def _different(classes: list[str]) -> list[str]:
    if len(set(classes)) < len(classes):
        raise ValueError(f"classes is {classes}, expected different names; leave out repeated ones")
    return classes


_Names = list[Annotated[str, Field(coerce_numbers_to_str=True)]]  # as [0, 1] in YAML
Classes = Annotated[_Names, AfterValidator(_different)] | None
_CLASSES = Field(
    None,
    description="Names of the classes, in the order of the outputs of the model. Default: the "
    "labels of the training data, sorted. Those of a stream have to be given.",
)


# --- classification and regression ------------------------------------------------------------


class ExampleLimits(SampledSettings):
    """Settings that all examples have."""

    max_bytes: int | None = MAX_BYTES
    max_length: int = Field(512, ge=8, le=10_000_000)
    """Largest number of tokens of an example, special tokens included. Longer examples are cut at
    the end, of a pair the longer text first. A batch has training.batch_tokens / max_length
    examples."""


class LabelledColumns(FrozenSettings):
    """The columns of examples."""

    text_field: str = Field("sentence", description="Column of the text.")
    pair_field: str | None = None
    """Column of the second text, for pairs of texts."""
    label_field: str = Field("label", description="Column of the label.")


class LabelledFileTest(LabelledColumns):
    """A further test set in a file of tab-separated values."""

    corpus: Literal["files"] = Field("files", description="Selects a file of tab-separated values.")
    file: Path = Field(description="File of the examples in UTF-8; gzip if its name ends in .gz.")


class LabelledHubTest(LabelledColumns, HubTest):
    """A further test set that is a split of a Hugging Face dataset."""


class ExampleSettings(ExampleLimits, DividedSettings):
    """Settings of examples of which parts may be divided off."""

    key_of_tests = "file"

    tests: dict[
        Name, Annotated[LabelledFileTest | LabelledHubTest, Field(discriminator="corpus")]
    ] = TESTS


class Docstrings(ExampleSettings):
    """The first paragraphs of docstrings, labelled with the Python package in which they are.

    They are small, real and offline: they are read from the source files of packages that are
    installed with headwise. Each package gives as many examples as the one with the fewest.
    """

    corpus: Literal["docstrings"] = Field("docstrings", description="Selects the built-in corpus.")
    packages: list[str] = Field(list(PACKAGES), min_length=2)
    """Names of the packages, which are the classes."""


class Glue(ExampleSettings):
    """A task of GLUE, from the Hugging Face hub or from the files of GLUE's own archive.

    GLUE's test parts have no labels. As in the papers, its development part is the test part here;
    the validation part is a share of the training part.
    """

    corpus: Literal["glue"] = Field("glue", description="Selects a task of GLUE.")
    task: GlueTask = Field(description="The task of GLUE that is learned.")
    name: str = "nyu-mll/glue"
    """Name of the dataset on the Hugging Face hub, or its folder."""
    revision: str | None = None
    """Tag or commit of the dataset, which pins its content."""
    folder: Path | None = None
    """Folder of the task with GLUE's train.tsv and dev.tsv; nothing is read from the hub then."""


class OwnExamples(LabelledColumns, StreamedSettings, ExampleSettings):
    """Settings of examples that are not built in."""

    problem: Problem = "classification"
    """What the labels are. classification: names of classes; regression: numbers."""
    classes: Classes = _CLASSES

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        if self.problem == "regression" and self.classes is not None:
            raise ValueError(
                f"classes is {self.classes} and problem is regression, expected one of them: "
                f"numbers have no classes; leave classes out, or set problem to classification"
            )
        if self.streaming and self.problem == "classification" and self.classes is None:
            raise ValueError(
                "classes is not given and streaming is true, expected the names of all classes, as "
                "in [negative, positive]: the labels of a stream are not known before its end; "
                "give them, or set problem to regression"
            )
        return self


class LabelledFiles(OwnExamples):
    """Files of tab-separated values without quoting, whose first line names the columns."""

    corpus: Literal["files"] = Field("files", description="Selects files of tab-separated values.")
    train: Path
    """File of the training examples in UTF-8; gzip if its name ends in .gz."""
    validation: Path | None = part_of_files("validation", "File", "examples")
    test: Path | None = part_of_files("test", "File", "examples")


class LabelledHub(OwnExamples, HubSettings):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""


LabelledSettings = Annotated[
    Docstrings | Glue | LabelledFiles | LabelledHub, Field(discriminator="corpus")
]


# --- probing ----------------------------------------------------------------------------------


class SentEvalFile(ExampleLimits):
    """A file of SentEval's probing tasks: lines of partition, label and sentence, divided by tabs.

    The partition is tr, va or te. A line may have further fields before its sentence.
    """

    corpus: Literal["senteval"] = Field("senteval", description="Selects a file of SentEval.")
    file: Path
    """The file, such as bigram_shift.txt; gzip if its name ends in .gz."""
    classes: Classes = _CLASSES


class DocstringTexts(FrozenSettings):
    """Ten thousand first paragraphs of docstrings of installed packages: real, offline."""

    corpus: Literal["docstrings"] = Field("docstrings", description="Selects the built-in text.")
    packages: list[str] = Field(list(PACKAGES), min_length=1, description="Names of the packages.")


# Smallest numbers of words of the six classes of SeLen, in its paper.
PAPER_BINS = (5, 9, 13, 17, 21, 26)


class GeneratedProbe(ExampleLimits):
    """A probing task that is made from any text; its labels come from the text itself.

    The sentences of all parts of the text are put together and divided anew, so that all classes
    have the same size in every part.
    """

    corpus: Literal["generated"] = "generated"
    """Selects a task made from a text."""
    probe: Literal["SeLen", "WC", "BShift"] = "SeLen"
    """The property. SeLen: how many words a sentence has; WC: which of num_words words occurs in
    it; BShift: whether two neighbouring words are swapped."""
    texts: Annotated[
        DocstringTexts | TextSettings,
        Field(discriminator="corpus"),
    ] = Field(default_factory=lambda: DocstringTexts())
    """Text from which the sentences come."""
    min_words: int = Field(5, ge=1, le=10_000)
    """Number of words of the shortest sentence that is used."""
    max_words: int = Field(28, ge=1, le=10_000)
    """Number of words of the longest sentence that is used."""
    num_bins: int = Field(6, ge=2, le=1000)
    """For SeLen: number of classes, whose borders make the smallest class as large as possible."""
    bins: list[int] | None = Field(
        None,
        min_length=2,
        description="For SeLen: smallest number of words of each class, in place of num_bins; "
        f"those of SentEval are {list(PAPER_BINS)}.",
    )
    num_words: int = Field(1000, ge=2, le=1_000_000)
    """For WC: number of words, which are the classes; little text needs fewer."""
    validation_fraction: float = Field(0.1, gt=0, lt=0.5)
    """Share of the sentences that becomes the validation part."""
    test_fraction: float = Field(0.1, gt=0, lt=0.5)
    """Share of the sentences that becomes the test part."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the choice of sentences, of their parts, and of the swapped words."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not isinstance(self.texts, DocstringTexts) and self.texts.tests:
            raise ValueError(
                "texts.tests is given, expected none: examples are made from the text of all "
                "parts; leave it out"
            )
        if getattr(self.texts, "streaming", False):
            raise ValueError(
                "texts.streaming is true, expected false: examples are made from the whole text; "
                "leave it out"
            )
        if self.max_words < self.min_words:
            raise ValueError(
                f"max_words is {self.max_words}, expected at least min_words, {self.min_words}"
            )
        if self.bins is not None and sorted(set(self.bins)) != self.bins:
            raise ValueError(f"bins is {self.bins}, expected increasing numbers, as in [5, 9, 13]")
        return self


ProbingSettings = Annotated[SentEvalFile | GeneratedProbe, Field(discriminator="corpus")]
