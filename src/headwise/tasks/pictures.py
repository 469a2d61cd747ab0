"""Pictures that tasks draw as PNG: sheets of images, and maps of what decides where."""

import colorsys
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.heads.system import System
from headwise.models.inspect import evaluating, record, systems
from headwise.models.modeling import HeadwiseModel
from headwise.tasks.scores import Picture

Legend = Sequence[tuple[Sequence[float], str]]  # colours, from 0 to 1, and what they mean
_COLUMNS = 8  # images side by side
_NAMED = 7  # experts below a map


@torch.no_grad()
def weights_by_position(model: HeadwiseModel, **inputs: Tensor) -> list[tuple[System, Tensor]]:
    """Returns each system of a model of one stack that decides anew at each position.

    Args:
        model: the model, which is in evaluation mode meanwhile.
        inputs: arguments of its forward; the first is `(batch, time, ...)`.

    Returns:
        Systems and their weights, `(batch, time, units)`.
    """
    shape = next(iter(inputs.values())).shape[:2]
    with evaluating(model), record(model) as decided:
        model(**inputs)
    found = [(systems(model)[path], routings[0].weights) for path, routings in decided.items()]
    return [(system, x) for system, x in found if x.dim() == 3 and x.shape[:2] == shape]


# --- images -------------------------------------------------------------------------------------


def winner_map(weights: Tensor) -> tuple[np.ndarray, Legend]:
    """Colours each pixel by the expert that has the largest weight there.

    It is white where all weights are equal, and the fuller the more the largest stands out.

    Args:
        weights: not negative, `(images, height, width, experts)`.

    Returns:
        RGB images, `(images, height, width, 3)`, and their legend.
    """
    weights = weights.double().cpu()
    largest, winner = (weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)).max(-1)
    experts = weights.size(-1)
    hues = [colorsys.hsv_to_rgb((0.58 + i / experts) % 1, 0.9, 0.85) for i in range(experts)]
    above = (largest - 1 / experts).clamp(min=0)[..., None]
    mixed = 1 - above / above.max().clamp(min=1e-6) * (1 - torch.tensor(hues)[winner])
    won = winner.flatten().bincount(minlength=experts).double() / winner.numel()
    most = won.argsort(descending=True, stable=True)[:_NAMED].tolist()
    legend = [(hues[i], f"{i + 1}: {won[i]:.0%}") for i in most]
    ends = f"equal: {1 / experts:.2f}; full colour: {largest.max():.2f}"
    return (255 * mixed).round().byte().numpy(), [*legend, ((1.0, 1.0, 1.0), ends)]


