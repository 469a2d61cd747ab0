"""The input that a user asks for, and a model's reading of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from headwise.report.explorer.payload import Item, Output, Stack
from headwise.tasks.sources import read_lines
from headwise.tasks.splits import PARTS
from headwise.tasks.task import Items, Task
from headwise.tasks.text.tokenization import TOKENIZER, TextTokenizer, TranslationTokenizer

MOST_TOKENS = 2048

TaskType = TypeVar("TaskType", bound=Task)
TokenizerType = TypeVar("TokenizerType", TextTokenizer, TranslationTokenizer)


@dataclass(frozen=True)
class Source:
    """The input that a user asks for: a text, a file, or an item of the data.

    Attributes:
        text: the text; None if the input is something else.
        target: what the decoder of a translation is to read; None for the model's own translation.
        file: an image or a sound.
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
    _task: Task | None = None
    _tokenizer: Any = None

    def tokenizer(self, kind: type[TokenizerType]) -> TokenizerType:
        """Returns the tokenizer of the run, which is loaded once."""
        if self._tokenizer is None:
            self._tokenizer = kind.load(self.folder / TOKENIZER)
        assert isinstance(self._tokenizer, kind)
        return self._tokenizer

    def task(self, kind: type[TaskType]) -> TaskType:
        """Returns the task with its data, which are read when they are first asked for."""
        if self._task is None:
            self._task = kind.prepare(self.recipe, self.folder)
        assert isinstance(self._task, kind)
        return self._task


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


def chosen_item(items: Items, source: Source) -> Item:
    """Returns the item that a source asks for, if there is one of that number.

    Raises:
        ValueError: there is none.
    """
    if not 0 <= source.item < len(items):
        raise ValueError(
            f"item is {source.item}, expected 0 to {len(items) - 1}: so many items has the part "
            f"{source.part}"
        )
    return Item(part=source.part, number=source.item, of=len(items))


def part_of(task: Task, name: str) -> Items:
    """Returns a part of the data.

    Raises:
        ValueError: there is no such part.
    """
    known = [*PARTS, *task.tests]
    if name not in known:
        raise ValueError(f"part is {name!r}, expected one of {', '.join(known)}")
    return task.part(name)


def check_length(ids: list[int], longest: int | None, what: str) -> None:
    """Raises `ValueError` if a model cannot read so many tokens, or the page show them.

    Args:
        ids: the tokens.
        longest: how many the model can read; None if there is no limit.
        what: what they are, as it stands in a sentence: the text.
    """
    if longest is not None and len(ids) > longest:
        raise ValueError(
            f"{what} has {len(ids):,} tokens, expected at most {longest:,}: the model reads no "
            f"more; give a shorter one"
        )
    if len(ids) > MOST_TOKENS:
        raise ValueError(
            f"{what} has {len(ids):,} tokens, expected at most {MOST_TOKENS:,}: the page shows no "
            f"more; give a shorter one"
        )


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


def refuse_target(source: Source, task: str) -> None:
    """Raises `ValueError` if a target is given for a task that translates nothing."""
    if source.target is not None:
        raise ValueError(f"target is given, but a run of {task} translates nothing; leave it out")


def refuse_text(source: Source, task: str, expected: str) -> None:
    """Raises `ValueError` if a text is given to a task that reads none.

    Args:
        source: the input.
        task: name of the task.
        expected: what it reads.
    """
    refuse_target(source, task)
    if source.text is not None:
        raise ValueError(
            f"text is {source.text!r}, but a run of {task} reads no text; give {expected} with "
            f"--input, or an item with --item"
        )
