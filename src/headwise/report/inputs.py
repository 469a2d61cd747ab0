"""The one input on which `headwise explore` shows models at work, and what stands at its positions.

A text is read by any model of texts, with its tokenizer. An item of the data, an image and a sound
are read by the model of a run, as its task reads them.
"""

import base64
import inspect
import io
import wave
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn

from headwise.data.load import lines
from headwise.data.palette import Palette
from headwise.data.pixels import pixels_of
from headwise.data.sound import Waveform, analyse, hop_of, read_channels, resampled
from headwise.data.tokenizers import read_tokenizer, token_names
from headwise.messages import one_of
from headwise.models.inspect import evaluating
from headwise.ops.labels import IGNORED_LABEL
from headwise.report.open_model import hide_words, longest_input, task_of
from headwise.runs import evaluate
from headwise.runs.names import MODEL
from headwise.tasks.enhancing import enhance
from headwise.tasks.images import Images, draw_images
from headwise.tasks.speech import SpeechEnhancement
from headwise.tasks.task import Positions, Task

UNKNOWN = -1  # a label that is predicted, but not known
MOST_TOKENS = 2048  # that a page shows
_QUIET = 80  # decibels below the loudest that a spectrogram shows


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
        labels: what is true of it, as the model takes labels; -100 where nothing is predicted, and
            `UNKNOWN` where that is not known. None: nothing is known.
        is_own: whether the labels are what the model itself has written.
        stacks: what stands at the positions of each stack.
        made: what the model writes, draws or enhances, as the page shows it.
        says: what the input is, for the reader.
        sound: of speech, the waveform and its rate.
        digest: of the data that the item is of.
    """

    batch: dict[str, Tensor]
    labels: Tensor | None
    stacks: Mapping[str, Positions]
    is_own: bool = False
    made: list[dict[str, Any]] = field(default_factory=list)
    says: str = ""
    sound: tuple[Waveform, int] | None = None
    digest: str = ""


def of_batch(
    model: nn.Module, batch: Mapping[str, Tensor], stacks: Mapping[str, Positions], **more: Any
) -> Given:
    """Returns a batch of one sequence, whose labels are told apart from what the model reads.

    A decoder reads the labels one position later, if nothing else is given to it.
    """
    device = next(model.parameters()).device
    given = {name: tensor.to(device) for name, tensor in batch.items()}
    sizes = {tensor.size(0) for tensor in given.values()}
    if sizes != {1}:
        raise ValueError(f"the batch has {sizes} sequences, expected 1: a page shows a single one")
    labels, shift = given.pop("labels", None), "prepare_decoder_input_ids_from_labels"
    if labels is not None and hasattr(model, shift) and "decoder_input_ids" not in given:
        given["decoder_input_ids"] = getattr(model, shift)(labels=labels)
    return Given(given, labels, stacks, **more)


# --- texts ----------------------------------------------------------------------------------------


def of_text(
    model: nn.Module, tokenizer: Any, text: str, target: str | None = None, into: Any = None
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
    texts = text.split("\t", 1) if task == "classification" else [text]
    batch = dict(tokenizer(*texts, return_tensors="pt", verbose=False))
    ids, labels, made = batch["input_ids"], None, []
    longest = longest_input(model, tokenizer)
    _check_length(ids, longest, "the text")
    names = token_names(tokenizer)
    if task == "translation":
        if target is None:
            labels = _generated(model, batch, longest)
        else:
            labels = torch.tensor([into(text_target=target)["input_ids"]])
            _check_length(labels, longest, "the target")
        written = into.decode(labels[0], skip_special_tokens=True)
        made = [{"label": "translation" if target is None else "target", "text": written}]
    elif task == "language-modelling":
        end = getattr(tokenizer, "eos_token_id", None)
        if ids.size(1) > 1 and ids[0, -1] == end:  # the text goes on
            batch = {name: tensor[:, :-1] for name, tensor in batch.items()}
        labels = batch["input_ids"]
    elif task == "masked-language-modelling":
        batch["input_ids"], labels = _hidden(ids, tokenizer)
    elif not task:  # a module of any kind, which takes token ids first
        taken = list(inspect.signature(model.forward).parameters)
        name = "input_ids" if "input_ids" in taken else taken[0]
        return of_batch(model, {name: ids}, {"input": Positions.of_tokens(ids, names)}, says=text)
    given = of_batch(model, batch if labels is None else {**batch, "labels": labels}, {}, says=text)
    read = Positions.of_tokens(given.batch["input_ids"], names)
    given.stacks = {"decoder" if task == "language-modelling" else "encoder": read}
    if task == "translation":
        tokens = given.batch["decoder_input_ids"]
        given.stacks["decoder"] = Positions.of_tokens(tokens, token_names(into))
    given.made, given.is_own = made, task == "translation" and target is None
    return given


def _check_length(ids: Tensor, longest: int | None, what: str) -> None:
    for most, who in ((longest, "the model reads"), (MOST_TOKENS, "the page shows")):
        if most is not None and not 0 < ids.size(1) <= most:
            raise ValueError(
                f"{what} has {ids.size(1):,} tokens, expected 1 to {most:,}: {who} no more; give a "
                f"shorter one"
            )


def _generated(model: Any, batch: dict[str, Tensor], longest: int | None) -> Tensor:
    """Generates the output of an encoder-decoder model, without the token that starts it."""
    most = 2 * batch["input_ids"].size(1) + 20
    given = {name: tensor.to(model.device) for name, tensor in batch.items()}
    with torch.no_grad(), evaluating(model):
        made = model.generate(**given, max_new_tokens=min(most, (longest or most + 1) - 1))
    return made[:, 1:].cpu()


def _hidden(ids: Tensor, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Returns a text with masks, and what stands behind them as far as that is known."""
    mask = ids == tokenizer.mask_token_id
    if not mask.any():
        hidden = hide_words({"input_ids": ids}, tokenizer)
        return hidden["input_ids"], hidden["labels"]
    return ids, torch.full_like(ids, IGNORED_LABEL).masked_fill(mask, UNKNOWN)


