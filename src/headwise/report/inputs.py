"""The one input on which `headwise explore` shows models at work, and what stands at its positions.

A text is read by any model of texts, with its tokenizer. An item of the data, an image and a sound
are read by the model of a run, as its task reads them.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from headwise.data.load import lines
from headwise.data.palette import Palette
from headwise.data.pixels import pixels_of
from headwise.data.sound import Waveform, analyse, hop_of, read_channels, resampled
from headwise.data.tokenizers import read_tokenizer
from headwise.messages import one_of
from headwise.models.inspect import evaluating
from headwise.ops.labels import IGNORED_LABEL
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

MOST_TOKENS = 2048  # of a text that a page shows
_FRAME = 0.016  # seconds from one frame of a sound to the next


@dataclass
class Source:
    """What a user asks to see: a text, or a file, or an item of a part of the data."""

    text: str | None = None
    target: str | None = None  # what the decoder of a translation model reads
    file: Path | None = None
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
    model: nn.Module, batch: Mapping[str, Tensor], stacks: Mapping[str, Positions], says: str = ""
) -> Given:
    """Returns a batch of one sequence, whose labels are told apart from what the model reads."""
    device = next(model.parameters()).device
    given = with_decoder_inputs(model, {name: each.to(device) for name, each in batch.items()})
    sizes = {tensor.size(0) for tensor in given.values()}
    if sizes != {1}:
        raise ValueError(f"the batch has {sizes} sequences, expected 1: a page shows a single one")
    return Given(given, given.pop("labels", None), stacks, says)


# --- texts ----------------------------------------------------------------------------------------


def of_text(
    model: Any, tokenizer: Any, text: str, target: str | None = None, into: Any = None
) -> Given:
    """Returns a text as a model reads it, with the tokenizer `into` for what a decoder reads.

    Of two texts for a classifier, a tab stands between them. A translation model without a target
    reads what it writes itself. From a masked language model one token in seven is hidden, if no
    mask stands in the text.

    Raises:
        ValueError: the text is empty, or longer than the model or a page can take.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"text is {text!r}, expected a text for the model to read")
    task, into = task_of(model), into or tokenizer
    if target is not None and task != "translation":
        raise ValueError(f"target is given, but a {type(model).__name__} reads none: leave it out")
    batch = text_batch(model, tokenizer, text, target, into=into, cut=False)
    longest = min(longest_input(model, tokenizer) or MOST_TOKENS, MOST_TOKENS)
    for tokens in batch.values():
        if tokens.size(1) > longest:
            raise ValueError(
                f"the text has {tokens.size(1):,} tokens, expected at most {longest:,}, which "
                f"model and page can take: give a shorter one"
            )
    made, is_true = [], True
    if task == "translation" and target is None:
        most = min(2 * batch["input_ids"].size(1) + 20, longest - 1)
        with evaluating(model):  # what starts the decoder is no label
            batch["labels"] = model.generate(**batch, max_new_tokens=most)[:, 1:]
        written = into.decode(batch["labels"][0], skip_special_tokens=True)
        made, is_true = [{"label": "translation", "text": written}], False
    elif task == "language-modelling":
        ends = batch["input_ids"][0, -1] == tokenizer.eos_token_id
        if ends and batch["input_ids"].size(1) > 1:  # the text goes on
            batch = {name: tokens[:, :-1] for name, tokens in batch.items()}
    elif task == "masked-language-modelling":
        is_shown = batch["input_ids"] != tokenizer.mask_token_id
        is_true = bool(is_shown.all())
        masks = batch["input_ids"].masked_fill(is_shown, IGNORED_LABEL)
        batch = hide_words(batch, tokenizer) if is_true else {**batch, "labels": masks}
    given = of_batch(model, batch, {}, text)
    given.stacks = describe_text(tokenizer, into)(given.batch)
    given.made, given.is_true = made, is_true
    taken = list(inspect.signature(model.forward).parameters)
    if not task and "input_ids" not in taken:  # a module of any kind, which takes token ids first
        given.batch = {taken[0]: given.batch["input_ids"]}
    return given


# --- runs -----------------------------------------------------------------------------------------


