"""Pixels as colours of a palette, row by row from the top left.

The colours are the centres of k-means over training pixels, as in Chen et al. 2020, *Generative
Pretraining From Pixels*, http://proceedings.mlr.press/v119/chen20s.html, and in the image example
of minGPT. So a pixel is one step of a sequence, not three.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import Field

from headwise.data.load import DataError
from headwise.files import write_text
from headwise.settings import LARGEST_SEED, FrozenSettings

PALETTE = "palette.json"


class PaletteSettings(FrozenSettings):
    """How the colours are chosen; the defaults are those of minGPT for CIFAR-10."""

    colors: int = Field(512, ge=2, le=65_536)
    """How many colours the palette has. Images with no more colours keep them exactly."""
    pixels: int = Field(250_000, ge=1)
    """The colours are the centres of this many random pixels of the training images."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the random pixels and of k-means."""


class Palette:
    """The colours of images of one size, whose numbers are the tokens of a model.

    Args:
        height, width: size of the images in pixels.
        colors: bytes of shape `(colors, channels)`, of 3 channels for RGB and 1 for grey.

    >>> palette = Palette(1, 3, np.array([[0], [255]], np.uint8))
    >>> palette.encode(np.array([[[[9], [99], [199]]]], np.uint8))
    array([[0, 0, 1]])
    """

    def __init__(self, height: int, width: int, colors: np.ndarray) -> None:
        self.height, self.width, self.colors = height, width, colors
        self.shape = (height, width, colors.shape[1])
        self.pixels = height * width
        self.bos_token_id = len(colors)  # stands before the first pixel

    @classmethod
    def learn(
        cls, images: Iterable[np.ndarray], shape: tuple[int, int, int], settings: PaletteSettings
    ) -> Self:
        """Returns the palette of images, given some at a time, each of a shape.

        In memory there is the number of pixels of each of the 256³ colours, 64 MB.
        """
        height, width, channels = shape
        places = 256 ** np.arange(channels)[::-1]  # by which a pixel's bytes become one number
        counts = np.zeros(256**channels, np.int32)
        for some in images:
            found, times = np.unique(some.reshape(-1, channels) @ places, return_counts=True)
            counts[found] += times
        numbers = np.flatnonzero(counts)
        colors = (numbers[:, None] // places % 256).astype(np.uint8)
        if len(colors) > settings.colors:
            colors = _centres(colors, counts[numbers], settings)
        return cls(height, width, colors)

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Returns the nearest colour of each pixel, `(images, pixels)`, of bytes of `shape`."""
        from scipy.spatial import cKDTree

        _, nearest = cKDTree(self.colors).query(images.reshape(-1, self.colors.shape[1]))
        return nearest.reshape(len(images), -1)

    def decode(self, ids: np.ndarray) -> np.ndarray:
        """Returns RGB images `(images, height, width, 3)` of colours `(images, pixels)`."""
        images = self.colors[ids].reshape(len(ids), *self.shape)
        return np.broadcast_to(images, (*images.shape[:3], 3))

    def save(self, folder: Path) -> None:
        """Writes size and colours to `palette.json` in a folder."""
        known = {"height": self.height, "width": self.width, "colors": self.colors.tolist()}
        write_text(folder / PALETTE, json.dumps(known))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads the palette that `save` has written into a folder."""
        path = folder / PALETTE
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            return cls(known["height"], known["width"], np.array(known["colors"], np.uint8))
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{path} is no palette ({error}), expected height, width and colors: give the "
                f"folder of a run of images"
            ) from None


def _centres(colors: np.ndarray, counts: np.ndarray, settings: PaletteSettings) -> np.ndarray:
    """Returns the centres of random pixels, as bytes in order, by how many have each colour."""
    from sklearn.cluster import KMeans

    draw = np.random.default_rng(settings.seed)
    drawn = draw.multinomial(settings.pixels, counts / counts.sum())
    colors, weights = colors[drawn > 0], drawn[drawn > 0]
    if len(colors) > settings.colors:
        k_means = KMeans(settings.colors, n_init=1, max_iter=20, random_state=settings.seed)
        k_means.fit(colors.astype(np.float64), sample_weight=weights)
        colors = np.round(k_means.cluster_centers_).astype(np.uint8)
    return np.unique(colors, axis=0)
