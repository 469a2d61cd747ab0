"""Images as sequences of the colours of a palette, in raster order."""

import json
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import Field

from headwise.data.rows import pieces
from headwise.data.sources import CorpusError
from headwise.files import write_text
from headwise.settings import LARGEST_SEED, FrozenSettings

FILE_NAME = "palette.json"


class PaletteSettings(FrozenSettings):
    """How the colours are chosen; the defaults are those of the image example of minGPT."""

    colors: int = Field(512, ge=2, le=65_536)
    """How many colours the palette has. It has fewer if the training images have fewer."""
    pixels_per_image: int = Field(5, ge=1, le=1_000_000)
    """The colours are chosen from this many random pixels of each training image."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the random pixels and of k-means."""


class Raster:
    """Encodes the pixels of images of one size as ids of colours, row by row from the top left.

    The colours are the centres of k-means over training pixels, as in Image GPT (Chen et al. 2020,
    *Generative Pretraining From Pixels*, http://proceedings.mlr.press/v119/chen20s.html) and in
    the image example of minGPT, on which Lamb et al. 2021 build. So a pixel is one step of the
    sequence, not three. Images that have no more colours than the palette keep their colours
    exactly.

    Args:
        height, width: size of the images, in pixels.
        colors: the palette as bytes, `(colors, channels)`, with 3 channels for RGB and 1 for
            levels of grey.

    Example:
        >>> raster = Raster(1, 3, np.array([[0], [255]], np.uint8))
        >>> raster.encode(np.array([[[[9], [99], [199]]]], np.uint8))
        array([[0, 0, 1]])
    """

    def __init__(self, height: int, width: int, colors: np.ndarray) -> None:
        self.height = height
        self.width = width
        self.colors = colors

    @classmethod
    def learn(cls, images: np.ndarray, settings: PaletteSettings) -> Self:
        """Returns a raster whose palette is learned from training images."""
        number, height, width, channels = images.shape
        pixels = images.reshape(-1, channels)
        colors = _unpacked(np.unique(_packed(pixels)), channels)
        if len(colors) > settings.colors:
            generator = np.random.default_rng(settings.seed)
            per_image = min(settings.pixels_per_image, height * width)
            # If even these pixels are too few for clusters, all pixels are used.
            if number * per_image >= 20 * settings.colors:
                within = generator.integers(height * width, size=(number, per_image))
                pixels = pixels.reshape(number, -1, channels)[np.arange(number)[:, None], within]
                pixels = pixels.reshape(-1, channels)
            colors = _k_means(pixels, settings)
        return cls(height, width, colors)

    def __len__(self) -> int:
        """Returns the number of pixels of an image."""
        return self.height * self.width

    @property
    def bos_token_id(self) -> int:
        """The id that stands before the first pixel; the ids of colours are smaller."""
        return len(self.colors)

    def token_ids(self) -> dict[str, int | None]:
        """Returns the special ids under the names that a model's configuration has for them.

        All images have the same length, so that neither an end nor padding has an id.
        """
        return {"bos_token_id": self.bos_token_id, "eos_token_id": None, "pad_token_id": None}

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Returns the ids of the colours that are nearest to the pixels, `(images, pixels)`."""
        shape = (self.height, self.width, self.colors.shape[1])
        if images.shape[1:] != shape:
            raise ValueError(
                f"the shape of images is {images.shape}, expected (images, "
                f"{', '.join(map(str, shape))}): the palette was made for this size"
            )
        return _nearest(images.reshape(-1, shape[-1]), self.colors).reshape(-1, len(self))

    def decode(self, ids: np.ndarray) -> np.ndarray:
        """Returns RGB images `(images, height, width, 3)` of ids of colours `(images, pixels)`."""
        images = self.colors[ids].reshape(len(ids), self.height, self.width, -1)
        return np.broadcast_to(images, (*images.shape[:3], 3))

    def mean_squared_error(self, images: np.ndarray, ids: np.ndarray) -> float:
        """Returns the mean squared difference of pixels, per channel, from their colours."""
        total = 0.0
        for some, found in zip(pieces(images), pieces(ids), strict=True):
            colors = self.colors[found].reshape(some.shape)
            total += float(np.square(some.astype(np.float64) - colors).sum())
        return total / images.size

    def save(self, folder: Path) -> None:
        """Writes size and colours to `palette.json` in a folder."""
        record = {"height": self.height, "width": self.width, "colors": self.colors.tolist()}
        write_text(folder / FILE_NAME, json.dumps(record))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads the raster that `save` has written to a folder."""
        path = folder / FILE_NAME
        try:
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(record["height"], record["width"], np.array(record["colors"], np.uint8))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorpusError(
                f"{path} has no palette ({error}), expected height, width and colors; copy the run "
                "again, or give the folder of a run of images"
            ) from None


def _nearest(pixels: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """Returns for each pixel the index of the colour at the least squared distance.

    Of colours at equal distances it is the first.

    Shape:
        pixels `(pixels, channels)`; colors `(colors, channels)`; output `(pixels,)`.
    """
    packed, inverse = np.unique(_packed(pixels), return_inverse=True)
    points = _unpacked(packed, pixels.shape[1]).astype(np.float32)
    table = colors.astype(np.float32)
    nearest = np.empty(len(points), np.int64)
    for start in range(0, len(points), 10_000):
        part = points[start : start + 10_000]
        # ‖p − c‖² without ‖p‖². Whole numbers below 2²⁴ are exact in float32, and so are ties.
        distances = (table**2).sum(1) - 2 * part @ table.T  # (pixels, colors)
        nearest[start : start + 10_000] = distances.argmin(1)
    return nearest[inverse]


def _packed(pixels: np.ndarray) -> np.ndarray:
    """Packs each pixel of `(pixels, channels)` into one number, which sorts faster than rows."""
    packed = np.zeros(len(pixels), np.int32)
    for channel in pixels.T:
        packed = packed << 8 | channel
    return packed


def _unpacked(packed: np.ndarray, channels: int) -> np.ndarray:
    """The inverse of `_packed`."""
    shifts = 8 * np.arange(channels)[::-1]
    return (packed[:, None] >> shifts & 255).astype(np.uint8)


def _k_means(pixels: np.ndarray, settings: PaletteSettings) -> np.ndarray:
    """Returns the centres of k-means, rounded to bytes and sorted."""
    # Imported here: the import takes a second, and exact palettes do not need it.
    from sklearn.cluster import KMeans

    # Each colour once, with its number of pixels as weight: a third of the pixels of MNIST beside
    # CIFAR-10 are black.
    packed, counts = np.unique(_packed(pixels), return_counts=True)
    points = _unpacked(packed, pixels.shape[1])
    if len(points) <= settings.colors:
        return points
    k_means = KMeans(settings.colors, n_init=1, max_iter=20, random_state=settings.seed)
    k_means.fit(points.astype(np.float64), sample_weight=counts)
    return np.unique(np.round(k_means.cluster_centers_).astype(np.uint8), axis=0)
