"""Readers of images: scikit-learn, folders and tar files, IDX files, Hugging Face datasets.

Each reader yields the images unchanged, in the order of the data; `images.corpus` fits them to one
size and divides them. Where a source has many images, one that cannot be read is left out and
counted.
"""

import gzip
import io
import math
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from headwise.data.corpora import Source, files_source, split_source
from headwise.data.division import PARTS, Part, divide
from headwise.data.images.settings import (
    DigitsImages,
    FolderImages,
    HubImages,
    HubImagesTest,
    IdxImages,
    IdxTest,
    ImageData,
    ImageTest,
    PhotographsImages,
)
from headwise.data.sources import (
    CorpusError,
    bytes_of_file,
    file_content,
    files_below,
    skipped_in_words,
    unreadable,
)

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_IDX_IMAGES = b"\x00\x00\x08\x03"  # unsigned bytes in three dimensions


# --- images that scikit-learn brings along ----------------------------------------------------


def built_in(settings: ImageData) -> dict[str, Source]:
    """Returns the source of each part that scikit-learn has; none for other data."""
    version = f"scikit-learn {metadata.version('scikit-learn')}"
    if isinstance(settings, DigitsImages):
        words = f"digits of {version}"
        return {"train": Source(words, lambda: (_read_digits(), words))}
    if not isinstance(settings, PhotographsImages):
        return {}
    patch, fractions = settings.patch, settings.fractions()
    words = f"{patch}×{patch} patches of the photographs of {version}"

    def source(part: Part) -> Source:
        return Source(words, lambda: (_read_patches(patch, *fractions, part), words))

    return {part: source(part) for part in PARTS}


def _read_digits() -> Iterator[Image.Image]:
    """Yields the handwritten digits of scikit-learn, 8×8 pixels in levels of grey."""
    # Imported here: the import takes a second, and no other source needs it.
    from sklearn.datasets import load_digits

    for digit in load_digits().images:  # (8, 8), 0 to 16
        yield Image.fromarray(np.round(digit * (255 / 16)).astype(np.uint8))


