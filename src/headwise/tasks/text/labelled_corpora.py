"""Which labelled texts: settings, and what they name in three parts.

- `docstrings`: docstrings labelled with their package, built in;
- `glue`: a task of GLUE;
- `files`: files of tab-separated values;
- `hub`: a dataset of the Hugging Face hub.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from headwise.tasks.parts import DividedSettings, HubSettings, given_parts
from headwise.tasks.text.docstrings import PACKAGES, read_docstrings
from headwise.tasks.text.glue import GlueTask, glue_classes, read_glue
from headwise.tasks.text.labelled import Labelled, Problem, Row, divide
from headwise.tasks.text.labelled_sources import Columns, read_hub, read_tsv

_PROBLEM_DESCRIPTION = "classification: labels are names of classes; regression: they are numbers"
_CLASSES = Field(
    None,
    description="the classes, in the order of the model's outputs; default: the labels of the "
    "training data, sorted",
)


class ExampleLimits(BaseModel):
    """What all examples have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_length: int = Field(
        512,
        ge=8,
        description="tokens of an example, special ones included; longer ones are cut at the end, "
        "of a pair the longer text first; a batch has training.batch_tokens / max_length examples",
    )


class LabelledSettings(ExampleLimits, DividedSettings):
    """What labelled texts have in common of which parts may be divided off."""


class Docstrings(LabelledSettings):
    """The first paragraphs of docstrings, labelled with the Python package they stand in.

    Small, real and offline: they are read from the source files of packages that are installed
    with headwise. Each package gives as many, so that the smallest sets the size.
    """

    corpus: Literal["docstrings"] = Field("docstrings", description="the built-in examples")
    packages: list[str] = Field(
        default_factory=lambda: list(PACKAGES),
        min_length=2,
        description="the packages, which are the classes",
    )


class Glue(LabelledSettings):
    """A task of GLUE, from the Hugging Face hub or from the files of GLUE's own archive.

    GLUE's test parts have no labels: its development part is the test part here, as in the papers,
    and the validation part is a share of the training part.
    """

    corpus: Literal["glue"] = Field("glue", description="a task of GLUE")
    task: GlueTask = Field(description="which of its tasks")
    name: str = Field(
        "nyu-mll/glue", description="name of the dataset on the Hugging Face hub, or its folder"
    )
    revision: str | None = Field(
        None, description="branch, tag or commit of the dataset, to pin its content"
    )
    folder: Path | None = Field(
        None,
        description="folder of the task with GLUE's train.tsv and dev.tsv; then nothing comes "
        "from the hub",
    )


class LabelledFiles(LabelledSettings):
    """Files of tab-separated values whose first line names the columns; no quoting."""

    corpus: Literal["files"] = Field("files", description="files of tab-separated values")
    train: Path = Field(description="the training examples, UTF-8; gzip if the name ends in .gz")
    validation: Path | None = Field(
        None, description="the validation examples; without them, a share of the training ones"
    )
    test: Path | None = Field(
        None, description="the test examples; without them, a share of the training ones"
    )
    text_field: str = Field("sentence", description="column of the text")
    pair_field: str | None = Field(None, description="column of the second text, for pairs")
    label_field: str = Field("label", description="column of the label")
    problem: Problem = Field("classification", description=_PROBLEM_DESCRIPTION)
    classes: list[str] | None = _CLASSES


class LabelledHub(LabelledSettings, HubSettings):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    corpus: Literal["hub"] = Field("hub", description="a Hugging Face dataset")
    text_field: str = Field("sentence", description="column of the text")
    pair_field: str | None = Field(None, description="column of the second text, for pairs")
    label_field: str = Field("label", description="column of the label")
    problem: Problem = Field("classification", description=_PROBLEM_DESCRIPTION)
    classes: list[str] | None = _CLASSES


ExampleSettings = Annotated[
    Docstrings | Glue | LabelledFiles | LabelledHub, Field(discriminator="corpus")
]


# --- examples ---------------------------------------------------------------------------------


def load_labelled(settings: ExampleSettings) -> Labelled:
    """Read labelled texts and divide off the parts that are not given.

    Args:
        settings: one of :class:`Docstrings`, :class:`Glue`, :class:`LabelledFiles`,
            :class:`LabelledHub`.

    Raises:
        CorpusError: data that cannot be read, an unknown label, or too little to fill the parts.
            The message names the file, and the line where there is one, and the mending.
    """
    skipped: Counter[str] = Counter()
    given: dict[str, Iterable[Row]] = {}
    if isinstance(settings, Docstrings):
        rows, origin = read_docstrings(settings.packages)
        return divide(
            {"train": rows},
            origin,
            skipped,
            fractions=settings.fractions(),
            classes=settings.packages,
        )
    if isinstance(settings, Glue):
        problem, classes = glue_classes(settings.task)
        given, origin = read_glue(
            settings.task, settings.folder, settings.name, settings.revision, skipped
        )
        return divide(
            given,
            origin,
            skipped,
            fractions=settings.fractions(),
            problem=problem,
            classes=classes,
        )
    columns = Columns(settings.text_field, settings.pair_field, settings.label_field)
    if isinstance(settings, LabelledFiles):
        paths = given_parts(settings)
        given = {part: read_tsv(path, columns, skipped) for part, path in paths.items()}
        origin = f"files {', '.join(path.name for path in paths.values())}"
    else:
        for part, split in settings.splits().items():
            given[part] = read_hub(
                settings.name,
                split,
                columns,
                config=settings.config,
                revision=settings.revision,
                classes=settings.classes,
            )
        origin = settings.origin
    return divide(
        given,
        origin,
        skipped,
        fractions=settings.fractions(),
        problem=settings.problem,
        classes=settings.classes,
    )


def known_classes(settings: ExampleLimits) -> tuple[Problem, list[str] | None]:
    """What settings alone tell of the labels: the problem, and the classes if they are named.

    >>> known_classes(Glue(task="QNLI"))
    ('classification', ['entailment', 'not_entailment'])
    """
    if isinstance(settings, Glue):
        return glue_classes(settings.task)
    if isinstance(settings, Docstrings):
        return "classification", settings.packages
    return getattr(settings, "problem", "classification"), getattr(settings, "classes", None)