# --- runs -----------------------------------------------------------------------------------------


def of_run(folder: Path, recipe: Any, model: Any, source: Source, console: Console) -> Given:
    """Returns a text, a file or an item of the data, as the model of a run reads it."""
    kind = evaluate.task_class(recipe.task)
    reads_text = not issubclass(kind, Images | SpeechEnhancement)
    if source.target is not None and recipe.task != "translation":
        raise ValueError(f"--target is for translation, but {folder} is a run of {recipe.task}")
    if source.text is not None and not reads_text:
        raise ValueError(
            f"--text is for models of texts, but {folder} is a run of {recipe.task}: give a file "
            f"by --input, or an item of the data by --item"
        )
    if source.text is None and source.file is None:
        return _of_item(folder, recipe, model, source, console)
    if reads_text:
        tokenizer, own = read_tokenizer(folder / MODEL), folder / MODEL / "target"
        into = read_tokenizer(own) if own.is_dir() else tokenizer
        return of_text(model, tokenizer, text_of(source), source.target, into)
    return (_image if issubclass(kind, Images) else _sound)(folder, recipe, model, source)


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
    says = f"Item {number} of the {len(items):,} of the {part} part"
    given = of_batch(model, batch, task.describe(batch), says=says, digest=Task.digest(task, part))
    if recipe.task == "translation":
        source_alone = {name: batch[name] for name in ("input_ids", "attention_mask")}
        written = _generated(model, source_alone, model.config.max_positions)
        text = task.target.decode(written[0], skip_special_tokens=True)
        given.made = [{"label": "translation", "text": text}]
    elif isinstance(task, Images):
        given.made = _drawn(model, task.palette, recipe, batch["input_ids"])
    elif isinstance(task, SpeechEnhancement):
        draw = np.random.default_rng((*items.seed, items.epoch, number))
        noisy, clean = items.seen(items.rows[number], draw)
        given.sound, given.made = (noisy, recipe.data.rate), _heard(model, noisy, clean)
    return given


def _image(folder: Path, recipe: Any, model: Any, source: Source) -> Given:
    palette = Palette.load(folder / MODEL)
    pixels = pixels_of({"bytes": None, "path": str(source.file)}, palette.shape)
    ids = torch.from_numpy(palette.encode(pixels[None]))
    colours = Positions.of_tokens(ids, palette.names, "colour")
    stacks = {"decoder": replace(colours, size=palette.shape[:2])}
    made = _drawn(model, palette, recipe, ids)
    return of_batch(model, {"input_ids": ids, "labels": ids}, stacks, made=made, says=_name(source))


