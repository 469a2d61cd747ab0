"""The input that a user asks for, and a model's reading of it; images and sounds among them.

Images are read pixel by pixel, sounds frame by frame; for texts see `texts`.
"""

import base64
import io
import wave
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from headwise.data.load import lines
from headwise.data.palette import Palette
from headwise.data.pixels import pixels_of
from headwise.data.sound import Waveform, analyse, hop_of, read_channels, resampled
from headwise.data.tokenizers import read_tokenizer
from headwise.messages import one_of
from headwise.report.explorer.payload import Blob, Item, Made, Output, Stack
from headwise.runs.evaluate import task_of
from headwise.runs.folder import MODEL
from headwise.tasks.enhancing import enhance
from headwise.tasks.images import draw_images
from headwise.tasks.task import Task

MOST_TOKENS = 2048  # that the page shows
_RANGE = 80  # decibels from the loudest to 0
_FRAME = 0.016  # seconds from one frame to the next


@dataclass(frozen=True)
class Source:
    """The input that a user asks for: a text, a file, or an item of the data."""

    text: str | None = None  # the text; None if the input is something else
    # What the decoder of a translation is to read; None for the model's own translation.
    target: str | None = None
    file: Path | None = None  # a text file, an image or a sound
    part: str = "test"  # the part of the data of which the item is
    item: int = 0  # its number


