"""The input that a user asks for, and a model's reading of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from headwise.data.division import PARTS
from headwise.data.sources import read_lines
from headwise.data.tokenizers.tokenization import TOKENIZER, TextTokenizer, TranslationTokenizer
from headwise.recipes.catalogue import task_class
from headwise.report.explorer.payload import Item, Output, Stack
from headwise.tasks.task import Task

MOST_TOKENS = 2048  # that the page shows


@dataclass(frozen=True)
class Source:
    """The input that a user asks for: a text, a file, or an item of the data.

    Attributes:
        text: the text; None if the input is something else.
        target: what the decoder of a translation is to read; None for the model's own translation.
        file: a text file, an image or a sound.
        part: the part of the data of which the item is.
        item: its number.
    """

    text: str | None = None
    target: str | None = None
    file: Path | None = None
    part: str = "test"
    item: int = 0


@dataclass
class Trained:
    """A model of headwise with what its run says of it.

    Attributes:
        name: the name of the run.
        folder: its folder.
        recipe: its recipe.
        model: its model, in evaluation mode.
    """

    name: str
    folder: Path
    recipe: Any
    model: Any

    @cached_property
    def task(self) -> Task:
        """The task with its data, which are read when they are first asked for."""
        return task_class(self.recipe.task).prepare(self.recipe, self.folder)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer of a task that reads texts."""
        return TextTokenizer.load(self.folder / TOKENIZER)

    @cached_property
    def pair_tokenizer(self) -> TranslationTokenizer:
        """The tokenizer of a task that translates."""
        return TranslationTokenizer.load(self.folder / TOKENIZER)

    def item(self, source: Source) -> tuple[Any, Item]:
        """Returns a part of the data, and which of its items a source asks for.

        Raises:
            ValueError: there is no such part, or no item of that number.
        """
        known = [*PARTS, *self.task.tests]
        if source.part not in known:
            raise ValueError(f"part is {source.part!r}, expected one of {', '.join(known)}")
        items = self.task.part(source.part)
        if not 0 <= source.item < len(items):
            raise ValueError(
                f"item is {source.item}, expected 0 to {len(items) - 1}: so many items has the "
                f"part {source.part}"
            )
        return items, Item(part=source.part, number=source.item, of=len(items))


@dataclass(frozen=True)
class Input:
    """One input, as a model reads it.

    Attributes:
        arguments: of the model's forward, a batch of one sequence.
        stacks: what stands at its positions.
        output: makes what the page shows of what the model returns.
        text: the input as a text, if it is one.
        item: the item of the data that it is, if it is one.
        note: what a reader should know of the input.
    """

    arguments: dict[str, Tensor]
    stacks: dict[str, Stack]
    output: Callable[[Any], Output]
    text: str | None = None
    item: Item | None = None
    note: str = ""


def given_text(source: Source) -> str | None:
    """Returns the text that a user gives, or has put into a file; None without one.

    Raises:
        ValueError: the text is empty, or the file cannot be read.
    """
    text = source.text
    if source.file is not None:
        text = "\n".join(read_lines(source.file))
    if text is not None and not text.strip():
        where = "text" if source.file is None else str(source.file)
        raise ValueError(f"{where} is empty, expected a text for the model to read")
    return text


def check_length(ids: list[int], longest: int | None, what: str) -> None:
    """Raises `ValueError` if a model cannot read so many tokens, or the page show them.

    Args:
        ids: the tokens.
        longest: how many the model can read; None if there is no limit.
        what: what they are, as it stands in a sentence: the text.
    """
    for most, who in ((longest, "the model reads"), (MOST_TOKENS, "the page shows")):
        if most is not None and len(ids) > most:
            raise ValueError(
                f"{what} has {len(ids):,} tokens, expected at most {most:,}: {who} no more; give "
                f"a shorter one"
            )