def _sound(folder: Path, recipe: Any, model: Any, source: Source) -> Given:
    rate = model.config.sampling_rate
    channels, own = read_channels({"path": str(source.file)})
    whole = resampled(channels.mean(1), own, rate)
    noisy = whole[: (model.config.window - 1) * hop_of(rate)]
    frames, says = analyse(torch.tensor(noisy)[None], rate).abs(), _name(source)
    if len(noisy) < len(whole):
        seconds = f"{len(noisy) / rate:.1f} of {len(whole) / rate:.1f} seconds"
        says += f": the first {seconds}, which the model reads at once"
    stacks = {"decoder": Positions((1, frames.size(1)), word="frame")}
    made, sound = _heard(model, noisy, None), (noisy, rate)
    return of_batch(model, {"inputs": frames}, stacks, made=made, says=says, sound=sound)


def _name(source: Source) -> str:
    return Path(str(source.file)).name


def _drawn(model: Any, palette: Palette, recipe: Any, ids: Tensor) -> list[dict[str, Any]]:
    """Returns the pictures of an image, and of its upper half as the model completes it."""
    given = palette.height // 2 * palette.width
    drawn = draw_images(model, palette, recipe.evaluation, ids[:, : given + 1]) if given else None
    images = {"image": palette.decode(ids)[0]}
    images |= {} if drawn is None else {"its upper half, completed by the model": drawn[0]}
    found = []
    for label, image in images.items():
        content = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(image)).save(content, "PNG")
        found.append({"label": label, "picture": data_uri("image/png", content.getvalue())})
    return found


def _heard(model: Any, noisy: Waveform, clean: Waveform | None) -> list[dict[str, Any]]:
    """Returns the enhanced speech, and the clean speech if it is known, as sounds."""
    sounds = {"enhanced": enhance(model, noisy)} | ({} if clean is None else {"clean": clean})
    rate = model.config.sampling_rate
    return [
        {"label": label, "sound": sound_uri(heard, rate), "loudness": loudness(heard, rate)}
        for label, heard in sounds.items()
    ]


def loudness(sound: Waveform, rate: int) -> dict[str, Any]:
    """Computes the spectrogram of a sound, `(frames, bins)`, from 0 (80 dB down) to 1 (loudest)."""
    magnitudes = analyse(torch.tensor(sound)[None], rate)[0].abs().numpy()
    shares = magnitudes / (magnitudes.max() or 1.0)
    return packed(np.maximum(0, 1 + 20 * np.log10(np.maximum(shares, 1e-9)) / _QUIET))


def sound_uri(sound: Waveform, rate: int) -> str:
    """Writes a sound as a WAV file of 16 bits; one that is too loud for it is made quieter."""
    loudest, content = max(1.0, float(np.abs(sound).max(initial=0.0))), io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((sound / loudest * 32767).round().astype("<i2").tobytes())
    return data_uri("audio/wav", content.getvalue())


def data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def packed(array: np.ndarray, kind: str = "") -> dict[str, Any]:
    """Packs an array for a browser: deflated and in base64, with its shape.

    Weights take a byte each, of the root of their share of the largest, so that small ones have
    finer steps; where some are negative, the byte of 0 is 128. Other kinds of NumPy stay as they
    are.

    >>> packed(np.array([[1.0, 0.0], [0.25, 0.5]]))["shape"]
    [2, 2]
    """
    scale = 1.0
    if not kind:
        kind, scale = "root", float(np.abs(array).max(initial=0.0)) or 1.0
        roots = np.sign(array) * np.sqrt(np.abs(array) / scale)
        if array.min(initial=0.0) < 0:
            kind, roots = "signed root", (roots * 127 + 128) / 255
        data = (roots * 255).round().astype(np.uint8)
    else:
        data = array.astype(np.dtype(kind).newbyteorder("<"))
    text = base64.b64encode(zlib.compress(data.tobytes())).decode("ascii")
    return {"shape": list(array.shape), "kind": kind, "scale": scale, "data": text}
