"""Where images come from: scikit-learn, folders and tar files, IDX files, Hugging Face datasets.

Each reader yields images as they are, in the order of the data, and knows nothing of sizes, parts
or settings; `image.pictures` fits and divides what comes out. Whatever cannot be read is a
`CorpusError` that names the file, or, of many images, one is left out and counted.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from headwise.tasks.parts import Part
from headwise.tasks.sources import CorpusError, file_content, load_hub_split, unreadable

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

# --- what ships with scikit-learn -------------------------------------------------------------


def read_digits() -> Iterator[Image.Image]:
    # Imported here: it takes a second that other sources need not spend.
    from sklearn.datasets import load_digits

    for digit in load_digits().images:  # (8, 8), 0 to 16
        yield Image.fromarray(np.round(digit * (255 / 16)).astype(np.uint8))


def photograph_patches(
    patch: int, validation_fraction: float, test_fraction: float
) -> dict[Part, list[Image.Image]]:
    """Patches of regions, three patches wide and high, that fall into one part each.

    Regions are put in the order of a hash of their place; the first are the test part, the next
    the validation part. So no part is empty, and each has something of both photographs. Training
    patches overlap by half; others do not, since a test counts them as independent.
    """
    from sklearn.datasets import load_sample_images

    side = 3 * patch
    patches: dict[Part, list[Image.Image]] = {"train": [], "validation": [], "test": []}
    for number, photograph in enumerate(load_sample_images().images):
        places = [
            (y, x)
            for y in range(0, photograph.shape[0] - side + 1, side)
            for x in range(0, photograph.shape[1] - side + 1, side)
        ]
        places.sort(key=lambda place: hashlib.sha256(f"{number} {place}".encode()).digest())
        tests = max(1, round(test_fraction * len(places)))
        validations = max(1, round(validation_fraction * len(places)))
        for index, (top, left) in enumerate(places):
            part: Part = "train"
            if index < tests + validations:
                part = "test" if index < tests else "validation"
            starts = range(0, side - patch + 1, max(1, patch // 2) if part == "train" else patch)
            for y in starts:
                for x in starts:
                    rows = slice(top + y, top + y + patch)
                    columns = slice(left + x, left + x + patch)
                    patches[part].append(Image.fromarray(photograph[rows, columns]))
    return patches


# --- files ------------------------------------------------------------------------------------


def read_image_folder(path: Path, broken: list[str]) -> Iterator[Image.Image]:
    """The images of a folder, or of a tar file, in the order of their names.

    Args:
        path: the folder.
        broken: gets the names of files that are images by name alone.
    """
    found = read = 0
    for name, content in _files(path):
        found += 1
        picture = _decoded(content)
        if picture is None:
            broken.append(name)
        else:
            read += 1
            yield picture
    if not read:
        what = f"none of its {found:,} images can be read" if found else "no images are in it"
        raise CorpusError(
            f"{path}: {what}. Expected files named {', '.join(sorted(SUFFIXES))}, in folders of "
            "their own or not."
        )


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file that is named as an image."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if _is_image_name(file.name) and file.is_file():
                yield str(file), file.read_bytes()
        return
    try:
        with tarfile.open(path) as archive:
            members = [m for m in archive.getmembers() if m.isfile() and _is_image_name(m.name)]
            for member in sorted(members, key=lambda member: member.name):
                stream = archive.extractfile(member)
                assert stream is not None  # None for what is no file
                yield f"{path}:{member.name}", stream.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        # Behind its first line tarfile tells of each compression that it has tried.
        reason = str(error).partition("\n")[0].rstrip(":")
        raise CorpusError(
            f"{path}: neither a folder nor a sound tar file ({reason}). Paths are relative to the "
            "folder in which the command is started."
            + (" IDX files, as MNIST's, are read with corpus: idx." if path.suffix == ".gz" else "")
        ) from None


def _is_image_name(name: str) -> bool:
    path = Path(name)
    # Names that begin with a dot are what systems leave behind: ._cat.png, .DS_Store.
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _decoded(content: bytes) -> Image.Image | None:
    """An image from a file's content, upright; None if it is broken."""
    try:
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
            return ImageOps.exif_transpose(picture)
    # Decoders raise all kinds of errors on what is broken, SyntaxError among them.
    except Exception:
        return None


_IDX_IMAGES = b"\x00\x00\x08\x03"  # unsigned bytes in three dimensions


def read_idx(path: Path) -> Iterator[Image.Image]:
    """The images of an IDX file: magic number, three sizes, and the pixels row by row."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":  # by content: MNIST's files lose and keep their .gz
            content = gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(
            f"{path}: not a sound gzip file ({error}). Copy or download it again."
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if content[:4] != _IDX_IMAGES:
        raise CorpusError(
            f"{path}: begins with {content[:4].hex(' ')}, expected {_IDX_IMAGES.hex(' ')}, an IDX "
            "file of images. Labels are in another file; give that of the images, as "
            "train-images-idx3-ubyte.gz."
        )
    sizes = np.frombuffer(content, ">u4", count=min(3, (len(content) - 4) // 4), offset=4)
    expected = 16 + int(sizes.prod(dtype=np.uint64))
    if len(sizes) < 3 or len(content) != expected or not sizes.all():
        raise CorpusError(
            f"{path}: {len(content):,} bytes, expected {expected:,} for "
            f"{' × '.join(map(str, sizes))} pixels, and at least one image. Copy or download it "
            "again."
        )
    for pixels in np.frombuffer(content, np.uint8, offset=16).reshape(sizes):
        yield Image.fromarray(pixels)


# --- Hugging Face datasets --------------------------------------------------------------------


def read_hub_images(
    name: str,
    split: str,
    field: str,
    broken: list[str],
    config: str | None = None,
    revision: str | None = None,
) -> Iterator[Image.Image]:
    """One split of a dataset on the Hugging Face hub, or of a local folder in its formats.

    Args:
        field: column of the images.
        broken: gets the places of those that cannot be read.
        name, split, config, revision: see `load_hub_split`.

    Raises:
        CorpusError: no such dataset, split or column of images, or none can be read.
    """
    # Imported here: it takes a second that no other source needs to spend.
    import datasets

    dataset = load_hub_split(name, split, config, revision)
    if not isinstance(dataset.features.get(field), datasets.Image):
        columns = ", ".join(
            f"{column} ({type(feature).__name__})" for column, feature in dataset.features.items()
        )
        raise CorpusError(
            f"dataset {name!r}, split {split!r}: there is no column {field!r} of images; there are "
            f"{columns}. Set data.field to one of type Image."
        )
    # Not decoded by datasets: one broken image would end the reading.
    column = dataset.select_columns([field]).cast_column(field, datasets.Image(decode=False))
    read = 0
    for number, record in enumerate(column):
        picture = _decoded(file_content(record[field]))
        if picture is None:
            broken.append(f"dataset {name!r}, split {split!r}, row {number}")
        else:
            read += 1
            yield picture
    if not read:
        raise CorpusError(
            f"dataset {name!r}, split {split!r}: none of its {len(dataset):,} images can be read"
        )
