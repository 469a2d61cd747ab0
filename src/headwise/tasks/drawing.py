"""What tasks draw: images from a model, and PNG pictures of what it and its heads did."""

import colorsys
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from headwise.data.images.palette import Raster
from headwise.models.for_tasks import CausalLM
from headwise.tasks.outcome import Picture
from headwise.training.processes import own_draws

# --- drawing from a model ---------------------------------------------------------------------


def sample_images(
    model: CausalLM,
    raster: Raster,
    number: int,
    *,
    seed: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    given: Tensor | None = None,
) -> np.ndarray:
    """Draws images pixel by pixel, from the top left, each pixel from the model's prediction.

    Args:
        model: the model; it is put into evaluation mode.
        raster: the raster of the model's run.
        number: how many images are drawn, all in one batch.
        seed: seed of the random draws.
        temperature: divides the logits; below 1, likely colours become likelier.
        top_k: how many of the likeliest colours a pixel is drawn from; None for all of them.
        given: ids of the first pixels, `(number, pixels)`, which the model completes.

    Returns:
        Ids of colours, `(number, pixels)`.
    """
    start = torch.full((number, 1), raster.bos_token_id)
    if given is not None:
        start = torch.cat([start, given], dim=1)
    with torch.no_grad(), own_draws():
        torch.manual_seed(seed)
        ids = model.eval().generate(
            start.to(model.device),
            max_length=len(raster) + 1,
            do_sample=True,
            temperature=temperature,
            top_k=top_k or 0,  # 0 stands for all colours
            top_p=1.0,
            suppress_tokens=[raster.bos_token_id],
            remove_invalid_values=True,  # of a model that diverged
        )
    return ids[:, 1:].cpu().numpy()


# --- maps of images ---------------------------------------------------------------------------


Legend = list[tuple[tuple[int, int, int], str]]  # colours and what they mean
_LEGEND = 8  # how many experts the legend names


def winner_map(weights: Tensor) -> tuple[np.ndarray, Legend]:
    """Colours each pixel by the expert with the largest weight.

    A pixel is white where all experts have equal weights. It has the full colour where the largest
    weight exceeds equal weights the most, over all images.

    Args:
        weights: weights of the experts, `(images, height, width, experts)`, not negative.

    Returns:
        RGB images, `(images, height, width, 3)`, and their legend.
    """
    weights = weights.double().cpu()
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
    experts = weights.size(-1)
    largest, winner = weights.max(-1)  # (images, height, width)
    above = (largest - 1 / experts).clamp(min=0)
    strength = above / above.max().clamp(min=1e-6)
    colours = torch.tensor([_colour(number, experts) for number in range(experts)])
    # (images, height, width, 3)
    mixed = 255 - strength[..., None] * (255 - colours[winner].double())
    won = winner.flatten().bincount(minlength=experts).double() / winner.numel()
    legend = [
        (_colour(int(number), experts), f"{int(number) + 1}: {won[number]:.0%}")
        for number in won.argsort(descending=True, stable=True)[:_LEGEND]
    ]
    white = f"equal weights: {1 / experts:.2f}; full colour: {largest.max():.2f}"
    legend.append(((255, 255, 255), white))
    return mixed.round().to(torch.uint8).numpy(), legend


