"""PNG pictures of the images that a model draws, and maps of what its heads do at each pixel."""

import colorsys
import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from headwise.data.images.palette import Raster
from headwise.models.causal_lm import CausalLM

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
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        ids = model.eval().generate(
            start.to(model.device),
            max_length=len(raster) + 1,
            do_sample=True,
            temperature=temperature,
            top_k=top_k or 0,  # 0 stands for all colours
            top_p=1.0,
            suppress_tokens=[raster.bos_token_id],
        )
    return ids[:, 1:].cpu().numpy()


# --- maps -------------------------------------------------------------------------------------


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


# --- sheets -----------------------------------------------------------------------------------

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
