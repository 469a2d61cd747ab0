"""The one input on which `headwise explore` shows models at work, and its positions.

A text is read by any model of texts, with its tokenizer; an item of the data by the model of a run.
"""

import base64
import inspect
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from rich.console import Console
from torch import Tensor, nn

from headwise.analysis.decisions import Batch
from headwise.data.tokenizers import read_tokenizer, token_names
from headwise.messages import expected_one_of
from headwise.models.inspect import eval_mode
from headwise.ops import IGNORED_LABEL
from headwise.recipes.recipe import task_class
from headwise.report.text_models import (
    describe_tokens,
    hide_words,
    longest_input,
    text_batch,
    text_task,
    with_decoder_inputs,
)
from headwise.runs.evaluate import read_task
from headwise.runs.names import MODEL
from headwise.tasks.images import Images
from headwise.tasks.speech import SpeechEnhancement
from headwise.tasks.task import Positions
from headwise.training.loss import on_device


class Source(NamedTuple):
    """What a user asks to see: a text, or an item of a split of the data."""

    text: str | None = None
    target: str | None = None  # the translation that the decoder reads
    split: str = "test"
    item: int = 0


@dataclass
class ModelInput:
    """One input as a model reads it.

    Attributes:
        batch: keyword arguments of the model's forward, one sequence.
        labels: what is to be predicted, as the model takes labels; None where nothing is known.
        stacks: the positions of each stack.
        text: the input in words.
        is_true: whether the labels are true; else the predictions of the model stand for them.
        translation: the translation that the model has generated, if it has.
        picture: the image whose pixels are the positions, as the address of a PNG.
        digest: of the data that the item is of.
    """

    batch: dict[str, Any]
    labels: Tensor | None
    stacks: Mapping[str, Positions]
    text: str = ""
    is_true: bool = True
    translation: str = ""
    picture: str = ""
    digest: str = ""


def batch_input(
    model: nn.Module, batch: Batch, stacks: Mapping[str, Positions] | None = None
) -> ModelInput:
    """Returns a batch of one sequence, without its labels in what the model reads."""
    device = next(model.parameters()).device
    inputs = with_decoder_inputs(model, on_device(batch, device))
    sizes = {x.size(0) for x in inputs.values() if isinstance(x, Tensor)}
    if sizes != {1}:
        raise ValueError(f"the batch has {sizes} sequences, expected 1: a page shows a single one")
    labels = inputs.pop("labels", None)
    return ModelInput(inputs, labels, describe_tokens()(inputs) if stacks is None else stacks)


def text_input(
    model: Any, tokenizer: Any, text: str, target: str | None = None, target_tokenizer: Any = None
) -> ModelInput:
    """Returns a text as a model reads it; a decoder may have a tokenizer of its own.

    Of two texts for a classifier, a tab stands between them. A translation model without a target
    reads its own translation. From a masked language model one token in seven is hidden, if no
    mask is in the text. A text that is too long for the model is cut, which the page says.

    Raises:
        ValueError: the text is empty, or the model takes no target.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"text is {text!r}, expected a text for the model to read")
    task, longest = text_task(model), longest_input(model, tokenizer)
    target_tokenizer = target_tokenizer or tokenizer
    if target is not None and task != "translation":
        raise ValueError(f"target is given, but a {type(model).__name__} reads none: leave it out")
    batch = text_batch(model, tokenizer, text, target, target_tokenizer)
    tokens = batch["input_ids"].size(1)
    translation, is_true = "", True
    if task == "translation" and target is None:
        new_tokens = min(2 * tokens + 20, (longest or 1000) - 1)
        with eval_mode(model):  # what starts the decoder is no label
            batch["labels"] = model.generate(**batch, max_new_tokens=new_tokens)[:, 1:]
        translation = target_tokenizer.decode(batch["labels"][0], skip_special_tokens=True)
        is_true = False
    elif task == "masked-language-modelling":
        is_shown = batch["input_ids"] != tokenizer.mask_token_id
        is_true = bool(is_shown.all())
        masks = batch["input_ids"].masked_fill(is_shown, IGNORED_LABEL)
        batch = hide_words(batch, tokenizer) if is_true else {**batch, "labels": masks}
    model_input = batch_input(model, batch)
    names, target_names = token_names(tokenizer), token_names(target_tokenizer)
    model_input.stacks = describe_tokens(names, target_names)(model_input.batch)
    model_input.text, model_input.translation, model_input.is_true = text, translation, is_true
    if tokens == longest:
        model_input.text += f"\nThe model reads the first {tokens:,} tokens of it."
    arguments = list(inspect.signature(model.forward).parameters)
    if not task and "input_ids" not in arguments:  # any module, which takes token ids first
        model_input.batch = {arguments[0]: model_input.batch["input_ids"]}
    return model_input


def run_input(
    folder: Path, recipe: Any, model: Any, source: Source, console: Console
) -> ModelInput:
    """Returns a text or an item of the data, as the model of a run reads it."""
    if source.text is None:
        if source.target is not None:
            raise ValueError("--target is given without --text, expected the text that it is of")
        return _item_input(read_task(folder, recipe, console), model, source)
    if issubclass(task_class(recipe.task), Images | SpeechEnhancement):
        raise ValueError(
            f"--text is for models of texts, but {folder} is a run of {recipe.task}: show an item "
            f"of the data by --item"
        )
    tokenizer, target_folder = read_tokenizer(folder / MODEL), folder / MODEL / "target"
    target_tokenizer = read_tokenizer(target_folder) if target_folder.is_dir() else None
    return text_input(model, tokenizer, source.text, source.target, target_tokenizer)


def _item_input(task: Any, model: Any, source: Source) -> ModelInput:
    split, number = source.split, source.item
    if split not in task.splits:
        raise ValueError(f"--split is {split!r}, {expected_one_of(split, task.splits)}")
    items = task.stored_items(split)
    if number >= len(items):
        raise ValueError(f"--item is {number}, but {split} has {len(items)} items, counted from 0")
    batch = task.collate([items[number]])
    model_input = batch_input(model, batch, task.describe(batch))
    if isinstance(task, Images):
        png = io.BytesIO()
        pixels = task.palette.decode(model_input.batch["input_ids"].cpu())[0]
        Image.fromarray(pixels, "RGB").save(png, "PNG")
        content = base64.b64encode(png.getvalue()).decode("ascii")
        model_input.picture = f"data:image/png;base64,{content}"
    model_input.text = f"Item {number} of the {len(items):,} of the {split} split"
    model_input.digest = task.content_hash(split)
    return model_input
