"""Readers of images: scikit-learn, folders and tar files, IDX files, Hugging Face datasets.

Each reader yields the images unchanged, in the order of the data. `image.corpus` fits them to one
size and divides them. A source that cannot be read raises a `CorpusError` that names the file.
Where a source has many images, one that cannot be read is left out and counted.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from headwise.data.division import PARTS, Part, divide
from headwise.data.sources import (
    CorpusError,
    check_regular,
    file_content,
    load_hub_split,
    unreadable,
)

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class Limits(NamedTuple):
    """The most that is read into memory at once; `ImageData` has a key for each.

    Attributes:
        max_pixels: of an image.
        max_bytes: of a file, a member of a tar file, or what a gzip file expands to.
    """

    max_pixels: int
    max_bytes: int

    def check_bytes(self, name: object, size: int) -> None:
        """Raises `CorpusError` for a file that is too large."""
        if size > self.max_bytes:
            raise CorpusError(
                f"{name} has {size:,} bytes, expected at most {self.max_bytes:,}; leave it out, or "
                "set data.max_bytes"
            )


# --- images that scikit-learn brings along ----------------------------------------------------


def read_digits() -> Iterator[Image.Image]:
    """Yields the handwritten digits of scikit-learn, 8×8 pixels in levels of grey."""
    # Imported here: the import takes a second, and no other source needs it.
    from sklearn.datasets import load_digits

    for digit in load_digits().images:  # (8, 8), 0 to 16
        yield Image.fromarray(np.round(digit * (255 / 16)).astype(np.uint8))


def read_patches(
    patch: int, validation_fraction: float, test_fraction: float
) -> dict[Part, list[Image.Image]]:
    """Reads square patches of the two sample photographs of scikit-learn, in three parts.

    Each photograph is divided into square regions, three patches wide and high, and all patches of
    a region are in one part. `divide` decides on the part of a region by its place. So every part
    has patches of both photographs. Training patches overlap by half. Patches of the other parts
    do not overlap, because statistical tests take them as independent.

    Args:
        patch: height and width of a patch, in pixels.
        validation_fraction, test_fraction: shares of the regions.
    """
    from sklearn.datasets import load_sample_images

    side = 3 * patch
    patches: dict[Part, list[Image.Image]] = {part: [] for part in PARTS}
    for number, photograph in enumerate(load_sample_images().images):
        regions = {
            f"{number} {(top, left)}": (top, left)
            for top in range(0, photograph.shape[0] - side + 1, side)
            for left in range(0, photograph.shape[1] - side + 1, side)
        }
        # In the order of their hashes, so that neighbours do not follow each other.
        for key, part in divide(regions, validation_fraction, test_fraction).items():
            top, left = regions[key]
            starts = range(0, side - patch + 1, max(1, patch // 2) if part == "train" else patch)
            for y in starts:
                for x in starts:
                    rows = slice(top + y, top + y + patch)
                    columns = slice(left + x, left + x + patch)
                    patches[part].append(Image.fromarray(photograph[rows, columns]))
    return patches


# --- files ------------------------------------------------------------------------------------


def read_image_folder(path: Path, broken: list[str], limits: Limits) -> Iterator[Image.Image]:
    """Yields the images of a folder or of a tar file, in the order of their names.

    Args:
        path: the folder or the tar file.
        broken: receives the names of image files that cannot be read.
        limits: how large an image may be.

    Raises:
        CorpusError: if `path` is neither a folder nor a tar file, if no image can be read, or if
            one is too large.
    """
    found = read = 0
    for name, content in _files(path, limits):
        found += 1
        picture = _decoded(content, name, limits)
        if picture is None:
            broken.append(name)
        else:
            read += 1
            yield picture
    if not read:
        raise CorpusError(
            f"{path} has {found:,} image files, of which none can be read, expected at least one: "
            f"a file in it or in a subfolder whose name ends in {', '.join(sorted(SUFFIXES))}"
        )


def _files(path: Path, limits: Limits) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of each file that has the name of an image."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if _is_image_name(file.name) and file.is_file():
                limits.check_bytes(file, file.stat().st_size)
                yield str(file), file.read_bytes()
        return
    check_regular(path)
    try:
        with tarfile.open(path) as archive:
            members = [m for m in archive.getmembers() if m.isfile() and _is_image_name(m.name)]
            for member in sorted(members, key=lambda member: member.name):
                limits.check_bytes(f"{path}:{member.name}", member.size)
                stream = archive.extractfile(member)
                assert stream is not None  # it is None for folders
                yield f"{path}:{member.name}", stream.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        # After the first line, tarfile lists each compression that it has tried.
        reason = str(error).partition("\n")[0].rstrip(":")
        raise CorpusError(
            f"{path} is neither a folder nor an intact tar file ({reason}). Paths are relative to "
            "the folder in which the command is started."
            + (" For IDX files, such as MNIST's, set corpus: idx." if path.suffix == ".gz" else "")
        ) from None


def _is_image_name(name: str) -> bool:
    path = Path(name)
    # Operating systems leave files behind whose names begin with a dot: ._cat.png, .DS_Store.
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _decoded(content: bytes, name: str, limits: Limits) -> Image.Image | None:
    """Returns the image in a file's content, rotated as its EXIF data say.

    Returns None if it cannot be read. Raises `CorpusError` if it has too many pixels.
    """
    try:
        with _without_pillows_limit(), Image.open(io.BytesIO(content)) as picture:
            if picture.width * picture.height > limits.max_pixels:
                raise CorpusError(
                    f"{name} has {picture.width:,} × {picture.height:,} pixels, expected at most "
                    f"{limits.max_pixels:,} of them; leave it out, make it smaller, or set "
                    "data.max_pixels"
                )
            picture.load()
            return ImageOps.exif_transpose(picture)
    except CorpusError:
        raise
    # Decoders raise errors of many types on broken files, even SyntaxError.
    except Exception:
        return None


@contextmanager
def _without_pillows_limit() -> Iterator[None]:
    """While this context is open, Pillow's limit of pixels is off, since `Limits` has its own.

    Pillow has one limit for the whole process, and warns or raises an error beyond it.
    """
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


_IDX_IMAGES = b"\x00\x00\x08\x03"  # unsigned bytes in three dimensions


def read_idx(path: Path, limits: Limits) -> Iterator[Image.Image]:
    """Yields the images of an IDX file: a magic number, three sizes, and the pixels row by row.

    Args:
        path: the file, compressed with gzip or not.
        limits: how large an image and the unpacked file may be.

    Raises:
        CorpusError: if the file cannot be read or is not an IDX file of images, or if it is too
            large.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"  # MNIST's files are often renamed without .gz
        with gzip.open(path) if packed else path.open("rb") as file:
            sizes = _idx_sizes(file.read(16), path, limits)
            expected = sizes[0] * sizes[1] * sizes[2]
            # At most one byte more than the header says, and in blocks: `read(size)` takes memory
            # for `size` bytes, even if the file is shorter.
            blocks = iter(lambda: file.read(2**20), b"")
            content = b"".join(_up_to(expected + 1, blocks))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(
            f"{path} is not an intact gzip file ({error}). Copy or download it again."
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if len(content) != expected:
        more = "more than " if len(content) > expected else ""
        raise CorpusError(
            f"{path} has {more}{16 + min(len(content), expected):,} bytes, expected "
            f"{16 + expected:,} for {' × '.join(map(str, sizes))} pixels; copy or download it again"
        )
    for pixels in np.frombuffer(content, np.uint8).reshape(sizes):
        yield Image.fromarray(pixels)


def _up_to(size: int, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields blocks, cut off behind so many bytes."""
    for block in blocks:
        yield block[:size]
        size -= len(block)
        if size <= 0:
            return


def _idx_sizes(header: bytes, path: Path, limits: Limits) -> tuple[int, int, int]:
    """Returns how many images an IDX file has, their height and their width, by its header."""
    if header[:4] != _IDX_IMAGES:
        raise CorpusError(
            f"{path} begins with the bytes {header[:4].hex(' ')}, expected "
            f"{_IDX_IMAGES.hex(' ')}: an IDX file of images, not of labels; give the file of the "
            "images, such as train-images-idx3-ubyte.gz"
        )
    if len(header) < 16:
        raise CorpusError(
            f"{path} has {len(header)} bytes, expected at least 16 of its header; copy or download "
            "it again"
        )
    images, height, width = struct.unpack(">3I", header[4:])
    if not (images and height and width):
        raise CorpusError(
            f"{path} has {images} × {height} × {width} pixels, expected at least one image of at "
            "least one pixel; copy or download it again"
        )
    if height * width > limits.max_pixels:
        raise CorpusError(
            f"{path} has images of {height:,} × {width:,} pixels, expected at most "
            f"{limits.max_pixels:,} of them; copy it again, or set data.max_pixels"
        )
    limits.check_bytes(path, 16 + images * height * width)
    return images, height, width


# --- Hugging Face datasets --------------------------------------------------------------------


def read_hub_images(
    name: str,
    split: str,
    field: str,
    broken: list[str],
    limits: Limits,
    config: str | None = None,
    revision: str | None = None,
) -> Iterator[Image.Image]:
    """Yields the images of one split of a dataset on the Hugging Face hub.

    Args:
        name: the name of the dataset, or a local folder in one of the hub's formats.
        split: the name of the split.
        field: the column that holds the images.
        broken: receives the places of images that cannot be read.
        limits: how large an image may be.
        config: the configuration of the dataset; see `load_hub_split`.
        revision: a tag or commit of the dataset; see `load_hub_split`.

    Raises:
        CorpusError: if there is no such dataset, split or column of images, or if no image can be
            read.
    """
    # Imported here: the import takes a second, and no other source needs it.
    import datasets

    dataset = load_hub_split(name, split, config, revision)
    if not isinstance(dataset.features.get(field), datasets.Image):
        columns = ", ".join(
            f"{column} ({type(feature).__name__})" for column, feature in dataset.features.items()
        )
        raise CorpusError(
            f"data.field is {field!r}, expected a column of images of dataset {name!r}, split "
            f"{split!r}: its columns are {columns}; set data.field to one of type Image"
        )
    # If datasets decoded the images, the first broken one would end the reading.
    column = dataset.select_columns([field]).cast_column(field, datasets.Image(decode=False))
    read = 0
    for number, record in enumerate(column):
        where = f"dataset {name!r}, split {split!r}, row {number}"
        content = file_content(record[field])
        limits.check_bytes(where, len(content))
        picture = _decoded(content, where, limits)
        if picture is None:
            broken.append(where)
        else:
            read += 1
            yield picture
    if not read:
        raise CorpusError(
            f"dataset {name!r}, split {split!r}: none of its {len(dataset):,} images can be read"
        )