def of_run(folder: Path, recipe: Any, model: Any, source: Source, console: Console) -> Given:
    """Returns a text, a file or an item of the data, as the model of a run reads it."""
    kind = evaluate.task_class(recipe.task)
    reads_text = not issubclass(kind, Images | SpeechEnhancement)
    if source.text is not None and not reads_text:
        raise ValueError(
            f"--text is for models of texts, but {folder} is a run of {recipe.task}: give a file "
            f"by --input, or an item of the data by --item"
        )
    if source.text is None and source.file is None:
        if source.target is not None:
            raise ValueError("--target is given without --text, expected the text that it is of")
        return _of_item(folder, recipe, model, source, console)
    if reads_text:
        tokenizer, own = read_tokenizer(folder / MODEL), folder / MODEL / "target"
        into = read_tokenizer(own) if own.is_dir() else None
        return of_text(model, tokenizer, text_of(source), source.target, into)
    says = Path(str(source.file)).name
    if issubclass(kind, Images):
        palette = Palette.load(folder / MODEL)
        pixels = pixels_of({"bytes": None, "path": str(source.file)}, palette.shape)
        given = _of_image(model, palette, torch.from_numpy(palette.encode(pixels[None])))
    else:
        channels, own_rate = read_channels({"path": str(source.file)})
        rate = model.config.sampling_rate
        whole = resampled(channels.mean(1), own_rate, rate)
        read = whole[: (model.config.window - 1) * hop_of(rate)]
        given = _of_sound(model, read)
        if len(read) < len(whole):
            seconds = f"{len(read) / rate:.1f} of {len(whole) / rate:.1f} seconds"
            says += f": the first {seconds}, which the model reads at once"
    given.says = says
    return given


def text_of(source: Source) -> str:
    """Returns the text that a user gives, or has in a file."""
    if source.file is not None:
        return "\n".join(lines(str(source.file)))
    if source.text is None:
        raise ValueError("a model of no run has no data: give a text by --text or --input")
    return source.text


def _of_item(folder: Path, recipe: Any, model: Any, source: Source, console: Console) -> Given:
    task: Any = evaluate.task_of(folder, recipe, console)
    part, number = source.part, source.item
    if part not in task.parts:
        raise ValueError(f"--part is {part!r}, {one_of(part, task.parts)}")
    items = task.stored(part)
    if number >= len(items):
        raise ValueError(f"--item is {number}, but {part} has {len(items)} items, counted from 0")
    batch = task.collate([items[number]])
    if isinstance(task, Images):
        given = _of_image(model, task.palette, batch["input_ids"])
    elif isinstance(task, SpeechEnhancement):
        draw = np.random.default_rng((*items.seed, items.epoch, number))
        noisy, clean = items.seen(items.rows[number], draw)
        given = _of_sound(model, noisy, clean)
    else:
        given = of_batch(model, batch, task.describe(batch))
    given.says = f"Item {number} of the {len(items):,} of the {part} part"
    given.digest = task.digest(part)
    return given


def _of_image(model: Any, palette: Palette, ids: Tensor) -> Given:
    """Returns an image as its model reads it: a token that begins it, then one for each pixel."""
    positions = Positions.of_tokens(ids, palette.names, "colour")
    stacks = {"decoder": replace(positions, size=palette.shape[:2])}
    given = of_batch(model, {"input_ids": ids, "labels": ids}, stacks)
    given.shown = {"picture": picture_uri(palette.decode(ids)[0])}
    return given


def _of_sound(model: Any, noisy: Waveform, clean: Waveform | None = None) -> Given:
    """Returns noisy speech, and the enhanced speech and the clean one, if it is known, to hear."""
    rate = model.config.sampling_rate
    batch = {"inputs": analyse(torch.tensor(noisy)[None], rate).abs()}
    heard = {"enhanced": enhance(model, noisy)}
    if clean is not None:
        magnitudes = analyse(torch.tensor(clean)[None], rate).abs()
        batch["labels"] = torch.log(magnitudes + model.config.floor)
        heard["clean"] = clean
    frames = batch["inputs"].size(1)
    names = {frame: f"{_FRAME * frame:.2f} s" for frame in range(frames)}
    positions = Positions.of_tokens(torch.arange(frames)[None], names, "frame")
    given = of_batch(model, batch, {"decoder": replace(positions, size=(1, frames))})
    note = f"From 0 to {names[frames - 1]} to the right, from 0 to {rate / 2000} kHz upwards."
    given.shown = {**sound_shown(noisy, rate), "note": note}
    given.made = [{"label": label, **sound_shown(each, rate)} for label, each in heard.items()]
    return given
