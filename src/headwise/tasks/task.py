"""The interface of a task, through which training, comparisons and reports use it."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from torch import Tensor

from headwise.data.division import PARTS
from headwise.data.sources import decoded_lines, is_unicode, read_lines
from headwise.messages import shown
from headwise.models.config import TransformerConfig
from headwise.models.modeling import HeadwiseModel
from headwise.recipes.pretrained import finished_run, read_pretrained, take_weights
from headwise.recipes.settings import ModelSettings, Recipe
from headwise.tasks.outcome import Outcome
from headwise.tasks.positions import Positions
from headwise.tasks.significance import Statistic
from headwise.training.batching import Items

Advance = Callable[[int], None]  # called with the number of items that are done


# Why many tasks refuse an option.
ONE_EACH = "it makes one prediction of each input"
PRINTED = "its predictions are printed, and `> FILE` writes them"


@dataclass(frozen=True)
class Wish:
    """The arguments of `headwise predict`.

    Attributes:
        echo: tells a line of text, and by keywords what stands in it, as JSON has it.
        inputs: files or texts.
        texts: texts that are not taken for files.
        number: how many texts to write for each prompt, or how many images to draw; None for the
            task's default.
        output: the file to write; None for the task's default.
    """

    echo: Callable[..., None]
    inputs: Sequence[str] = ()
    texts: Sequence[str] = ()
    number: int | None = None
    output: Path | None = None

    def refuse(self, task: str, **reasons: str) -> None:
        """Raises `ValueError` if the user gave an option that a task does not have, and why."""
        names = {"inputs": "INPUT", "texts": "--text"}
        for option, reason in reasons.items():
            if getattr(self, option):
                name = names.get(option, f"--{option}")
                raise ValueError(f"{name} is not for a run of {task}: {reason}; leave it out")

    def lines(self, default: list[str] | None = None) -> list[str]:
        """The texts of the command: the lines of its files, and what is no file itself.

        Without any it is the default, or else what standard input has.
        """
        if not self.inputs and not self.texts:
            read = decoded_lines(sys.stdin.buffer, "standard input")
            return list(read) if default is None else default
        lines: list[str] = []
        for each in self.inputs:
            if os.path.exists(each):  # noqa: PTH110 - a Path raises errors for long texts
                lines += read_lines(Path(each))
            elif any(map(str.isspace, each)):
                lines.append(each)
            else:
                raise ValueError(
                    f"INPUT is {shown(each)}, expected a file that is there, or a text with white "
                    f"space in it; give any other text by --text"
                )
        lines += self.texts
        if wrong := [line for line in lines if not is_unicode(line)]:
            raise ValueError(
                f"INPUT or --text is {shown(wrong[0])}, expected text in UTF-8; convert it, for "
                f"example with `iconv -f LATIN1 -t UTF-8`, or give it in a file that is UTF-8"
            )
        return lines


class Task(ABC):
    """The data of a recipe, with the batches, the scores and the samples of its task.

    Attributes:
        train, validation, test: the encoded items of each part.
        tests: the encoded items of each further test set by its name.
        notes: facts about the data for the screen and the report: label to text.
    """

    recipe_class: ClassVar[type[Recipe]]
    model_class: ClassVar[type[HeadwiseModel]]
    loss_name: ClassVar[str] = "nats per token"  # the unit of the validation loss
    # Whether the exponential of the loss is a perplexity of tokens, which tables then show.
    loss_has_perplexity: ClassVar[bool] = True
    item_name: ClassVar[str] = "sentences"  # the unit of evaluation and of the bootstrap
    saved: ClassVar[tuple[str, ...]] = ("tokenizer",)  # files or folders that `save` writes
    encoding_name: ClassVar[str] = "vocabulary"
    pipeline: ClassVar[str | None] = None  # what transformers' pipelines and the hub call the task
    centre: ClassVar[Literal["mean", "median"]] = "mean"  # over seeds, as papers report it
    macs_lengths: ClassVar[dict[str, int]]  # see `cost_lengths`
    # Keys of a recipe that the evaluation of a finished run reads, with those below them.
    evaluation_keys: ClassVar[tuple[str, ...]] = ("data", "evaluation")
    # Keys, besides those of the data, on which the items of the scores depend; see `digest_of`.
    item_keys: ClassVar[tuple[str, ...]] = ()
    macs_lengths_from: ClassVar[str] = ""  # who counts at these lengths, if the recipe does not

    train: Items
    validation: Items
    test: Items
    tests: dict[str, Items]
    notes: dict[str, str]

    @classmethod
    def name(cls) -> str:
        """Returns the task's name in recipes."""
        return cls.recipe_class.model_fields["task"].default

    @classmethod
    @abstractmethod
    def prepare(cls, recipe: Any, folder: Path | None = None) -> Self:
        """Reads the data and learns the encoding from them, such as a vocabulary or a palette.

        Args:
            recipe: a recipe of this task.
            folder: folder of a run. If it contains a saved encoding, this is loaded.

        Raises:
            ValueError: the data cannot be read; the message names the file and how to mend it.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the encoding to the folder of a run; each file is written whole or not at all."""

    def save_for_tools(self, folder: Path, recipe: Any) -> None:  # noqa: B027
        """Writes what other tools need beside a model's weights, such as a tokenizer.

        Args:
            folder: an empty folder, whose files are put into that of the model.
            recipe: the recipe of the run.
        """

    @abstractmethod
    def digest(self) -> str:
        """Returns a hash of the data, by which runs on different data are told apart.

        Further test sets do not count, since they have no part in training.
        """

    @abstractmethod
    def digest_of(self, part: str) -> str:
        """Returns a hash of the items of one part, or of a further test set.

        Runs whose hashes of a part are equal are scored on the same items in the same unit. So the
        hash depends on the encoding where a score counts tokens or colours of it.
        """

    def part(self, name: str) -> Items:
        """Returns the items of a part, or of a further test set."""
        return getattr(self, name) if name in PARTS else self.tests[name]

    @classmethod
    @abstractmethod
    def nominal_config(cls, recipe: Any) -> TransformerConfig:
        """Returns the configuration of a recipe's model without reading data, to count its cost."""

    @classmethod
    def cost_lengths(cls, recipe: Any) -> dict[str, int]:
        """Returns the length in each stack for which multiply-accumulates are counted."""
        return cls.macs_lengths

    @classmethod
    def compare_notes(cls, recipes: Mapping[str, Any]) -> dict[str, str]:
        """Returns what makes a comparison of systems unfair, the first of them the baseline."""
        return {}

    @abstractmethod
    def model_config(self, settings: Any) -> TransformerConfig:
        """Returns the configuration of a model for these data."""

    def longest_input(self) -> int:
        """Returns the number of tokens of the longest sequence that a model reads for an item."""
        return max(int(np.max(part.lengths)) for part in (self.train, self.validation, self.test))

    def check_positions(self, config: TransformerConfig) -> None:
        """Raises `ValueError` if an item is longer than the learned positions of a model."""
        if config.max_positions is not None and (longest := self.longest_input()) > (
            config.max_positions
        ):
            raise ValueError(
                f"model.max_positions is {config.max_positions}, expected at least {longest}: so "
                f"many tokens has the longest of the {self.item_name}; raise it, leave out long "
                f"{self.item_name}, or set model.positions to sinusoidal"
            )

    def build_model(self, settings: ModelSettings) -> HeadwiseModel:
        """Returns a model for these data with random weights."""
        return self.model_class(self.model_config(settings))

    def start_from(self, model: HeadwiseModel, run: Path) -> None:
        """Gives a model the weights of a finished run, see `model.pretrained`.

        Raises:
            ValueError: the run has no model, or one of another kind or of other sizes, or it
                encodes data otherwise.
        """
        self.check_encoding(run)
        take_weights(model, read_pretrained(self.model_class, run, model.config), run)

    @classmethod
    def encoding_folder(cls, recipe: Recipe, folder: Path | None) -> Path | None:
        """Returns the folder of the run whose encoding `prepare` is to load, if it has one.

        That is the folder itself, or that of the run that the model starts from.
        """
        if folder is not None and all((folder / name).exists() for name in cls.saved):
            return folder
        run = recipe.pretrained_run()
        return folder if run is None else finished_run(run, cls.saved)

    def encoding(self) -> str:
        """Returns what tells the encoding from others; empty if none is learned."""
        return ""

    @classmethod
    def encoding_of(cls, run: Path) -> str:
        """Returns the same of a finished run, from its folder."""
        return ""

    def check_encoding(self, run: Path) -> None:
        """Raises `ValueError` if a finished run encodes data otherwise."""
        if self.encoding_of(finished_run(run, self.saved)) != self.encoding():
            raise ValueError(
                f"model.pretrained is {run}, expected a model with the {self.encoding_name} of "
                f"this run or comparison: all systems of a comparison share one; pretrain them in "
                f"one comparison, and start each of them from its run there"
            )

    @abstractmethod
    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        """Joins items into a batch: keyword arguments of the model's forward, with `labels`.

        Labels are -100 where the model predicts nothing.
        """

    def positions(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """Returns what stands at the positions of a batch of each stack, `encoder` or `decoder`."""
        return {}

    def measure(self, model: HeadwiseModel) -> dict[str, float]:
        """Returns figures to record at each validation in addition to the loss: name to value."""
        return {}

    @abstractmethod
    def evaluate(
        self, model: HeadwiseModel, part: Items, evaluation: Any, advance: Advance
    ) -> Outcome:
        """Returns the scores, samples and pictures of a trained model on one part.

        Args:
            model: the model in evaluation mode, with the ablation of `evaluation` applied.
            part: the items of one part.
            evaluation: settings of the recipe.
            advance: called with the number of items that were finished, for a progress bar.
        """

    @classmethod
    @abstractmethod
    def statistic(cls, name: str, evaluation: Any) -> Statistic:
        """Returns what computes a score, which has this name, from the items of an `Outcome`."""

    def decode(self, model: HeadwiseModel, evaluation: Any) -> int | None:
        """Generates from some items of the test part, to measure how fast a model does.

        All models generate equally many tokens from the same items.

        Returns:
            The number of generated tokens; None if the task generates nothing.
        """
        return None

    @classmethod
    @abstractmethod
    def predict(cls, run: Path, recipe: Any, model: HeadwiseModel, wish: Wish) -> None:
        """Prints or writes what a finished run makes of new input, for `headwise predict`.

        Raises:
            ValueError: the task does not have an option of `wish`, or lacks one.
        """
