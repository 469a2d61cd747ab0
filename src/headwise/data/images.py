"""Reads images as pixels of one size, and encodes pixels as colours of a palette.

The colours are the centres of k-means over training pixels, as in Chen et al. 2020, *Generative
Pretraining From Pixels*, http://proceedings.mlr.press/v119/chen20s.html, and in the image example
of minGPT. So a pixel is one step of a sequence, not three.
"""

import glob
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import datasets
import fsspec
import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageOps

from headwise.data.load import DataError, file_signature
from headwise.files import write_text

PALETTE = "palette.json"
_SAMPLED_PIXELS = 250_000  # pixels for k-means, as in minGPT: five of each image of CIFAR-10
_SEED = 1


def read_image_files(paths: Sequence[str]) -> datasets.Dataset:
    """Returns the images of folders, of zip files, or of image files.

    Hidden files and other files in a folder are ignored.

    Raises:
        DataError: a path does not exist, or no image is found.
    """
    for path in paths:
        file_signature(path)
    files = [glob.escape(path) + ("/**" if Path(path).is_dir() else "") for path in paths]
    try:
        return datasets.load_dataset(
            "imagefolder", data_files=files, split="train", drop_labels=True, drop_metadata=True
        )
    except Exception as error:
        raise DataError(
            f"{', '.join(paths)} has no images that can be read ({error}), expected folders of "
            f"image files"
        ) from error


def read_pixels(image: Any, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the largest centre crop of an image, resized, as bytes of shape `shape`.

    Args:
        image: has the `bytes` of a file, or None and its `path`.
        shape: height, width and channels: 3 for RGB and 1 for grey.

    Raises:
        DataError: the image cannot be read.
    """
    height, width, channels = shape
    try:
        picture = _open(image).convert("RGB" if channels == 3 else "L")
    except Exception as error:  # decoders raise errors of many types, even SyntaxError
        name = (image or {}).get("path") or "an image without a name"
        raise DataError(f"{name} cannot be read as an image ({error})") from error
    picture = ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    return np.asarray(picture).reshape(shape)


def _open(image: Any) -> Image.Image:
    """Returns an image as viewers show it: upright, on white, with levels of 8 bits."""
    content = image["bytes"]
    if content is None:
        with fsspec.open(image["path"], "rb") as file:
            content = file.read()
    picture: Image.Image = Image.open(io.BytesIO(content))
    if picture.mode == "F" or (picture.mode == "I" and picture.format == "TIFF"):
        raise ValueError("its levels have 32 bits, and which of them is white is not known")
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):  # levels of 16 bits, which convert would clip at 255
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.has_transparency_data:  # transparent pixels have a colour that is not seen
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture


class Palette:
    """The colours of images of one size; the number of a colour is a token of the model.

    Args:
        height, width: size of the images in pixels.
        colors: bytes of shape `(colors, channels)`, with 3 channels for RGB and 1 for grey.

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
        cls, images: Iterable[np.ndarray], shape: tuple[int, int, int], max_colors: int
    ) -> Self:
        """Returns the palette of arrays of images, `(images, height, width, channels)`."""
        height, width, channels = shape
        weights = 256 ** np.arange(channels)[::-1]  # make one number of the bytes of a pixel
        counts = np.zeros(256**channels, np.int32)
        for batch in images:
            numbers, repeats = np.unique(batch.reshape(-1, channels) @ weights, return_counts=True)
            counts[numbers] += repeats
        numbers = np.flatnonzero(counts)
        colors = (numbers[:, None] // weights % 256).astype(np.uint8)
        if len(colors) > max_colors:
            colors = _k_means(colors, counts[numbers], max_colors)
        return cls(height, width, colors)

    @property
    def names(self) -> dict[int, str]:
        """The name of each token: `#rrggbb`, and `<bos>`."""
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
        """Returns the RGB images of tokens, `(images, height, width, 3)`."""
        images = self.colors[np.asarray(ids)[:, 1:]].reshape(-1, *self.shape)
        return np.broadcast_to(images, (*images.shape[:3], 3))

    def save(self, folder: Path) -> None:
        """Writes `palette.json` into a folder."""
        content = {"height": self.height, "width": self.width, "colors": self.colors.tolist()}
        write_text(folder / PALETTE, json.dumps(content))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads the `palette.json` of a folder."""
        content = json.loads((folder / PALETTE).read_text(encoding="utf-8"))
        return cls(content["height"], content["width"], np.array(content["colors"], np.uint8))


def _k_means(colors: np.ndarray, counts: np.ndarray, max_colors: int) -> np.ndarray:
    """Returns the centres of sampled pixels as bytes, given the frequency of each colour."""
    from sklearn.cluster import KMeans

    sampled = np.random.default_rng(_SEED).multinomial(_SAMPLED_PIXELS, counts / counts.sum())
    colors, weights = colors[sampled > 0], sampled[sampled > 0]
    if len(colors) > max_colors:
        k_means = KMeans(max_colors, n_init=1, max_iter=20, random_state=_SEED)
        k_means.fit(colors.astype(np.float64), sample_weight=weights)
        colors = np.round(k_means.cluster_centers_).astype(np.uint8)
    return np.unique(colors, axis=0)
