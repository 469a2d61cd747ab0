"""The one input on which `headwise explore` shows models at work, and what stands at its positions.

A text is read by any model of texts, with its tokenizer; an item of the data by the model of a run.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor, nn

from headwise.data.sound import Waveform, analyse
from headwise.data.tokenizers import read_tokenizer
from headwise.messages import expected_one_of
from headwise.models.inspect import evaluating
from headwise.ops import IGNORED_LABEL
from headwise.report.open_model import (
    describe_text,
    hide_words,
    longest_input,
    task_of,
    text_batch,
    with_decoder_inputs,
)
from headwise.report.packing import picture_uri, sound_shown
from headwise.runs import evaluate
from headwise.runs.names import MODEL
from headwise.tasks.enhancing import enhance
from headwise.tasks.images import Images
from headwise.tasks.speech import SpeechEnhancement
from headwise.tasks.task import Positions

_FRAME = 0.016  # seconds from one frame of a sound to the next


class Source(NamedTuple):
    """What a user asks to see: a text, or an item of a part of the data."""

    text: str | None = None
    target: str | None = None  # what the decoder of a translation model reads
    part: str = "test"
    item: int = 0


@dataclass
class Given:
    """One input as a model reads it.

    Attributes:
        batch: keyword arguments of the model's forward, one sequence.
        labels: what is to be predicted, as the model takes labels; None where nothing is known.
        stacks: what stands at the positions of each stack.
        says: what the input is, for the reader.
        is_true: whether the labels are true; else what the model itself says stands for them.
        made: what the model writes or enhances: a label each, and a text or a sound.
        shown: the picture or the sound whose parts stand at the positions.
        digest: of the data that the item is of.
    """

    batch: dict[str, Tensor]
    labels: Tensor | None
    stacks: Mapping[str, Positions]
    says: str = ""
    is_true: bool = True
    made: list[dict[str, str]] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)
    digest: str = ""


def of_batch(
    model: nn.Module, batch: Mapping[str, Tensor], stacks: Mapping[str, Positions] | None = None
) -> Given:
    """Returns a batch of one sequence, whose labels are told apart from what the model reads."""
    device = next(model.parameters()).device
    given = with_decoder_inputs(model, {name: each.to(device) for name, each in batch.items()})
    sizes = {tensor.size(0) for tensor in given.values()}
    if sizes != {1}:
        raise ValueError(f"the batch has {sizes} sequences, expected 1: a page shows a single one")
    labels = given.pop("labels", None)
    return Given(given, labels, describe_text()(given) if stacks is None else stacks)


def of_text(
    model: Any, tokenizer: Any, text: str, target: str | None = None, into: Any = None
) -> Given:
    """Returns a text as a model reads it, with the tokenizer `into` for what a decoder reads.

    Of two texts for a classifier, a tab stands between them. A translation model without a target
    reads what it writes itself. From a masked language model one token in seven is hidden, if no
    mask stands in the text. A text that is too long for the model is cut, which the page says.

    Raises:
        ValueError: the text is empty, or the model takes no target.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"text is {text!r}, expected a text for the model to read")
    task, into, longest = task_of(model), into or tokenizer, longest_input(model, tokenizer)
    if target is not None and task != "translation":
        raise ValueError(f"target is given, but a {type(model).__name__} reads none: leave it out")
    batch = text_batch(model, tokenizer, text, target, into=into)
    tokens = batch["input_ids"].size(1)
    made, is_true = [], True
    if task == "translation" and target is None:
        most = min(2 * tokens + 20, (longest or 1000) - 1)
        with evaluating(model):  # what starts the decoder is no label
            batch["labels"] = model.generate(**batch, max_new_tokens=most)[:, 1:]
        written = into.decode(batch["labels"][0], skip_special_tokens=True)
        made, is_true = [{"label": "translation", "text": written}], False
    elif task == "masked-language-modelling":
        is_shown = batch["input_ids"] != tokenizer.mask_token_id
        is_true = bool(is_shown.all())
        masks = batch["input_ids"].masked_fill(is_shown, IGNORED_LABEL)
        batch = hide_words(batch, tokenizer) if is_true else {**batch, "labels": masks}
    given = of_batch(model, batch)
    given.stacks = describe_text(tokenizer, into)(given.batch)
    cut = f"\nThe model reads the first {tokens:,} tokens of it." if tokens == longest else ""
    given.says, given.made, given.is_true = f"{text}{cut}", made, is_true
    taken = list(inspect.signature(model.forward).parameters)
    if not task and "input_ids" not in taken:  # a module of any kind, which takes token ids first
        given.batch = {taken[0]: given.batch["input_ids"]}
    return given


def of_run(folder: Path, recipe: Any, model: Any, source: Source, console: Console) -> Given:
    """Returns a text or an item of the data, as the model of a run reads it."""
    kind = evaluate.task_class(recipe.task)
    if source.text is None:
        if source.target is not None:
            raise ValueError("--target is given without --text, expected the text that it is of")
        return _of_item(evaluate.task_of(folder, recipe, console), model, source)
    if issubclass(kind, Images | SpeechEnhancement):
        raise ValueError(
            f"--text is for models of texts, but {folder} is a run of {recipe.task}: show an item "
            f"of the data by --item"
        )
    own = folder / MODEL / "target"
    into = read_tokenizer(own) if own.is_dir() else None
    return of_text(model, read_tokenizer(folder / MODEL), source.text, source.target, into)


def _of_item(task: Any, model: Any, source: Source) -> Given:
    part, number = source.part, source.item
    if part not in task.parts:
        raise ValueError(f"--part is {part!r}, {expected_one_of(part, task.parts)}")
    items = task.stored(part)
    if number >= len(items):
        raise ValueError(f"--item is {number}, but {part} has {len(items)} items, counted from 0")
    if isinstance(task, SpeechEnhancement):
        given = _of_sound(model, *(wave[: items.size] for wave in items.whole(number)))
    else:
        batch = task.collate([items[number]])
        given = of_batch(model, batch, task.describe(batch))
    if isinstance(task, Images):
        pixels = task.palette.decode(given.batch["input_ids"].cpu())[0]
        given.shown = {"picture": picture_uri(pixels)}
    given.says = f"Item {number} of the {len(items):,} of the {part} part"
    given.digest = task.digest(part)
    return given


def _of_sound(model: Any, noisy: Waveform, clean: Waveform) -> Given:
    """Returns noisy speech, and the enhanced speech and the clean one to hear."""
    rate = model.config.sampling_rate
    of_noisy, of_clean = (analyse(torch.tensor(wave)[None], rate).abs() for wave in (noisy, clean))
    batch = {"inputs": of_noisy, "labels": torch.log(of_clean + model.config.floor)}
    frames = of_noisy.size(1)
    names = {frame: f"{_FRAME * frame:.2f} s" for frame in range(frames)}
    stack = Positions(
        (1, frames), torch.arange(frames)[None], names, word="frame", size=(1, frames)
    )
    given = of_batch(model, batch, {"decoder": stack})
    note = f"From 0 to {names[frames - 1]} to the right, from 0 to {rate / 2000} kHz upwards."
    given.shown = {**sound_shown(noisy, rate), "note": note}
    heard = {"enhanced": enhance(model, noisy), "clean": clean}
    given.made = [{"label": label, **sound_shown(each, rate)} for label, each in heard.items()]
    return given