def sheet(blocks: Sequence[tuple[str, np.ndarray]], legend: Legend = ()) -> bytes:
    """Returns a PNG with labelled blocks of images, eight in a row.

    Args:
        blocks: a label and RGB images `(images, height, width, 3)` for each; all have one size.
        legend: colours and what they mean; they stand below the images.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    columns = min(_COLUMNS, max(len(images) for _, images in blocks))
    tiles = [_tiled(images, columns) for _, images in blocks]
    heights = [columns * len(tile) / tile.shape[1] for tile in tiles]  # inches, as the width
    size = (max(columns, 5), sum(heights) + 0.3 * (len(blocks) + bool(legend)))
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    rows = figure.subplots(len(blocks), 1, squeeze=False, height_ratios=heights)
    for axes, (label, _), tile in zip(rows[:, 0], blocks, tiles, strict=True):
        axes.imshow(tile, interpolation="nearest")
        axes.set_title(label, loc="left", fontsize=9)
        axes.set_anchor("W")
        axes.axis("off")
    if legend:
        patches = [Patch(facecolor=colour, edgecolor="grey", label=text) for colour, text in legend]
        figure.legend(handles=patches, loc="outside lower left", ncols=4, fontsize=8)
    return as_png(figure)


def _tiled(images: np.ndarray, columns: int) -> np.ndarray:
    """Returns images side by side in rows, with white gaps, as one image."""
    number, height, width, _ = images.shape
    gap = max(1, width // 16)
    shape = (-(-number // columns) * columns, height + gap, width + gap, 3)
    tiles = np.full(shape, 255, np.uint8)
    tiles[:number, :height, :width] = images
    tiles = tiles.reshape(-1, columns, *shape[1:]).swapaxes(1, 2)  # (rows, height, columns, ...)
    return tiles.reshape(len(tiles) * shape[1], columns * shape[2], 3)


# --- sounds -------------------------------------------------------------------------------------


def spectrograms(
    sounds: Mapping[str, Tensor], maps: Sequence[tuple[str, Tensor]], rate: int
) -> bytes:
    """Draws spectrograms below each other, and maps below them, over one axis of time.

    Args:
        sounds: a label to magnitudes `(time, bins)`; all have one scale of colours.
        maps: a label and weights `(time, experts)` for each layer.
        rate: sampling rate of the sounds.
    """
    from matplotlib.figure import Figure

    heights = [1.5] * len(sounds) + [0.3 + 0.06 * min(8, of.size(1)) for _, of in maps]
    figure = Figure(figsize=(8, 0.8 + sum(heights)), dpi=100, layout="constrained")
    rows = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    loudest = max(of.max() for of in sounds.values()).clamp(min=1e-6)
    seconds = 0.016 * max(map(len, sounds.values()))
    for axes, (label, of) in zip(rows, sounds.items(), strict=False):
        decibels = 20 * (of / loudest).clamp(min=1e-6).log10().T.cpu().numpy()
        ends = (0.0, seconds, 0.0, rate / 2000)
        drawn = axes.imshow(decibels, "magma", vmin=-70, vmax=0, origin="lower", extent=ends)
        axes.set_ylabel(f"{label}\nkHz")
    figure.colorbar(drawn, ax=rows[: len(sounds)], label="dB", pad=0.01)
    for axes, (label, of) in zip(rows[len(sounds) :], maps, strict=True):
        ends = (0.0, seconds, of.size(1) + 0.5, 0.5)
        weights = of.float().T.cpu().numpy()
        drawn = axes.imshow(weights, vmin=0, interpolation="nearest", extent=ends)
        axes.set_ylabel(label, rotation=0, ha="right", va="center")
    for axes in rows:
        axes.set_aspect("auto")
    rows[-1].set_xlabel("seconds")
    return as_png(figure)


# --- predictions --------------------------------------------------------------------------------


def confusions(labels: np.ndarray, predicted: np.ndarray, classes: Sequence[str]) -> Picture:
    """Draws how often examples of one class are taken for another."""
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    side = 2.4 + 0.45 * len(classes)
    figure = Figure(figsize=(side, side), dpi=110, layout="constrained")
    numbers = range(len(classes))
    shares = 100 * confusion_matrix(labels, predicted, labels=numbers, normalize="true")
    display = ConfusionMatrixDisplay(shares, display_labels=classes)
    display.plot(
        ax=figure.add_subplot(),
        cmap="Blues",
        xticks_rotation="vertical",
        values_format=".0f",
        colorbar=False,
        im_kw={"vmin": 0, "vmax": 100},
    )
    caption = "Of 100 test examples with the label at the left, how many get each prediction."
    return Picture.of("Confusions", as_png(figure), caption)


def predictions(labels: np.ndarray, predicted: np.ndarray) -> Picture:
    """Draws predicted numbers over labels."""
    from matplotlib.figure import Figure
    from sklearn.metrics import PredictionErrorDisplay

    figure = Figure(figsize=(4.2, 4.2), dpi=110, layout="constrained")
    display = PredictionErrorDisplay(y_true=labels, y_pred=predicted)
    display.plot(ax=figure.add_subplot(), kind="actual_vs_predicted")
    caption = "Each point is a test example; on the line, the prediction is equal to the label."
    return Picture.of("Predictions", as_png(figure), caption)


def as_png(figure: Any) -> bytes:
    """Returns a figure of matplotlib as a PNG."""
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()