@dataclass
class Trained:
    """A model of headwise with what its run says of it."""

    name: str  # the name of the run
    folder: Path  # its folder
    recipe: Any  # its recipe
    model: Any  # its model, in evaluation mode

    @cached_property
    def task(self) -> Task:
        """The task with its data, which are read when they are first asked for."""
        return task_of(self.folder, self.recipe, Console(stderr=True))

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of a task that reads texts."""
        return read_tokenizer(self.folder / MODEL)

    @cached_property
    def target_tokenizer(self) -> Any:
        """The tokenizer of what a translation writes."""
        own = self.folder / MODEL / "target"
        return read_tokenizer(own) if own.is_dir() else self.tokenizer

    def item(self, source: Source) -> tuple[Any, Item]:
        """Returns a part of the data, and which of its items a source asks for."""
        if source.part not in self.task.parts:
            raise ValueError(f"part is {source.part!r}, {one_of(source.part, self.task.parts)}")
        items = self.task.parts[source.part]
        if not 0 <= source.item < len(items):
            raise ValueError(
                f"item is {source.item}, expected 0 to {len(items) - 1}: so many items has the "
                f"part {source.part}"
            )
        return items, Item(part=source.part, number=source.item, of=len(items))


@dataclass
class Plain:
    """A model that is of no run, with its tokenizer."""

    name: str  # the last part of its folder, or of its name on the hub
    model: Any  # the model, in evaluation mode
    tokenizer: Any  # its tokenizer


@dataclass(frozen=True)
class Input:
    """One input, as a model reads it."""

    arguments: dict[str, Tensor]  # of the model's forward, a batch of one sequence
    stacks: dict[str, Stack]  # what stands at its positions
    output: Callable[[Any], Output]  # makes what the page shows of what the model returns
    text: str | None = None  # the input as a text, if it is one
    item: Item | None = None  # the item of the data that it is, if it is one
    note: str = ""  # what a reader should know of the input


def given_text(source: Source) -> str | None:
    """Returns the text that a user gives, or has put into a file; None without one."""
    text = source.text
    if source.file is not None:
        text = "\n".join(lines(str(source.file)))
    if text is not None and not text.strip():
        where = "text" if source.file is None else str(source.file)
        raise ValueError(f"{where} is empty, expected a text for the model to read")
    return text


def check_length(ids: list[int], longest: int | None, what: str) -> None:
    """Raises `ValueError` if a model cannot read so many tokens, or the page show them."""
    for most, who in ((longest, "the model reads"), (MOST_TOKENS, "the page shows")):
        if most is not None and len(ids) > most:
            raise ValueError(
                f"{what} has {len(ids):,} tokens, expected at most {most:,}: {who} no more; give "
                f"a shorter one"
            )


def image_input(trained: Trained, source: Source) -> Input:
    """Returns an image of the data, or of a file, in the colours of a model's palette.

    The decoder reads its pixels row by row, and completes its upper half.
    """
    palette = Palette.load(trained.folder / MODEL)
    item = None
    if source.file is not None:
        pixels = pixels_of({"bytes": None, "path": str(source.file)}, palette.shape)
        ids = palette.encode(pixels[None])[0].tolist()
    else:
        part, item = trained.item(source)
        ids = part[item.number]["input_ids"].tolist()
    read = torch.tensor([ids])
    (shown,) = palette.decode(read)
    made = [Made(label="image", by_model=False, picture=_png(shown))]
    given = palette.height // 2 * palette.width
    if given:
        upper = read[:, : given + 1]
        (drawn,) = draw_images(trained.model, palette, trained.recipe.evaluation, upper)
        completed = _png(drawn)
        made.append(Made(label="its upper half, completed", by_model=True, picture=completed))
    colours = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in shown.reshape(-1, 3)]
    stack = Stack(
        kind="image",
        tokens=["<start>", *colours],
        special=[0],
        width=palette.width,
        height=palette.height,
        offset=1,
    )
    return Input(
        arguments={"input_ids": read.to(trained.model.device)},
        stacks={"decoder": stack},
        output=lambda out: Output(made=made),
        item=item,
    )


def _png(image: np.ndarray) -> str:
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(content, "PNG")
    return _data_uri("image/png", content)


def speech_input(trained: Trained, source: Source) -> Input:
    """Returns noisy speech of the data, or of a file: as much of it as the model reads at once.

    The decoder reads its frames, and predicts the speech without the noise.
    """
    model, rate = trained.model, trained.model.config.sampling_rate
    item, clean, note = None, None, ""
    if source.file is not None:
        channels, own = read_channels({"path": str(source.file)})
        whole = resampled(channels.mean(1), own, rate)
        noisy = whole[: (model.config.window - 1) * hop_of(rate)]
        if len(noisy) < len(whole):
            note = (
                f"The first {len(noisy) / rate:.1f} of {len(whole) / rate:.1f} seconds, which the "
                f"model reads at once."
            )
    else:
        items, item = trained.item(source)
        draw = np.random.default_rng((*items.seed, 0, item.number))
        noisy, clean = items.seen(items.rows[item.number], draw)
    frames = analyse(torch.tensor(noisy)[None], rate).abs()  # (1, time, bins)
    loudest = float(frames.max()) or 1.0

    def shown(sound: Waveform) -> dict[str, Any]:
        magnitudes = analyse(torch.tensor(sound)[None], rate)[0].abs().numpy()
        decibels = 20 * np.log10(np.maximum(magnitudes / loudest, 10 ** (-_RANGE / 20)))
        spectrogram = Blob.of(1 + decibels / _RANGE, scale=1.0)
        return {"sound": _wav(sound, rate), "spectrogram": spectrogram}

    def output(out: Any) -> Output:
        made = [Made(label="enhanced", by_model=True, **shown(enhance(model, noisy)))]
        if clean is not None:
            made.append(Made(label="clean", by_model=False, **shown(clean)))
        return Output(made=made)

    stack = Stack(
        kind="speech",
        tokens=[f"{frame * _FRAME:.2f} s" for frame in range(frames.size(1))],
        frame_seconds=_FRAME,
        rate=rate,
        **shown(noisy),
    )
    return Input(
        arguments={"inputs": frames.to(model.device)},
        stacks={"decoder": stack},
        output=output,
        item=item,
        note=note,
    )


def _wav(sound: Waveform, rate: int) -> str:
    """A file of 16 bits, quieter where it would be cut off."""
    loudest = max(1.0, float(np.abs(sound).max(initial=0.0)))
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((sound / loudest * 32767).round().astype("<i2").tobytes())
    return _data_uri("audio/wav", content)


def _data_uri(kind: str, content: io.BytesIO) -> str:
    return f"data:{kind};base64," + base64.b64encode(content.getvalue()).decode("ascii")
