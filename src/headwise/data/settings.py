"""What the settings of all data have in common: parts, samples, and further test sets.

The data of all tasks name their parts in the same way: files under `train`, `validation` and
`test`, splits of a Hugging Face dataset under `train_split`, `validation_split` and `test_split`.
A validation or test part that is not given is a share of the training data. Further test sets have
names of their own under `tests`:

    data:
      corpus: files
      train: {source: train.en, target: train.de}
      tests:
        mscoco: {source: mscoco.en, target: mscoco.de}
        flickr2017: {corpus: hub, name: some/dataset, split: test_2017, source_field: en, ...}

Each task has settings for the files of a test set, of the same shape as its own `data.test`. The
data of a recipe need not be of the same kind: a model that was trained on a dataset of the hub can
be tested on files. `complete_tests` completes what a recipe says, so that it can be brief.
"""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from headwise.data.division import PARTS, Part
from headwise.data.sources import CorpusError
from headwise.recipes.schema import Node, node_of
from headwise.settings import FrozenSettings, Settings

MAX_BYTES: Any = Field(
    None,
    ge=1,
    le=2**50,
    description="The most bytes that a text file may have, or that one compressed with gzip may "
    "expand to. A larger one is an error. Default: any number; with gzip 20 times the size of the "
    "file, or 256 MiB, since a small file can be made to fill the disk.",
)


class SampledSettings(FrozenSettings):
    """Settings of data of which a sample may be trained on."""

    train_fraction: float = Field(1.0, gt=0, le=1)
    """Share of the training part that is used. A hash of each item (pair, example, image, passage
    of about 100 words, name of a recording) chooses the sample: it is the same for all systems and
    seeds, and a larger share has all items of a smaller one. The other parts stay whole."""


class DividedSettings(SampledSettings):
    """Settings of data whose validation and test part may be shares of the training data."""

    validation_fraction: float = Field(0.1, gt=0, lt=0.5)
    """Share of the training data that becomes the validation part if none is given."""
    test_fraction: float = Field(0.1, gt=0, lt=0.5)
    """Share of the training data that becomes the test part if none is given."""

    # The key of a further test set's files, which may stand for it; None if it has several keys.
    key_of_tests: ClassVar[str | None] = None

    @model_validator(mode="before")
    @classmethod
    def _complete_tests(cls, given: Any) -> Any:
        return complete_tests(cls, given, cls.key_of_tests)

    def fractions(self, given: Container[str] = ()) -> tuple[float, float]:
        """Returns the shares of the validation and the test part; 0 for a part that is given."""
        return (
            0.0 if "validation" in given else self.validation_fraction,
            0.0 if "test" in given else self.test_fraction,
        )


def part_of_files(part: str, files: str, items: str) -> Any:
    """Returns the settings field of a validation or test part, which may have its own files.

    >>> part_of_files("test", "Files", "pairs").description
    'Files of the test pairs. Without them a share of the training pairs is used.'
    """
    them = "them" if files == "Files" else "it"
    return Field(
        None,
        description=f"{files} of the {part} {items}. Without {them} a share of the training "
        f"{items.partition(',')[0]} is used.",
    )


class PlainFiles(Settings):
    """Settings of data in plain text files."""

    corpus: Literal["files"] = Field("files", description="Selects plain text files.")


class StreamedSettings(DividedSettings):
    """Settings of data that may be too large for the disk."""

    streaming: bool = False
    """Whether the training part is read and encoded while the model is trained on it, and is never
    stored. It has no length then: training.max_steps ends the training. Files are local, and rows
    of the hub are downloaded again in each pass."""
    held_out_rows: int = Field(1000, ge=1, le=10**9)
    """With streaming, a validation or test part that is not given is this many rows (lines of a
    file) at the head of the first training file, or of the first shard of the split; they are not
    trained on."""
    shuffle_rows: int = Field(10_000, ge=1, le=10**9)
    """With streaming, how many pairs, examples or documents (longer ones are cut to about 1,000
    words) each process has in memory at once. They are shuffled among each other."""

    @model_validator(mode="after")
    def _check_streaming(self) -> Self:
        if self.streaming and self.train_fraction < 1.0:
            raise ValueError(
                f"train_fraction is {self.train_fraction} and streaming is true, expected one of "
                f"them: no share of a stream is known before its end; set training.max_steps"
            )
        return self

    @property
    def held_out(self) -> list[Part]:
        """The parts that are taken from the head of the stream."""
        given = given_parts(self)
        return [part for part in PARTS if part not in given]


