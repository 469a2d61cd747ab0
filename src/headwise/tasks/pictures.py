"""Pictures that tasks draw as PNG: sheets of images, and spectrograms."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

_COLUMNS = 8  # images side by side


def sheet(blocks: Sequence[tuple[str, np.ndarray]]) -> bytes:
    """Returns a PNG with labelled blocks of images, eight in a row.

    Each block is a label and RGB images `(images, height, width, 3)`; all have one size.
    """
    columns = min(_COLUMNS, max(len(images) for _, images in blocks))
    tiles = [_tiled(images, columns) for _, images in blocks]
    heights = [columns * len(tile) / tile.shape[1] for tile in tiles]  # inches, as the width
    figure = _figure(max(columns, 5), sum(heights) + 0.3 * len(blocks))
    rows = figure.subplots(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (label, _), tile in zip(rows, blocks, tiles, strict=True):
        axes.imshow(tile, interpolation="nearest")
        axes.set_title(label, loc="left", fontsize=9)
        axes.set_anchor("W")
        axes.axis("off")
    return _as_png(figure)


def _tiled(images: np.ndarray, columns: int) -> np.ndarray:
    """Returns images side by side in rows, with white gaps, as one image."""
    gap = max(1, images.shape[2] // 16)
    gaps = ((0, -len(images) % columns), (0, gap), (0, gap), (0, 0))
    tiles = np.pad(images, gaps, constant_values=255)
    rows = tiles.reshape(-1, columns, *tiles.shape[1:]).swapaxes(1, 2)  # side by side
    return rows.reshape(-1, columns * tiles.shape[2], 3)


def spectrograms(sounds: Mapping[str, Tensor], rate: int) -> bytes:
    """Draws spectrograms below each other, of magnitudes `(time, bins)`, on one scale."""
    figure = _figure(8, 0.8 + 1.5 * len(sounds))
    rows = figure.subplots(len(sounds), 1, sharex=True, squeeze=False)[:, 0]
    loudest = max(of.max() for of in sounds.values()).clamp(min=1e-6)
    for axes, (label, of) in zip(rows, sounds.items(), strict=True):
        decibels = 20 * (of / loudest).clamp(min=1e-6).log10()
        ends = (0, 0.016 * len(of), 0, rate / 2000)
        style = {"origin": "lower", "aspect": "auto", "interpolation": "nearest", "cmap": "magma"}
        scale = axes.imshow(decibels.T.numpy(), extent=ends, vmin=-70, vmax=0, **style)
        axes.set_ylabel(f"{label}\nkHz")
    figure.colorbar(scale, ax=rows, label="dB", pad=0.01)
    rows[-1].set_xlabel("seconds")
    return _as_png(figure)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # takes half a second

    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def _as_png(figure: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()
