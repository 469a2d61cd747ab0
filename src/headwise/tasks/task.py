"""The seam between tasks and everything that they share: trainer, runs, comparisons, reports."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor
from typing_extensions import Self

from headwise.models.base import HeadwiseModel
from headwise.models.config import TransformerConfig
from headwise.recipe.settings import ModelSettings, Recipe
from headwise.tasks.outcome import Outcome
from headwise.tasks.significance import paired_bootstrap
from headwise.training.batching import Items

Advance = Callable[[int], None]  # called with the number of items that are done


@dataclass(frozen=True)
class Wish:
    """What somebody asks `headwise generate` for.

    Attributes:
        prompts: texts to go on from; None if none was given.
        number: how many texts for each prompt, or how many images; None for the task's own number.
        output: the file to write; None for the task's own name of it.
        echo: prints a line of text.
    """

    prompts: Sequence[str] | None
    number: int | None
    output: Path | None
    echo: Callable[[str], None]

    def refuse(self, option: str, task: str) -> None:
        """Raise `ValueError` if an option was given that runs of a task do not have.

        Args:
            option: `prompts` or `output`.
            task: the task's name.
        """
        if getattr(self, option) is not None:
            name = option.removesuffix("s")
            raise ValueError(f"--{name} is not for a run of {task}; leave it out")


class Task(ABC):
    """The data of a recipe, and what is a task's own: batches, scores, things to look at.

    Attributes:
        train, validation, test: the parts, encoded.
        notes: facts about the data for the screen and the report: label to words.
    """

    recipe_class: ClassVar[type[Recipe]]
    model_class: ClassVar[type[HeadwiseModel]]
    loss_name: ClassVar[str] = "nats per token"  # what the validation loss is
    # Whether the exponential of the loss is a perplexity of tokens, which tables then show too.
    loss_has_perplexity: ClassVar[bool] = True
    item_name: ClassVar[str] = "sentences"  # what `evaluate` advances by, and a test draws from
    saved: ClassVar[tuple[str, ...]] = ("tokenizer",)  # what `save` writes
    centre: ClassVar[Literal["mean", "median"]] = "mean"  # over seeds, as the paper reports it
    macs_lengths: ClassVar[dict[str, int]]  # see `cost_lengths`

    train: Items
    validation: Items
    test: Items
    notes: dict[str, str]

    @classmethod
    @abstractmethod
    def prepare(cls, recipe: Any, folder: Path | None = None) -> Self:
        """Read the data, and learn what encodes it (a vocabulary, a palette).

        Args:
            recipe: of this task.
            folder: of a run; what it has saved is loaded in place of being learned.

        Raises:
            ValueError: data that cannot be read; the message names the file and the mending.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what encodes the data to the folder of a run, each file whole or not at all."""

    @abstractmethod
    def digest(self) -> str:
        """A hash of the data: runs on different data are not mixed."""

    @classmethod
    @abstractmethod
    def nominal_config(cls, recipe: Any) -> TransformerConfig:
        """The configuration of a recipe's model without a look at the data, to count its cost."""

    @classmethod
    def cost_lengths(cls, recipe: Any) -> dict[str, int]:
        """Stack to length of the pass that multiply-accumulates are told of."""
        return cls.macs_lengths

    @abstractmethod
    def model_config(self, settings: Any) -> TransformerConfig:
        """The configuration of a model for this data."""

    def build_model(self, settings: ModelSettings) -> HeadwiseModel:
        """A model for this data before training; its weights are drawn."""
        return self.model_class(self.model_config(settings))

    @abstractmethod
    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        """Join items into a batch: keyword arguments of the model's forward, with `labels`.

        Labels are -100 where nothing is to be predicted.
        """

    def measure(self, model: HeadwiseModel) -> dict[str, float]:
        """Figures to follow over training, beside the loss: taken at each validation."""
        return {}

    @abstractmethod
    def evaluate(
        self, model: HeadwiseModel, part: Items, evaluation: Any, advance: Advance
    ) -> Outcome:
        """Scores, samples and pictures of a finished model on a part.

        Args:
            model: in evaluation; its branches weigh as `evaluation` says.
            part: one of the three.
            evaluation: the recipe's settings.
            advance: called with the number of items that are done, for a bar.
        """

    @abstractmethod
    def statistic(self, items: np.ndarray) -> float:
        """The first score of an `Outcome` from a resample of its items, `(items, numbers)`."""

    @classmethod
    def generate(cls, run: Path, recipe: Any, model: HeadwiseModel, wish: Wish) -> None:
        """What `headwise generate` does with a finished run: write texts or draw images.

        Args:
            run: the folder of the run.
            recipe: of the run, of this task.
            model: its model, in evaluation.
            wish: what the command line asks for.

        Raises:
            ValueError: the task generates nothing, or `wish` names an option that it does not have.
        """
        task = cls.recipe_class.model_fields["task"].default
        raise ValueError(
            f"{run} is a run of {task}, expected one of a task that generates something: "
            f"language-modelling or images"
        )

    def paired_test(
        self, baseline: Outcome, other: Outcome, evaluation: Any
    ) -> tuple[float, float]:
        """How the first score differs from the baseline's on the test part, and the p-value."""
        return paired_bootstrap(baseline.items, other.items, self.statistic)