def _read_patches(
    patch: int, validation_fraction: float, test_fraction: float, wanted: Part
) -> Iterator[Image.Image]:
    """Yields square patches of the two sample photographs of scikit-learn.

    Each photograph is divided into square regions, three patches wide and high, and all patches of
    a region are in one part. `divide` decides on the part of a region by its place. So every part
    has patches of both photographs. Training patches overlap by half. Patches of the other parts
    do not overlap, because statistical tests take them as independent.
    """
    from sklearn.datasets import load_sample_images

    side = 3 * patch
    starts = range(0, side - patch + 1, max(1, patch // 2) if wanted == "train" else patch)
    for number, photograph in enumerate(load_sample_images().images):
        picture = Image.fromarray(photograph)
        regions = {
            f"{number} {(top, left)}": (top, left)
            for top in range(0, picture.height - side + 1, side)
            for left in range(0, picture.width - side + 1, side)
        }
        # In the order of their hashes, so that neighbours do not follow each other.
        for key, part in divide(regions, validation_fraction, test_fraction).items():
            top, left = regions[key]
            for y, x in product(starts, starts) if part == wanted else ():
                box = (left + x, top + y, left + x + patch, top + y + patch)
                yield picture.crop(box)


# --- files and datasets -----------------------------------------------------------------------


def image_source(
    limits: ImageData,
    skipped: list[str],
    settings: FolderImages | IdxImages | HubImages | ImageTest,
    given: Path | str,
) -> Source:
    """Returns the source of a folder, a tar file, an IDX file, or a split of a dataset.

    Its images are read in the order of their names. A `CorpusError` is raised if the source cannot
    be read, if none of its images can be read, or if one is too large.

    Args:
        limits: how many pixels an image and how many bytes a file may have.
        skipped: receives why images are left out.
        settings, given: the settings that name the source, and the path or the split.
    """
    if isinstance(settings, HubImages | HubImagesTest):
        read = partial(_read_split, limits, skipped, settings.field)
        return split_source(settings, str(given), read)
    path = Path(given).expanduser()
    if isinstance(settings, IdxImages | IdxTest):
        return files_source([path], partial(_read_idx, path, limits))
    files = _folder_files if path.is_dir() else _tar_files
    return files_source([path], lambda: _decoded_all(files(path, limits), path, limits, skipped))


def _decoded_all(
    files: Iterable[tuple[str, bytes]], where: object, limits: ImageData, skipped: list[str]
) -> Iterator[Image.Image]:
    """Yields the images among files, of which there must be one."""
    found = read = 0
    for name, content in files:
        found += 1
        _check_bytes(name, len(content), limits)
        picture = _decoded(content, name, limits)
        if isinstance(picture, str):
            skipped.append(f"{name} {picture}")
            continue
        read += 1
        yield picture
    if not read:
        names = f"in a folder, these are files whose names end in {', '.join(sorted(SUFFIXES))}"
        why = skipped_in_words(skipped[-found:]) if found else names
        raise CorpusError(
            f"{where} has {found:,} images, of which none can be read, expected at least one: {why}"
        )


def _folder_files(folder: Path, limits: ImageData) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of each file that has the name of an image."""
    for file in files_below(folder):
        if _is_image_name(file.name) and file.is_file():
            _check_bytes(str(file), file.stat().st_size, limits)
            yield str(file), bytes_of_file(file)


def _tar_files(path: Path, limits: ImageData) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of each image file in a tar file, sorted by name."""
    try:
        with tarfile.open(path) as archive:
            members = [m for m in archive.getmembers() if m.isfile() and _is_image_name(m.name)]
            for member in sorted(members, key=lambda member: member.name):
                _check_bytes(f"{path}:{member.name}", member.size, limits)
                stream = archive.extractfile(member)
                assert stream is not None  # it is None for folders
                yield f"{path}:{member.name}", stream.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        # After the first line, tarfile lists each compression that it has tried.
        reason = str(error).partition("\n")[0].rstrip(":")
        raise CorpusError(
            f"{path} is neither a folder nor an intact tar file ({reason})."
            + (" For IDX files, such as MNIST's, set corpus: idx." if path.suffix == ".gz" else "")
        ) from None


def _is_image_name(name: str) -> bool:
    path = Path(name)
    # Operating systems leave files behind whose names begin with a dot: ._cat.png, .DS_Store.
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _read_split(
    limits: ImageData, skipped: list[str], field: str, rows: Any, where: str
) -> Iterator[Image.Image]:
    # Imported here: the import takes a second, and no other source needs it.
    import datasets

    if not isinstance(rows.features.get(field), datasets.Image):
        columns = ", ".join(
            f"{column} ({type(feature).__name__})" for column, feature in rows.features.items()
        )
        raise CorpusError(
            f"data.field is {field!r}, expected a column of images of {where}: its columns are "
            f"{columns}; set data.field to one of type Image"
        )
    # If datasets decoded the images, the first broken one would end the reading.
    column = rows.select_columns([field]).cast_column(field, datasets.Image(decode=False))
    files = (
        (f"{where}, row {number}", file_content(record[field]))
        for number, record in enumerate(column)
    )
    return _decoded_all(files, f"{where},", limits, skipped)


def _check_bytes(name: str, size: int, limits: ImageData) -> None:
    if size > limits.max_bytes:
        raise CorpusError(
            f"{name} has {size:,} bytes, expected at most {limits.max_bytes:,}; leave it out, or "
            "set data.max_bytes"
        )


def _decoded(content: bytes, name: str, limits: ImageData) -> Image.Image | str:
    """Returns an image, rotated as its EXIF data say, or why it cannot be read."""
    before = Image.MAX_IMAGE_PIXELS
    try:
        Image.MAX_IMAGE_PIXELS = None  # Pillow's limit for the whole process; ours is max_pixels
        with Image.open(io.BytesIO(content)) as picture:
            if picture.width * picture.height > limits.max_pixels:
                raise CorpusError(
                    f"{name} has {picture.width:,} × {picture.height:,} pixels, expected at most "
                    f"{limits.max_pixels:,} of them; leave it out, make it smaller, or set "
                    "data.max_pixels"
                )
            picture.load()
            # Of numbers of 32 bits nothing says which is white. PGM and PNG have 16 at most.
            if picture.mode == "F" or (picture.mode == "I" and picture.format == "TIFF"):
                return "has levels of 32 bits, of which none is known to be white"
            return ImageOps.exif_transpose(picture)
    except CorpusError:
        raise
    # Decoders raise errors of many types on broken files, even SyntaxError.
    except Exception:
        return "cannot be read as an image"
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _read_idx(path: Path, limits: ImageData) -> Iterator[Image.Image]:
    """Yields the images of an IDX file: a magic number, three sizes, and the pixels row by row."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"  # MNIST's files are often renamed without .gz
        with gzip.open(path) if packed else path.open("rb") as file:
            sizes = _idx_sizes(file.read(16), path)
            expected = math.prod(sizes)
            _check_bytes(str(path), 16 + expected, limits)
            content = file.read(expected + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(
            f"{path} is not an intact gzip file ({error}). Copy or download it again."
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if len(content) != expected or not content:
        more = "at least " if len(content) > expected else ""
        raise CorpusError(
            f"{path} has {more}{16 + len(content):,} bytes, expected {16 + expected:,} for "
            f"{' × '.join(map(str, sizes))} pixels, and at least one image; copy or download it "
            "again"
        )
    for pixels in np.frombuffer(content, np.uint8).reshape(sizes):
        yield Image.fromarray(pixels)


def _idx_sizes(header: bytes, path: Path) -> tuple[int, int, int]:
    """Returns how many images an IDX file has, their height and their width."""
    if header[:4] != _IDX_IMAGES or len(header) < 16:
        raise CorpusError(
            f"{path} begins with the bytes {header[:4].hex(' ')}, expected "
            f"{_IDX_IMAGES.hex(' ')} and three sizes: an IDX file of images, not of labels; give "
            "the file of the images, such as train-images-idx3-ubyte.gz"
        )
    images, height, width = struct.unpack(">3I", header[4:])
    return images, height, width