class HubDataset(FrozenSettings):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    corpus: Literal["hub"] = Field("hub", description="Selects a Hugging Face dataset.")
    name: str
    """Name on the hub, or a local folder with train.jsonl, test.parquet, ..."""
    config: str | None = Field(None, description="Configuration (subset) of the dataset.")
    revision: str | None = None
    """Tag or commit of the dataset, which pins its content."""

    @property
    def origin(self) -> str:
        """The dataset in words, for the notes on the data.

        >>> HubDataset(name="wikitext", config="wikitext-103-v1").origin
        'dataset wikitext wikitext-103-v1'
        """
        revision = f"revision {self.revision}" if self.revision else None
        return " ".join(filter(None, ("dataset", self.name, self.config, revision)))


ValidationSplit = Annotated[
    str | None,
    Field(
        description="The split to validate on. With null, a share of the training split is used."
    ),
]


class HubSettings(HubDataset):
    """Settings of data whose parts are splits of a Hugging Face dataset."""

    train_split: str = "train"
    """Split to train on; a slice such as train[:100000] takes a part of it."""
    validation_split: ValidationSplit = "validation"
    test_split: str | None = "test"
    """The split to test on. With null, a share of the training split is used."""


def given_parts(settings: BaseModel) -> dict[Part, Any]:
    """Returns the split of each part, or the values of the fields that bear the parts' names."""
    suffix = "_split" if isinstance(settings, HubSettings) else ""
    found = {part: getattr(settings, f"{part}{suffix}", None) for part in PARTS}
    return {part: value for part, value in found.items() if value is not None}


# --- further test sets ------------------------------------------------------------------------

TESTS: Any = Field(
    default_factory=dict,
    description="Further test sets: each name has the files or the split of one. They are scored "
    "beside the test part and have no part in training, so that they can be added later.",
)


class HubTest(HubDataset):
    """A further test set: one split of a dataset of the Hugging Face hub, or of a local folder."""

    name: str
    """Name on the hub, or a local folder. Default: the dataset that is trained on."""
    split: str = Field("test", description="The split, or a slice of one.")

    @property
    def origin(self) -> str:
        return f"{super().origin}, split {self.split}"


def given_test(settings: DividedSettings, test: Any) -> Any:
    """Returns the split of a further test set of data, or the files of one."""
    if isinstance(test, HubTest):
        return test.split
    return test if settings.key_of_tests is None else getattr(test, settings.key_of_tests)


def complete_tests(settings: type[BaseModel], given: Any, key: str | None) -> Any:
    """Returns the settings of data with those of their further test sets completed.

    A name of a dataset or of a split makes a test set one of the hub. Otherwise it is of the kind
    of the data, if there are test sets of this kind, and else of the first kind. What a test set
    of the kind of the data does not say is as in the data: the dataset, or the names of columns.
    A plain value, such as the path of a file, stands for `key`.
    """
    if not isinstance(given, Mapping) or not isinstance(given.get("tests"), Mapping):
        return given
    of_tests = node_of(settings).behind("tests").behind("any name").kinds()
    by_corpus = {found.value: kind for kind in of_tests if (found := kind.tag()) is not None}
    data = {"corpus": settings.model_fields["corpus"].default, **given}
    tests = {name: _completed(test, data, by_corpus, key) for name, test in data["tests"].items()}
    for name in tests:
        if name in PARTS:
            raise ValueError(
                f"tests.{name} has the name of a part, expected another name; a test part of its "
                f"own is named beside the training part"
            )
    return {**given, "tests": tests}


def _completed(
    test: Any, data: Mapping[str, Any], by_corpus: Mapping[str, Node], key: str | None
) -> Any:
    own = data["corpus"]
    if isinstance(test, (str, Path, list)):
        stands_for = "split" if own == "hub" else key
        test = test if stands_for is None else {stands_for: test}
    if not isinstance(test, Mapping):
        return test
    corpus = own if own in by_corpus and own != "hub" else next(iter(by_corpus))
    if "split" in test or "name" in test:
        corpus = "hub"
    completed = {"corpus": corpus, **test}
    if completed["corpus"] == own and own in by_corpus:
        own_keys = set(by_corpus[own].keys()) & set(data)
        if "name" in test:
            own_keys -= {"config", "revision"}  # those of another dataset
        completed = {**{field: data[field] for field in own_keys}, **completed}
    return completed


@contextmanager
def in_test_set(name: str) -> Iterator[None]:
    """While this context is open, errors of the data say that they are in a further test set."""
    try:
        yield
    except CorpusError as error:
        raise type(error)(f"data.tests.{name}: {error}") from error
