"""Images as sequences: colours of a palette in raster order."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import Self

from headwise.files import write_text
from headwise.tasks.sources import CorpusError

FILE_NAME = "palette.json"


class PaletteSettings(BaseModel):
    """How the colours are chosen; defaults are those of minGPT's example of images."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    colors: int = Field(
        512, ge=2, description="of the palette; fewer where the training images have fewer"
    )
    pixels_per_image: int = Field(
        5, ge=1, description="drawn from each training image for the choice of colours"
    )
    seed: int = Field(1, ge=0, description="of this draw and of k-means")


class Raster:
    """Pixels of images of one size as ids of colours, row by row from the top left.

    Colours are the centres of k-means over training pixels, as in Image GPT (Chen et al. 2020,
    *Generative Pretraining From Pixels*, http://proceedings.mlr.press/v119/chen20s.html) and in
    the example of minGPT that the TIM paper builds on: a pixel is one step of the sequence, and
    not three. Images that have no more colours than the palette keep them exactly.

    Args:
        height, width: of the images, in pixels.
        colors: bytes, `(colors, channels)`; 3 channels for RGB, 1 for levels of grey.

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
        """The palette of training images.

        Args:
            images: bytes, `(images, height, width, channels)`.
            settings: number of colours, and the draw.
        """
        number, height, width, channels = images.shape
        pixels = images.reshape(-1, channels)
        colors = _unpacked(np.unique(_packed(pixels)), channels)
        if len(colors) > settings.colors:
            generator = np.random.default_rng(settings.seed)
            per_image = min(settings.pixels_per_image, height * width)
            # All of them where that is still too few to make clusters of.
            if number * per_image >= 20 * settings.colors:
                within = generator.integers(height * width, size=(number, per_image))
                pixels = pixels.reshape(number, -1, channels)[np.arange(number)[:, None], within]
                pixels = pixels.reshape(-1, channels)
            colors = _k_means(pixels, settings)
        return cls(height, width, colors)

    def __len__(self) -> int:
        """The number of pixels."""
        return self.height * self.width

    @property
    def bos_token_id(self) -> int:
        """Stands before the first pixel; colours have the ids below it."""
        return len(self.colors)

    def token_ids(self) -> dict[str, int | None]:
        """Special ids, as a model's configuration takes them.

        Images are all as long as each other, so that nothing ends or fills them up.
        """
        return {"bos_token_id": self.bos_token_id, "eos_token_id": None, "pad_token_id": None}

    def encode(self, images: np.ndarray) -> np.ndarray:
        """`(images, height, width, channels)` to ids of the nearest colours, `(images, pixels)`.

        Raises:
            ValueError: images of another size.
        """
        shape = (self.height, self.width, self.colors.shape[1])
        if images.shape[1:] != shape:
            raise ValueError(
                f"images have the shape {images.shape}, expected (images, "
                f"{', '.join(map(str, shape))}), the size that the palette was made for"
            )
        ids = np.empty((len(images), len(self)), np.int64)
        for start in range(0, len(images), 1000):  # of a million pixels and their neighbours
            chunk = images[start : start + 1000].reshape(-1, shape[-1])
            ids[start : start + 1000] = _nearest(chunk, self.colors).reshape(-1, len(self))
        return ids

    def decode(self, ids: np.ndarray) -> np.ndarray:
        """`(images, pixels)` to RGB, `(images, height, width, 3)`."""
        images = self.colors[ids].reshape(len(ids), self.height, self.width, -1)
        return np.broadcast_to(images, (*images.shape[:3], 3))

    def save(self, folder: Path) -> None:
        """Write size and colours to `palette.json`."""
        record = {"height": self.height, "width": self.width, "colors": self.colors.tolist()}
        write_text(folder / FILE_NAME, json.dumps(record))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What `save` has written.

        Raises:
            CorpusError: it is not there, or something else.
        """
        path = folder / FILE_NAME
        try:
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            colors = np.array(record["colors"], np.uint8)
            if colors.ndim != 2 or colors.shape[1] not in (1, 3):
                raise ValueError(f"colors have the shape {colors.shape}")
            return cls(int(record["height"]), int(record["width"]), colors)
        except OSError as error:
            raise CorpusError(
                f"{path}: cannot be read ({error.strerror}). Give the folder of a run with images."
            ) from None
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise CorpusError(
                f"{path}: no palette with height, width and colors ({error}). Copy the run again."
            ) from None


def _nearest(pixels: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """For each pixel the index of the colour at the least squared distance; the first of equals.

    Shape: `(pixels, channels)` and `(colors, channels)` to `(pixels,)`.
    """
    packed, inverse = np.unique(_packed(pixels), return_inverse=True)
    points = _unpacked(packed, pixels.shape[1]).astype(np.float32)
    table = colors.astype(np.float32)
    nearest = np.empty(len(points), np.int64)
    for start in range(0, len(points), 10_000):
        part = points[start : start + 10_000]
        # ‖p − c‖² without ‖p‖²; whole numbers below 2²⁴ are exact, so that equals are equal.
        distances = (table**2).sum(1) - 2 * part @ table.T  # (pixels, colors)
        nearest[start : start + 10_000] = distances.argmin(1)
    return nearest[inverse]


def _packed(pixels: np.ndarray) -> np.ndarray:
    """`(pixels, channels)` as one number each: to sort these is far faster than to sort rows."""
    packed = np.zeros(len(pixels), np.int32)
    for channel in pixels.T:
        packed = packed << 8 | channel
    return packed


def _unpacked(packed: np.ndarray, channels: int) -> np.ndarray:
    shifts = 8 * np.arange(channels)[::-1]
    return (packed[:, None] >> shifts & 255).astype(np.uint8)


def _k_means(pixels: np.ndarray, settings: PaletteSettings) -> np.ndarray:
    """The centres of k-means, rounded to bytes and sorted."""
    # Imported here: it takes a second that exact palettes need not spend.
    from sklearn.cluster import KMeans

    # Each colour once, weighed by its pixels: black alone is a third of MNIST beside CIFAR-10.
    packed, counts = np.unique(_packed(pixels), return_counts=True)
    points = _unpacked(packed, pixels.shape[1])
    if len(points) <= settings.colors:
        return points
    k_means = KMeans(settings.colors, n_init=1, max_iter=20, random_state=settings.seed)
    k_means.fit(points.astype(np.float64), sample_weight=counts)
    return np.unique(np.round(k_means.cluster_centers_).astype(np.uint8), axis=0)
