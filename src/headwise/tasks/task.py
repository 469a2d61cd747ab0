"""A task: what is predicted from which data, and how predictions are scored.

A task of your own is a subclass of `Task`, named by `task: module:Class` in a recipe.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
from torch import Tensor

from headwise.data.encode import (
    Columns,
    EncodedDataset,
    content_hash,
    encode_rows,
    hash_of,
    lengths,
    pad,
)
from headwise.data.load import DataError, TaskData, lines
from headwise.data.settings import SPLITS
from headwise.data.splits import load_splits
from headwise.data.stream import Stream
from headwise.models.config import TransformerConfig
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.pretrained import pretrained_config, pretrained_model
from headwise.recipes.recipe import Evaluation, Recipe
from headwise.tasks.scores import Outcome
from headwise.training.batches import token_batches

# Goes through a sequence, and may show how far it is, as `rich.progress.track` does.
Track = Callable[[Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True)
class PredictRequest:
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
        """Returns the lines of files, and the texts; else standard input, or what it defaults to.

        At a terminal it is read only if there is no default.
        """
        if self.inputs or self.texts:
            return [*chain.from_iterable(map(lines, self.inputs)), *self.texts]
        if sys.stdin is None or (default and sys.stdin.isatty()):  # None: it is closed
            return default or []
        return list(lines("standard input", sys.stdin.buffer)) or default or []


@dataclass(frozen=True)
class Positions:
    """Labels of the positions of one stack of a model, for analyses.

    Attributes:
        shape: batch and time.
        tokens: tokens of a vocabulary or colours of a palette, `(batch, time)`, negative at a
            position without a token; None for frames of sound.
        names: the name of each token.
        word: the word for a token, in the singular.
        classes: by name, the class of each position, `(batch, time)`, or sequence, `(batch,)`,
            negative where there is none; and the names of the classes.
        levels: by name, a quantity such as loudness, `(batch, time)`.
        size: of images, height and width: the last positions are the pixels, row by row.
    """

    shape: tuple[int, ...]
    tokens: Tensor | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    word: str = "token"
    classes: Mapping[str, tuple[Tensor, list[str]]] = field(default_factory=dict)
    levels: Mapping[str, Tensor] = field(default_factory=dict)
    size: tuple[int, int] | None = None


class Task(TaskData, ABC):
    """The data of a recipe, with the batches, the scores and the samples of its task.

    Args:
        recipe: a recipe of this task.
        folder: where a run has saved the encoder (a tokenizer, a palette). By default the encoder
            is that of the run that the recipe starts from, or is learned from the training split.

    Attributes:
        rows: the rows of each split and each further test set, as text, images or sounds.
        splits: the encoded items of the same splits; `train` may be a stream.
        facts: a table about the data, with the number of rows of each split, and so on.
        cache_key: all on which the encoding depends beside the rows; `open` sets it.

    Raises:
        ValueError: the data cannot be read; the message names the file and how to mend it.
    """

    name: ClassVar[str]
    recipe_class: ClassVar[type[Recipe]]
    model_class: ClassVar[type[HeadwiseModel]]
    item_name: ClassVar[str] = "sentences"  # the unit of evaluation and of the bootstrap
    loss_unit: ClassVar[str] = "nats per token"
    # The stacks of the model, each with the length at which costs are counted; 0: the longest.
    stacks: ClassVar[tuple[tuple[str, int], ...]] = (("decoder", 0),)
    features: datasets.Features | None = None  # the types that `encode` returns

    rows: dict[str, Any]
    splits: dict[str, Any]
    cache_key: list[object]
    padding: dict[str, int]  # the padding value of each sequence of a batch

    def __init__(self, recipe: Any, folder: Path | None = None) -> None:
        self.recipe = recipe
        self.rows, self.facts = load_splits(recipe.data, type(self))
        self.cache_key = []
        self._folder = folder if folder is not None else recipe.pretrained_folder()
        self.open(self._folder)
        self.splits = {name: self._split_items(name) for name in self.rows}

    def __reduce__(self) -> Any:
        # Another process finds the encoded rows in the cache.
        return type(self), (self.recipe, self._folder)

    # --- rows -----------------------------------------------------------------------------------

    @abstractmethod
    def open(self, folder: Path | None) -> None:
        """Loads the encoder from a folder, or learns it from `self.rows["train"]`."""

    def rows_to_learn_from(self, number: int) -> Iterator[Columns]:
        """Yields the rows from which an encoder is learned; of a stream the first `number`."""
        rows = self.rows["train"]
        if isinstance(rows, Stream):
            yield type(self).clean(rows.head(number), self.recipe.data, "train")
        else:
            yield from rows.iter(1000)

    @abstractmethod
    def encode(self, columns: Columns) -> Columns:
        """Returns rows as a model reads them; one row may become several, or none."""

    def items(self, rows: datasets.Dataset, split: str) -> EncodedDataset:
        """Returns encoded rows as items of known lengths, with their random parts."""
        return EncodedDataset(rows, lengths(rows, "input_ids")[:, 0])

    def _split_items(self, split: str) -> Any:
        rows, features = self.rows[split], self.features
        if isinstance(rows, Stream):

            def encode_window(columns: Columns) -> EncodedDataset:
                cleaned = type(self).clean(columns, self.recipe.data, "train")
                encoded = datasets.Dataset.from_dict(self.encode(cleaned), features=features)
                return self.items(encoded, "train")

            rows.encode = encode_window
            return rows
        key, size = [f"{self.name}: encoding {split}", *self.cache_key], self.rows_at_once
        encoded = encode_rows(rows, self.encode, key, batch_size=size, features=features)
        return self.items(encoded, split)

    def content_hash(self, split: str | None = None) -> str:
        """Returns a hash of the rows of a split; without a split, of all data and their encoding.

        Runs whose hashes of a split are equal are scored on the same items.
        """
        if split is None:
            return hash_of(*map(self.content_hash, SPLITS), *self.cache_key)
        rows = self.rows[split]
        return rows.content_hash if isinstance(rows, Stream) else content_hash(rows)

    # --- the model ------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def sizes(cls, recipe: Any, task: Any = None) -> dict[str, Any]:
        """Returns the arguments of a model's configuration that follow from the data.

        Args:
            recipe: a recipe of this task.
            task: the task on its data. Without it the sizes are the largest that the recipe
                allows, as `headwise cost` needs them.
        """

    @classmethod
    def cost_lengths(cls, recipe: Any) -> dict[str, int]:
        """Returns the length in each stack for which multiply-accumulates are counted."""
        return {stack: length or cls.sizes(recipe)["max_length"] for stack, length in cls.stacks}

    @classmethod
    def config(cls, recipe: Any, task: Any = None) -> TransformerConfig:
        """Returns the configuration of a recipe's model; see `sizes`."""
        if recipe.pretrained_folder() is not None:
            return pretrained_config(cls.model_class, recipe)
        config_class: Any = cls.model_class.config_class
        return config_class(**{**cls.sizes(recipe, task), **recipe.model_arguments})

    def build_model(self, recipe: Any) -> HeadwiseModel:
        """Returns the model of a recipe with these data: a new one, or that of a finished run."""
        folder = recipe.pretrained_folder()
        if folder is None:
            return self.model_class(self.config(recipe, self))
        self.check_encoder(folder)
        return pretrained_model(self.model_class, recipe)

    def check_encoder(self, folder: Path) -> None:
        """Raises `ValueError` if the model in a folder was trained with another encoder."""
        pretrained = copy(self)
        pretrained.open(folder)
        if pretrained.cache_key != self.cache_key:
            raise ValueError(
                f"model.pretrained is {folder}, expected a model with the same vocabulary or "
                f"palette as the other systems: pretrain all of them in one comparison"
            )

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the encoder into the folder of a model."""

    # --- batches and scores ---------------------------------------------------------------------

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        """Joins items into a batch: keyword arguments of the model's forward, with `labels`.

        Labels are -100 where the model predicts nothing.
        """
        with_mask = [{**item, "attention_mask": [1] * len(item["input_ids"])} for item in items]
        return pad(with_mask, {**self.padding, "attention_mask": 0})

    def stored_items(self, split: str) -> EncodedDataset:
        """Returns the items of a split, which may not be a stream."""
        items = self.splits[split]
        if isinstance(items, Stream):
            raise DataError(f"the {split} split is a stream, which can only be trained on")
        return items

    def batches(self, split: str, batch_tokens: int) -> list[list[int]]:
        """Returns the indices of a split's items in batches of similar length, in a fixed order."""
        item_lengths = self.stored_items(split).lengths
        batches = token_batches(item_lengths, max(batch_tokens, int(np.max(item_lengths))))
        return [batch.tolist() for batch in batches]

    @abstractmethod
    def evaluate(
        self, model: HeadwiseModel, split: str, evaluation: Evaluation, track: Track = iter
    ) -> Outcome:
        """Returns the scores, samples and picture of a trained model on one split.

        The model is in evaluation mode, with the ablation of `evaluation` applied.
        """

    def monitor(self, model: HeadwiseModel) -> dict[str, float]:
        """Returns figures that are recorded at each validation beside the loss, by name."""
        return {}

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """Returns the labels of a batch's positions in each stack, `encoder` or `decoder`."""
        return {}

    @classmethod
    @abstractmethod
    def predict(
        cls, folder: Path, recipe: Any, model: HeadwiseModel, request: PredictRequest
    ) -> Iterator[str]:
        """Yields lines to print: the model's output for new input, or the file that has it.

        Raises:
            ValueError: the task does not have an option of the request, or needs another.
        """
