"""A task: what is predicted from which data, and how it is scored.

A task of your own is a subclass of `Task`, named by `task: module:Class` in a recipe.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
from torch import Tensor

from headwise.data.divide import parts_of
from headwise.data.encode import Columns, Items, digest, digest_of, encoded, lengths, pad
from headwise.data.load import DataError, from_files, lines
from headwise.data.settings import PARTS, Data, Files
from headwise.data.stream import Shards, Stream
from headwise.models.config import TransformerConfig
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.pretrained import pretrained_config, pretrained_model
from headwise.recipes.recipe import Evaluation, Recipe
from headwise.tasks.scores import Outcome
from headwise.training.batches import token_batches

# What configurations of models have of a tokenizer.
SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id")


class Each:
    """Computes something of each batch; whoever evaluates may show a bar."""

    def __call__(self, batches: Sequence[Any], compute: Callable[[Any], Any]) -> list[Any]:
        """Returns what `compute` returns for each batch, in order."""
        return [compute(batch) for batch in batches]


@dataclass(frozen=True)
class Wish:
    """The arguments of `headwise predict`."""

    inputs: Sequence[str] = ()  # files
    texts: Sequence[str] = ()
    number: int | None = None  # of texts for each prompt, or of images
    output: Path | None = None  # the file to write

    def refuse(self, task: str, *options: str) -> None:
        """Raises `ValueError` if the user gave an option that a task does not have."""
        for option in options:
            if getattr(self, option):
                name = {"inputs": "INPUT", "texts": "--text"}.get(option, f"--{option}")
                raise ValueError(f"{name} is not for a run of {task}: leave it out")

    def lines(self, default: list[str] | None = None) -> list[str]:
        """Returns the lines of the files, and the texts.

        Without any it is the default, or else what standard input has.
        """
        if self.inputs or self.texts:
            return [*chain.from_iterable(map(lines, self.inputs)), *self.texts]
        return [x.rstrip("\r\n") for x in sys.stdin] if default is None else default


@dataclass(frozen=True)
class Positions:
    """What stands at each position of one stack of a model, for analyses.

    Attributes:
        shape: batch and time.
        tokens: tokens of a vocabulary or colours of a palette, `(batch, time)`, negative where
            there is none; None where nothing can be numbered.
        names: the name of each token.
        word: what tokens are called, in the singular.
        classes: for each kind of class, that of each position, `(batch, time)`, or sequence,
            `(batch,)`, negative where there is none; and the names of the classes.
        levels: for each kind of quantity, such as loudness, its values, `(batch, time)`.
        size: of images, height and width: the last positions are the pixels, row by row.
    """

    shape: tuple[int, ...]
    tokens: Tensor | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    word: str = "token"
    classes: Mapping[str, tuple[Tensor, list[str]]] = field(default_factory=dict)
    levels: Mapping[str, Tensor] = field(default_factory=dict)
    size: tuple[int, int] | None = None


class Task(ABC):
    """The data of a recipe, with the batches, the scores and the samples of its task.

    Args:
        recipe: a recipe of this task.
        folder: where a run has saved the encoder (a tokenizer, a palette). By default it is that
            of the run that the recipe starts from, or is learned from the training part.

    Attributes:
        rows: of each part and each further test set, by name, its rows as text, images or sounds.
        parts: the encoded items of the same; `train` may be a stream.
        facts: a table about the data: of each part its number of rows, and so on.
        made_of: all on which the encoding depends beside the rows; `open` sets it.

    Raises:
        ValueError: the data cannot be read; the message names the file and how to mend it.
    """

    name: ClassVar[str]
    recipe_class: ClassVar[type[Recipe]]
    model_class: ClassVar[type[HeadwiseModel]]
    # Data that are there once headwise is installed: name to a function that returns the rows of
    # `train`, and of other parts where they have their own.
    built_in: ClassVar[Mapping[str, Callable[..., dict[str, datasets.Dataset]]]] = {}
    # The columns of rows and their usual names in data; None for one that data need not have.
    columns: ClassVar[Mapping[str, str | None]]
    key: ClassVar[str | None] = None  # the column that decides the part of a row; None: text is cut
    item_name: ClassVar[str] = "sentences"  # the unit of evaluation and of the bootstrap
    loss_unit: ClassVar[str] = "nats per token"
    pipeline: ClassVar[str | None] = None  # what transformers' pipelines and the hub call the task
    # The stacks of the model, each with the length at which costs are counted; 0: the longest.
    counted: ClassVar[tuple[tuple[str, int], ...]] = (("decoder", 0),)
    rows_at_once: ClassVar[int] = 1000  # how many rows `clean` and `encode` are given at once
    clean_features: ClassVar[datasets.Features | None] = None  # the types of what `clean` returns
    features: datasets.Features | None = None  # the types of what `encode` returns
    # The keys of data on which `clean` depends; by default all, so that any change reads anew.
    clean_keys: ClassVar[set[str] | None] = None

    rows: dict[str, Any]
    parts: dict[str, Any]
    made_of: list[object]
    padding: dict[str, int]  # what stands behind the shorter sequences of a batch

    def __init__(self, recipe: Any, folder: Path | None = None) -> None:
        self.recipe = recipe
        self.rows, self.facts = parts_of(recipe.data, type(self))
        self.made_of = []
        self._folder = folder if folder is not None else recipe.pretrained_folder()
        self.open(self._folder)
        self.parts = {name: self._items(name) for name in self.rows}

    def __reduce__(self) -> Any:
        # Another process finds what was encoded in the cache.
        return type(self), (self.recipe, self._folder)

    # --- rows -----------------------------------------------------------------------------------

    @staticmethod
    def read_files(files: Files, data: Data) -> datasets.Dataset:
        """Returns the rows of the files of a part."""
        return from_files(files, data)

    @classmethod
    def clean(cls, columns: Columns, data: Any, part: str) -> Columns:
        """Returns the rows that are taken, of some that were read; others are left out."""
        return columns

    @abstractmethod
    def open(self, folder: Path | None) -> None:
        """Loads what encodes rows from a folder, or learns it from `self.rows["train"]`."""

    def to_learn_from(self, number: int) -> Iterator[Columns]:
        """Yields cleaned rows of the training part, of a stream only `number` at its head."""
        rows = self.rows["train"]
        if isinstance(rows, Shards):
            yield type(self).clean(rows.head(number), self.recipe.data, "train")
        else:
            yield from rows.iter(1000)

    @abstractmethod
    def encode(self, columns: Columns) -> Columns:
        """Returns what a model reads of rows; one row may become several, or none."""

    def items(self, rows: datasets.Dataset, part: str) -> Items:
        """Returns encoded rows as items, with what is random of them."""
        return Items(rows, lengths(rows, "input_ids")[:, 0])

    def _items(self, part: str) -> Any:
        rows, features = self.rows[part], self.features
        if isinstance(rows, Shards):

            def of_window(columns: Columns) -> Items:
                cleaned = type(self).clean(columns, self.recipe.data, "train")
                made = datasets.Dataset.from_dict(self.encode(cleaned), features=features)
                return self.items(made, "train")

            return Stream(rows, of_window, self.recipe.data.window)
        made_of, size = [f"{self.name}: encoding {part}", *self.made_of], self.rows_at_once
        found = encoded(rows, self.encode, made_of, batch_size=size, features=features)
        return self.items(found, part)

    def digest(self, part: str | None = None) -> str:
        """Returns a hash of the rows of a part; of all that is trained on, and how, without one.

        Runs whose hashes of a part are equal are scored on the same items.
        """
        if part is None:
            return digest_of(*map(self.digest, PARTS), *self.made_of)
        rows = self.rows[part]
        return rows.digest if isinstance(rows, Shards) else digest(rows)

    # --- the model ------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def sizes(cls, recipe: Any, task: Any = None) -> dict[str, Any]:
        """Returns what the data settle of the configuration of a recipe's model.

        Args:
            recipe: a recipe of this task.
            task: the task on its data. Without it the sizes are the largest that the recipe
                allows, as `headwise cost` needs them.
        """

    @classmethod
    def cost_lengths(cls, recipe: Any) -> dict[str, int]:
        """Returns the length in each stack for which multiply-accumulates are counted."""
        return {stack: length or cls.sizes(recipe)["max_length"] for stack, length in cls.counted}

    @classmethod
    def config(cls, recipe: Any, task: Any = None) -> TransformerConfig:
        """Returns the configuration of a recipe's model; see `sizes`."""
        if recipe.pretrained_folder() is not None:
            return pretrained_config(cls.model_class, recipe)
        kind: Any = cls.model_class.config_class
        return kind(**{**cls.sizes(recipe, task), **recipe.model_arguments})

    def build_model(self, recipe: Any) -> HeadwiseModel:
        """Returns the model of a recipe, which has these data: fresh, or that it starts from."""
        run = recipe.pretrained_folder()
        if run is None:
            return self.model_class(self.config(recipe, self))
        self.check_encoder(run)
        return pretrained_model(self.model_class, recipe)

    def check_encoder(self, folder: Path) -> None:
        """Raises `ValueError` if the model in a folder reads what another encoder has made."""
        other = copy(self)
        other.open(folder)
        if other.made_of != self.made_of:
            raise ValueError(
                f"model.pretrained is {folder}, expected a model with the same vocabulary or "
                f"palette as the other systems: pretrain all of them in one comparison"
            )

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes what encodes rows into the folder of a model."""

    # --- batches and scores ---------------------------------------------------------------------

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        """Joins items into a batch: keyword arguments of the model's forward, with `labels`.

        Labels are -100 where the model predicts nothing.
        """
        marked = [{**item, "attention_mask": [1] * len(item["input_ids"])} for item in items]
        return pad(marked, {**self.padding, "attention_mask": 0})

    def stored(self, part: str) -> Items:
        """Returns the items of a part, which may not be a stream."""
        items = self.parts[part]
        if isinstance(items, Stream):
            raise DataError(f"the {part} part is a stream, expected another: it is only trained on")
        return items

    def batches(self, part: str, batch_tokens: int) -> list[list[int]]:
        """Returns the indices of a part's items in batches of similar length, in a fixed order."""
        lengths = self.stored(part).lengths
        batches = token_batches(lengths, max(batch_tokens, int(np.max(lengths))))
        return [batch.tolist() for batch in batches]

    @abstractmethod
    def evaluate(
        self, model: HeadwiseModel, part: str, evaluation: Evaluation, each: Each
    ) -> Outcome:
        """Returns the scores, samples and pictures of a trained model on one part.

        The model is in evaluation mode, with the ablation of `evaluation` applied.
        """

    def monitor(self, model: HeadwiseModel) -> dict[str, float]:
        """Returns figures to record at each validation beside the loss: name to value."""
        return {}

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """Returns what stands at the positions of a batch of each stack, `encoder` or `decoder`."""
        return {}

    @classmethod
    @abstractmethod
    def predict(cls, folder: Path, recipe: Any, model: HeadwiseModel, wish: Wish) -> Iterator[str]:
        """Yields lines to print: what the model of a run makes of new input, or where it wrote it.

        Raises:
            ValueError: the task does not have an option of `wish`, or lacks one.
        """
