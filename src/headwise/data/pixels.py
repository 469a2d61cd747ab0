"""Reads images of files of all kinds as pixels of one size."""

import glob
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
from PIL import Image, ImageOps

from headwise.data.load import DataError, stamp


def image_files(paths: Sequence[str]) -> datasets.Dataset:
    """Returns the images of folders, of zip files of them, or of image files.

    Other files in a folder are passed over, and so are hidden ones.

    Raises:
        DataError: a path is not there, or no image is.
    """
    for path in paths:
        stamp(path)
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


def pixels_of(image: Any, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the largest middle of an image in a size and a mode, as bytes of shape `shape`.

    Args:
        image: has the `bytes` of a file, or None and its `path`.
        shape: height, width and channels: 3 for RGB and 1 for grey.

    Raises:
        DataError: it cannot be read.
    """
    height, width, channels = shape
    try:
        picture = _seen(image).convert("RGB" if channels == 3 else "L")
    except Exception as error:  # decoders raise errors of many types, even SyntaxError
        name = (image or {}).get("path") or "an image without a name"
        raise DataError(f"{name} cannot be read as an image ({error})") from error
    picture = ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    return np.asarray(picture).reshape(shape)


def _seen(image: Any) -> Image.Image:
    """Returns an image as it looks: upright, on white, with all levels between black and white."""
    content = image["bytes"]
    if content is None:
        with fsspec.open(image["path"], "rb") as file:
            content = file.read()
    opened = Image.open(io.BytesIO(content))
    if opened.mode == "F" or (opened.mode == "I" and opened.format == "TIFF"):
        raise ValueError("of its levels, which have 32 bits, nothing says which is white")
    picture = ImageOps.exif_transpose(opened)
    if picture.mode.startswith("I"):  # of 16 bits, which convert would cut off at 255
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.has_transparency_data:  # transparent pixels have a colour that nobody sees
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture
