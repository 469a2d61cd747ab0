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
    from matplotlib.patches import Patch

    columns = min(_COLUMNS, max(len(images) for _, images in blocks))
    tiles = [_tiled(images, columns) for _, images in blocks]
    heights = [columns * len(tile) / tile.shape[1] for tile in tiles]  # inches, as the width
    figure = _figure(max(columns, 5), sum(heights) + 0.3 * (len(blocks) + bool(legend)))
    rows = figure.subplots(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (label, _), tile in zip(rows, blocks, tiles, strict=True):
        axes.imshow(tile, interpolation="nearest")
        axes.set_title(label, loc="left", fontsize=9)
        axes.set_anchor("W")
        axes.axis("off")
    if legend:
        patches = [Patch(facecolor=colour, edgecolor="grey", label=text) for colour, text in legend]
        figure.legend(handles=patches, loc="outside lower left", ncols=4, fontsize=8)
    return _as_png(figure)


def _tiled(images: np.ndarray, columns: int) -> np.ndarray:
    """Returns images side by side in rows, with white gaps, as one image."""
    gap = max(1, images.shape[2] // 16)
    gaps = ((0, -len(images) % columns), (0, gap), (0, gap), (0, 0))
    tiles = np.pad(images, gaps, constant_values=255)
    rows = tiles.reshape(-1, columns, *tiles.shape[1:]).swapaxes(1, 2)  # side by side
    return rows.reshape(-1, columns * tiles.shape[2], 3)


def spectrograms(
    sounds: Mapping[str, Tensor], maps: Sequence[tuple[str, Tensor]], rate: int
) -> bytes:
    """Draws spectrograms below each other, and maps below them, over one axis of time.

    Args:
        sounds: a label to magnitudes `(time, bins)`; all have one scale of colours.
        maps: a label and weights `(time, experts)` for each layer.
        rate: sampling rate of the sounds.
    """
    heights = [1.5] * len(sounds) + [0.6] * len(maps)
    figure = _figure(8, 0.8 + sum(heights))
    rows = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    seconds = 0.016 * max(map(len, sounds.values()))

    def draw(axes: Any, values: Tensor, bottom: float, top: float, **style: Any) -> Any:
        picture, ends = values.float().T.cpu().numpy(), (0, seconds, bottom, top)
        return axes.imshow(picture, aspect="auto", interpolation="nearest", extent=ends, **style)

    loudest = max(of.max() for of in sounds.values()).clamp(min=1e-6)
    for axes, (label, of) in zip(rows, sounds.items(), strict=False):
        decibels = 20 * (of / loudest).clamp(min=1e-6).log10()
        scale = draw(axes, decibels, 0, rate / 2000, origin="lower", cmap="magma", vmin=-70, vmax=0)
        axes.set_ylabel(f"{label}\nkHz")
    figure.colorbar(scale, ax=rows[: len(sounds)], label="dB", pad=0.01)
    for axes, (label, of) in zip(rows[len(sounds) :], maps, strict=True):
        draw(axes, of, of.size(1) + 0.5, 0.5, vmin=0)
        axes.set_ylabel(label, rotation=0, ha="right", va="center")
    rows[-1].set_xlabel("seconds")
    return _as_png(figure)


def confusions(labels: np.ndarray, predicted: np.ndarray, classes: Sequence[str]) -> Picture:
    """Draws how often examples of one class are taken for another."""
    from sklearn.metrics import ConfusionMatrixDisplay

    side = 2.4 + 0.45 * len(classes)
    figure = _figure(side, side)
    ConfusionMatrixDisplay.from_predictions(
        labels,
        predicted,
        labels=range(len(classes)),
        display_labels=classes,
        normalize="true",
        values_format=".0%",
        xticks_rotation="vertical",
        colorbar=False,
        cmap="Blues",
        ax=figure.add_subplot(),
    )
    caption = "Of the test examples with the label at the left, how many get each prediction."
    return Picture.of("Confusions", _as_png(figure), caption)


def predictions(labels: np.ndarray, predicted: np.ndarray) -> Picture:
    """Draws predicted numbers over labels."""
    from sklearn.metrics import PredictionErrorDisplay

    figure = _figure(4.2, 4.2)
    display = PredictionErrorDisplay(y_true=labels, y_pred=predicted)
    display.plot(ax=figure.add_subplot(), kind="actual_vs_predicted")
    caption = "Each point is a test example; on the line, the prediction is equal to the label."
    return Picture.of("Predictions", _as_png(figure), caption)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # takes half a second

    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def _as_png(figure: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()
