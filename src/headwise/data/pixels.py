"""Reads images of files of all kinds as pixels of one size."""

import io
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
from PIL import Image, ImageOps

from headwise.data.builtin import image_row
from headwise.data.load import DataError, Row, generated, stamp

_IDX = b"\x00\x00\x08\x03"  # unsigned bytes in three dimensions


def image_files(paths: Sequence[str]) -> datasets.Dataset:
    """Returns the images of folders, of zip files of them, of image files, or of IDX files.

    Other files in a folder are passed over, and so are hidden ones.

    Raises:
        DataError: a path is not there, or no image is.
    """
    stamps = [stamp(path) for path in paths]
    if all(path.removesuffix(".gz").endswith(("ubyte", ".idx")) for path in paths):
        return generated(_idx_images, paths=paths, stamps=stamps)
    special = str.maketrans({character: f"[{character}]" for character in "[*?"})
    files = [
        f"{path.translate(special)}/**" if Path(path).is_dir() else path.translate(special)
        for path in paths
    ]
    try:
        return datasets.load_dataset(
            "imagefolder", data_files=files, split="train", drop_labels=True, drop_metadata=True
        )
    except Exception as error:
        raise DataError(
            f"{', '.join(paths)} has no images that can be read ({error}), expected a folder of "
            f"image files, with or without a folder for each class, or IDX files, whose names end "
            f"in -ubyte or .idx"
        ) from error


def pixels_of(image: Any, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the middle of an image in a size and a mode, as bytes of shape `shape`.

    Args:
        image: has the `bytes` of a file, or None and its `path`.
        shape: height, width and channels: 3 for RGB and 1 for grey.

    Raises:
        Exception: it cannot be read; decoders raise errors of many types, even SyntaxError.
    """
    if not isinstance(image, Mapping):
        raise ValueError(f"{image!r:.50} is no image")
    content = image["bytes"]
    if content is None:
        with fsspec.open(image["path"], "rb") as file:
            content = file.read()
    opened = Image.open(io.BytesIO(content))
    if opened.mode == "F" or (opened.mode == "I" and opened.format == "TIFF"):
        raise ValueError("of its levels, which have 32 bits, nothing says which is white")
    picture: Image.Image = ImageOps.exif_transpose(opened)
    if picture.mode.startswith("I"):  # of 16 bits, which convert would cut off at 255
        levels, hidden = np.asarray(picture), picture.info.get("transparency", -1)
        picture = Image.fromarray(np.where(levels == hidden, 255, levels >> 8).astype(np.uint8))
    if picture.has_transparency_data:  # transparent pixels have a colour that nobody sees
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    height, width, channels = shape
    picture = picture.convert("RGB" if channels == 3 else "L")
    if picture.size != (width, height):
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)
    return np.asarray(picture).reshape(shape)


def pixels_of_file(path: str | Path, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the same of an image file that a user names."""
    try:
        return pixels_of({"bytes": None, "path": str(path)}, shape)
    except Exception as error:
        raise DataError(f"{path} cannot be read as an image ({type(error).__name__})") from error


def _idx_images(paths: Sequence[str], **_: object) -> Iterator[Row]:
    """Yields the images of IDX files: a magic number, three sizes, and the pixels row by row."""
    for path in paths:
        with fsspec.open(path, "rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"  # MNIST's files are often renamed without .gz
        with fsspec.open(path, "rb", compression="gzip" if is_packed else None) as file:
            header = file.read(16)
            if header[:4] != _IDX or len(header) < 16:
                raise DataError(
                    f"{path} begins with the bytes {header[:4].hex(' ')}, expected {_IDX.hex(' ')} "
                    f"and three sizes: give an IDX file of images, such as "
                    f"train-images-idx3-ubyte.gz, not that of labels"
                )
            images, height, width = struct.unpack(">3I", header[4:])
            try:
                for number in range(images):
                    pixels = file.read(height * width)
                    if len(pixels) < height * width:
                        raise DataError(
                            f"{path} has {16 + number * height * width + len(pixels)} bytes, "
                            f"expected {16 + images * height * width} for {images} × {height} × "
                            f"{width} pixels: copy or download it again"
                        )
                    array = np.frombuffer(pixels, np.uint8).reshape(height, width)
                    yield image_row(array, f"image {number} of {path}")
            except (EOFError, zlib.error) as error:
                raise DataError(
                    f"{path} is not an intact gzip file ({error}): copy or download it again"
                ) from error
