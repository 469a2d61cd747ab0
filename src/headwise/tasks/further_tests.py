"""Further test sets of a recipe: `data.tests`, a mapping from a name to the files or split of one.

    data:
      corpus: files
      train: {source: train.en, target: train.de}
      tests:
        mscoco: {source: mscoco.en, target: mscoco.de}
        flickr2017: {corpus: hub, name: some/dataset, split: test_2017, source_field: en, ...}

Each task has settings for the files of a test set, of the same shape as its own `data.test`. The
data of a recipe need not be of the same kind: a model that was trained on a dataset of the hub can
be tested on files. `further_tests` completes what a recipe says, so that it can be brief.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headwise.recipes.schema import Node, node_of
from headwise.settings import Settings
from headwise.tasks.sources import CorpusError

TESTS: Any = Field(
    default_factory=dict,
    description="Further test sets: each name has the files or the split of one. They are scored "
    "beside the test part and have no part in training, so that they can be added later.",
)
_NAMES_OF_PARTS = ("train", "validation", "test")


class HubTest(Settings):
    """A further test set: one split of a dataset of the Hugging Face hub, or of a local folder."""

    model_config = ConfigDict(frozen=True)

    corpus: Literal["hub"] = Field("hub", description="Selects a Hugging Face dataset.")
    name: str = Field(
        description="Name on the hub, or a local folder. Default: the dataset that is trained on."
    )
    config: str | None = Field(None, description="Configuration (subset) of the dataset.")
    revision: str | None = Field(
        None, description="Tag or commit of the dataset, which pins its content."
    )
    split: str = Field("test", description="The split, or a slice of one.")

    @property
    def origin(self) -> str:
        """The split in words, for the notes on the data."""
        return dataset_in_words(self.name, self.config, self.revision) + f", split {self.split}"


def complete_tests(settings: type[BaseModel], given: Any, key: str | None) -> Any:
    """Returns the settings of data with those of their further test sets completed.

    A name of a dataset or of a split makes a test set one of the hub. Otherwise it is of the kind
    of the data, if there are test sets of this kind, and else of the first kind. What a test set
    of the kind of the data does not say is as in the data: the dataset, or the names of columns.

    Args:
        settings: the class of the data's settings; its field `tests` says which kinds there are.
        given: the settings of the data, as they stand in a recipe.
        key: the key for which a plain value stands, such as the path of a file; None if a test
            set needs more than one key.

    Raises:
        ValueError: a test set has the name of a part.
    """
    if not isinstance(given, Mapping) or not isinstance(given.get("tests"), Mapping):
        return given
    of_tests = node_of(settings).behind("tests").behind("any name").kinds()
    by_corpus = {found.value: kind for kind in of_tests if (found := kind.tag()) is not None}
    data = {"corpus": settings.model_fields["corpus"].default, **given}
    tests = {name: _completed(test, data, by_corpus, key) for name, test in data["tests"].items()}
    for name in tests:
        if name in _NAMES_OF_PARTS:
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
    if completed["corpus"] == own:
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


def dataset_in_words(name: str, config: str | None, revision: str | None) -> str:
    """Returns a dataset in words, for the notes on the data.

    >>> dataset_in_words("wikitext", "wikitext-103-v1", None)
    'dataset wikitext wikitext-103-v1'
    """
    words = ("dataset", name, config, f"revision {revision}" if revision else None)
    return " ".join(filter(None, words))
