"""Pictures of spectrograms, with maps of what the heads of a model did at each frame."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

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
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