def _colour(number: int, experts: int) -> tuple[int, int, int]:
    """Returns one of equally spaced hues; for two experts blue and orange, clear to all eyes."""
    red, green, blue = colorsys.hsv_to_rgb((0.58 + number / experts) % 1, 0.9, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


# --- sheets of images -------------------------------------------------------------------------

_GAP, _LINE, _SIDE = 6, 22, 96  # pixels: between images, height of a line, side of an image
_COLUMNS = 8


def sheet(blocks: Sequence[tuple[str, np.ndarray]], legend: Legend | None = None) -> bytes:
    """Returns a PNG with labelled rows of images on white; small images are magnified.

    Args:
        blocks: a label and RGB images `(images, height, width, 3)` for each block; all images have
            one size.
        legend: colours and what they mean; they stand below the images.
    """
    height, width = blocks[0][1].shape[1:3]
    scale = max(1, _SIDE // max(height, width))
    cell_height, cell_width = scale * height + _GAP, scale * width + _GAP
    columns = max(1, min(_COLUMNS, max(len(images) for _, images in blocks)))
    rows = sum(-(-len(images) // columns) for _, images in blocks)
    lines = sum(bool(label) for label, _ in blocks) + bool(legend)
    font = ImageFont.load_default(13)
    places = [_GAP]  # where each colour of the legend stands, and where the legend ends
    for _, words in legend or ():
        places.append(places[-1] + _LINE + round(font.getlength(words)) + 2 * _GAP)
    size = (
        max(columns * cell_width + _GAP, places[-1]),
        rows * cell_height + lines * _LINE + _GAP,
    )
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)
    top = _GAP
    for label, images in blocks:
        if label:
            draw.text((_GAP, top), label, "black", font)
            top += _LINE
        for index, image in enumerate(images):
            row, column = divmod(index, columns)
            magnified = image.repeat(scale, axis=0).repeat(scale, axis=1)
            place = (_GAP + column * cell_width, top + row * cell_height)
            canvas.paste(Image.fromarray(np.ascontiguousarray(magnified)), place)
        top += -(-len(images) // columns) * cell_height
    for left, (colour, words) in zip(places, legend or (), strict=False):
        draw.rectangle((left, top + 2, left + 12, top + 14), fill=colour, outline="grey")
        draw.text((left + _LINE - 4, top), words, "black", font)
    content = io.BytesIO()
    canvas.save(content, "PNG", optimize=True)
    return content.getvalue()


# --- sounds -----------------------------------------------------------------------------------

_RANGE = 70  # decibels between the loudest point and the darkest colour
_FRAME = 0.016  # seconds from one frame to the next


def draw_spectrograms(
    sounds: Sequence[tuple[str, Tensor]], maps: Sequence[tuple[str, Tensor]], rate: int
) -> bytes:
    """Draws spectrograms below each other and maps below them, over one time axis, as a PNG.

    Args:
        sounds: a label and magnitudes `(time, bins)` for each sound; all have one colour scale.
        maps: a label and weights `(time, experts)` for each layer.
        rate: sampling rate of the sounds in samples per second.

    >>> import torch
    >>> sounds, maps = [("noisy", torch.rand(9, 129))], [("layer 2", torch.rand(9, 2))]
    >>> draw_spectrograms(sounds, maps, rate=8_000)[1:4]
    b'PNG'
    """
    import matplotlib  # imported here: it takes a second
    from matplotlib.figure import Figure

    heights = [2.0] * len(sounds) + [0.35 + 0.08 * min(8, m.size(1)) for _, m in maps]
    with matplotlib.rc_context({"font.size": 9, "text.parse_math": False}):
        figure = Figure(figsize=(8, 0.8 + sum(heights) * 0.75), dpi=100, layout="constrained")
        rows = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
        loudest = max(float(spectrum.max()) for _, spectrum in sounds) or 1.0
        for axes, (label, spectrum) in zip(rows[:, 0], sounds, strict=False):
            decibels = 20 * np.log10(np.maximum(spectrum.float().cpu().numpy() / loudest, 1e-6))
            image = axes.imshow(
                decibels.T,
                origin="lower",
                aspect="auto",
                cmap="magma",
                vmin=-_RANGE,
                vmax=0,
                extent=(0, len(spectrum) * _FRAME, 0, rate / 2000),
            )
            axes.set_ylabel(f"{label}\nkHz")
        figure.colorbar(image, ax=rows[: len(sounds), 0], label="dB", pad=0.01)
        shown = None
        for axes, (label, weights) in zip(rows[len(sounds) :, 0], maps, strict=True):
            time, experts = weights.shape
            shown = axes.imshow(
                weights.float().cpu().numpy().T,
                aspect="auto",
                cmap="viridis",
                interpolation="nearest",
                vmin=0,
                vmax=max(float(m.max()) for _, m in maps),
                extent=(0, time * _FRAME, experts + 0.5, 0.5),
            )
            axes.set_ylabel(label, rotation=0, ha="right", va="center")
            axes.set_yticks([1, experts] if experts > 1 else [1])
        if shown is not None:
            figure.colorbar(shown, ax=rows[len(sounds) :, 0], label="weight", pad=0.01)
        rows[-1, 0].set_xlabel("seconds")
        return _png(figure)


# --- predictions ------------------------------------------------------------------------------


def draw_confusions(rows: np.ndarray, classes: Sequence[str]) -> Picture:
    """Draws how often examples of one class are taken for another, from rows as in `accuracy`."""
    from sklearn.metrics import confusion_matrix  # imported here: it takes a second

    labels, predictions = rows.astype(int).T
    numbers = range(len(classes))
    # (label, prediction); a class without examples has a row of zeros
    shares = 100 * confusion_matrix(labels, predictions, labels=numbers, normalize="true")
    side = 2.4 + 0.42 * len(classes)
    figure, axes = _axes(side + 0.8, side)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right")
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    for (row, column), share in np.ndenumerate(shares):
        colour = "white" if share > 60 else "black"
        axes.text(column, row, f"{share:.0f}", ha="center", va="center", color=colour, fontsize=8)
    caption = "Of 100 test examples with the label at the left, how many get each prediction."
    return Picture.of("Confusions", _png(figure), caption)


def draw_predictions(rows: np.ndarray) -> Picture:
    """Draws predictions over labels."""
    figure, axes = _axes(4.2, 4.2)
    axes.scatter(rows[:, 0], rows[:, 1], s=8, alpha=0.4, linewidths=0)
    ends = [rows[:, 0].min(), rows[:, 0].max()]
    axes.plot(ends, ends, color="grey", linewidth=1)
    axes.set_xlabel("label")
    axes.set_ylabel("predicted")
    caption = "Each point is a test example; on the line, the prediction is equal to the label."
    return Picture.of("Predictions", _png(figure), caption)


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # imported here: it takes a second

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    return figure, figure.add_subplot()


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
