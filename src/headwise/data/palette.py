"""Pixels as colours of a palette, row by row from the top left.

The colours are the centres of k-means over training pixels, as in Chen et al. 2020, *Generative
Pretraining From Pixels*, http://proceedings.mlr.press/v119/chen20s.html, and in the image example
of minGPT. So a pixel is one step of a sequence, not three. Images that have no more colours than
the palette keep them exactly.
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
_IMAGES = 50_000  # of which pixels are drawn at most
_PIXELS_A_COLOR = 20  # are drawn at least, where there are so many


class PaletteSettings(FrozenSettings):
    """How the colours are chosen; the defaults are those of the image example of minGPT."""

    colors: int = Field(512, ge=2, le=65_536)
    """How many colours the palette has. It has fewer if the training images have fewer."""
    pixels_per_image: int = Field(5, ge=1)
    """The colours are chosen from this many random pixels of each training image; of more where
    there are few images, and of no more than 50,000 images."""
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
        self.pixels = height * width
        self.bos_token_id = len(colors)  # stands before the first pixel

    @classmethod
    def learn(
        cls,
        images: Iterable[np.ndarray],
        shape: tuple[int, int, int],
        number: int,
        settings: PaletteSettings,
    ) -> Self:
        """Returns the palette of training images, of which only some pixels are kept.

        Args:
            images: some of them at a time, bytes of shape `(images, height, width, channels)`.
            shape: height, width and channels.
            number: how many images there are.
            settings: how the colours are chosen.
        """
        height, width, channels = shape
        draw = np.random.default_rng(settings.seed)
        step = -(-number // _IMAGES)
        per_image = max(settings.pixels_per_image, -(-_PIXELS_A_COLOR * settings.colors // number))
        is_there = np.zeros(256**channels, bool)
        drawn = []
        for some in images:
            pixels = some.reshape(len(some), -1, channels) @ _places(channels)  # (images, pixels)
            is_there[pixels] = True
            size = (len(pixels[::step]), min(per_image, height * width))
            chosen = draw.integers(height * width, size=size)
            drawn.append(np.take_along_axis(pixels[::step], chosen, axis=1).ravel())
        colors = np.flatnonzero(is_there)
        if len(colors) > settings.colors:
            colors = _centres(np.concatenate(drawn), channels, settings)
        return cls(height, width, _unpacked(colors, channels))

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Returns the nearest colour of each pixel.

        Args:
            images: bytes of shape `(images, height, width, channels)`.

        Returns:
            Numbers of colours, of shape `(images, pixels)`.
        """
        from scipy.spatial import cKDTree

        _, nearest = cKDTree(self.colors).query(images.reshape(-1, self.colors.shape[1]))
        return nearest.reshape(len(images), -1)

    def decode(self, ids: np.ndarray) -> np.ndarray:
        """Returns RGB images `(images, height, width, 3)` of colours `(images, pixels)`."""
        images = self.colors[ids].reshape(len(ids), self.height, self.width, -1)
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


def _places(channels: int) -> np.ndarray:
    """Returns the place values by which the bytes of a pixel become one number."""
    return 256 ** np.arange(channels)[::-1]


def _unpacked(numbers: np.ndarray, channels: int) -> np.ndarray:
    return (numbers[:, None] // _places(channels) % 256).astype(np.uint8)


def _centres(pixels: np.ndarray, channels: int, settings: PaletteSettings) -> np.ndarray:
    """Returns the centres of k-means, as numbers in order."""
    from sklearn.cluster import KMeans

    # Each colour once, with its number of pixels as weight: a third of the pixels of MNIST beside
    # CIFAR-10 are black.
    colors, counts = np.unique(pixels, return_counts=True)
    if len(colors) <= settings.colors:
        return colors
    k_means = KMeans(settings.colors, n_init=1, max_iter=20, random_state=settings.seed)
    k_means.fit(_unpacked(colors, channels).astype(np.float64), sample_weight=counts)
    centres = np.round(k_means.cluster_centers_).astype(int)
    return np.unique(centres @ _places(channels))
