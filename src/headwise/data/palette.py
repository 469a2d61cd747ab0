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
from numpy.typing import ArrayLike

from headwise.files import write_text

PALETTE = "palette.json"
_DRAWN = 250_000  # pixels whose centres the colours are: as in minGPT, five of each of CIFAR-10's
_SEED = 1


class Palette:
    """The colours of images of one size, whose numbers are the tokens of a model.

    Args:
        height, width: size of the images in pixels.
        colors: bytes of shape `(colors, channels)`, of 3 channels for RGB and 1 for grey.

    >>> palette = Palette(1, 3, np.array([[0], [255]], np.uint8))
    >>> palette.encode(np.array([[[[9], [99], [199]]]], np.uint8))
    array([[2, 0, 0, 1]])
    """

    def __init__(self, height: int, width: int, colors: np.ndarray) -> None:
        self.height, self.width, self.colors = height, width, colors
        self.shape = (height, width, colors.shape[1])
        self.bos_token_id = len(colors)  # stands before the first pixel

    @classmethod
    def learn(
        cls, images: Iterable[np.ndarray], shape: tuple[int, int, int], most_colors: int
    ) -> Self:
        """Returns the palette of images of a shape, given some at a time."""
        height, width, channels = shape
        places = 256 ** np.arange(channels)[::-1]  # by which a pixel's bytes become one number
        counts = np.zeros(256**channels, np.int32)
        for some in images:
            found, times = np.unique(some.reshape(-1, channels) @ places, return_counts=True)
            counts[found] += times
        numbers = np.flatnonzero(counts)
        colors = (numbers[:, None] // places % 256).astype(np.uint8)
        if len(colors) > most_colors:
            colors = _centres(colors, counts[numbers], most_colors)
        return cls(height, width, colors)

    @property
    def names(self) -> dict[int, str]:
        """What each token is called: `#rrggbb`, and `<bos>`."""
        colors = np.broadcast_to(self.colors, (len(self.colors), 3))
        names = {number: f"#{bytes(color).hex()}" for number, color in enumerate(colors)}
        return {**names, self.bos_token_id: "<bos>"}

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Returns `<bos>` and the nearest colour of each pixel, `(images, 1 + pixels)`."""
        from scipy.spatial import cKDTree

        _, nearest = cKDTree(self.colors).query(images.reshape(-1, self.colors.shape[1]))
        ids = nearest.reshape(len(images), -1)
        return np.pad(ids, ((0, 0), (1, 0)), constant_values=self.bos_token_id)

    def decode(self, ids: ArrayLike) -> np.ndarray:
        """Returns RGB images `(images, height, width, 3)` of what `encode` returns."""
        images = self.colors[np.asarray(ids)[:, 1:]].reshape(-1, *self.shape)
        return np.broadcast_to(images, (*images.shape[:3], 3))

    def save(self, folder: Path) -> None:
        """Writes size and colours to `palette.json` in a folder."""
        known = {"height": self.height, "width": self.width, "colors": self.colors.tolist()}
        write_text(folder / PALETTE, json.dumps(known))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads the palette that `save` has written into a folder."""
        known = json.loads((folder / PALETTE).read_text(encoding="utf-8"))
        return cls(known["height"], known["width"], np.array(known["colors"], np.uint8))


def _centres(colors: np.ndarray, counts: np.ndarray, number: int) -> np.ndarray:
    """Returns the centres of random pixels, as bytes in order, by how many have each colour."""
    from sklearn.cluster import KMeans

    drawn = np.random.default_rng(_SEED).multinomial(_DRAWN, counts / counts.sum())
    colors, weights = colors[drawn > 0], drawn[drawn > 0]
    if len(colors) > number:
        k_means = KMeans(number, n_init=1, max_iter=20, random_state=_SEED)
        k_means.fit(colors.astype(np.float64), sample_weight=weights)
        colors = np.round(k_means.cluster_centers_).astype(np.uint8)
    return np.unique(colors, axis=0)
