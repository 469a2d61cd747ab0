"""Images: settings, reading, and a division into parts that leaks nothing.

All images of a data set have one size. Parts that are given are taken as they are. Parts that are
not given are divided off the training images by a hash of the pixels: an image falls into the same
part on every machine, and one that occurs twice never lands in two parts. Patches of a photograph
are divided by regions of it, so that what overlaps stays together.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from headwise.tasks.corpora import PARTS, Part, part_of
from headwise.tasks.sources import CorpusError, load_hub_split

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

# --- settings ---------------------------------------------------------------------------------


class _Images(BaseModel):
    """What all sources have in common."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(32, ge=1, description="pixels of a side; images are cut square and resized")
    mode: Literal["rgb", "grey"] = Field("rgb", description="colours, or levels of grey")
    validation_fraction: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="share of the training images that becomes the validation part, where none "
        "is given",
    )
    test_fraction: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="share of the training images that becomes the test part, where none is given",
    )


class DigitsImages(_Images):
    """Scikit-learn's 1,797 handwritten digits of 8×8 pixels in 17 levels of grey."""

    corpus: Literal["digits"] = Field("digits", description="scikit-learn's digits")
    size: int = Field(8, ge=1, description="pixels of a side; images are cut square and resized")
    mode: Literal["rgb", "grey"] = Field("grey", description="colours, or levels of grey")


class PhotographsImages(_Images):
    """Square patches of scikit-learn's two sample photographs, of a temple and of a flower."""

    corpus: Literal["photographs"] = Field(
        "photographs", description="patches of scikit-learn's sample photographs"
    )
    size: int = Field(8, ge=1, description="pixels of a side; images are cut square and resized")
    patch: int = Field(
        16, ge=1, le=64, description="pixels of a side that are cut out and resized to size"
    )


class FolderImages(_Images):
    """Folders of image files, in folders of their own (classes) or not, or tar files of such."""

    corpus: Literal["folder"] = Field("folder", description="folders of images")
    train: Path = Field(description="folder, or tar file of one, of the training images")
    validation: Path | None = Field(
        None, description="likewise; without it, a share of the training images"
    )
    test: Path | None = Field(
        None, description="likewise; without it, a share of the training images"
    )


class IdxImages(_Images):
    """IDX files, as MNIST comes in."""

    corpus: Literal["idx"] = Field("idx", description="IDX files, the format of MNIST")
    size: int = Field(28, ge=1, description="pixels of a side; images are cut square and resized")
    mode: Literal["rgb", "grey"] = Field("grey", description="colours, or levels of grey")
    train: Path = Field(description="train-images-idx3-ubyte, gzip or not")
    validation: Path | None = Field(
        None, description="likewise; without it, a share of the training images"
    )
    test: Path | None = Field(
        None, description="t10k-images-idx3-ubyte; without it, a share of the training images"
    )


class HubImages(_Images):
    """A dataset of the Hugging Face hub, or a local folder in one of its formats."""

    corpus: Literal["hub"] = Field("hub", description="a Hugging Face dataset")
    name: str = Field(description="name on the hub, or a local folder with its parquet files")
    config: str | None = Field(None, description="configuration (subset) of the dataset")
    revision: str | None = Field(
        None, description="branch, tag or commit of the dataset, to pin its content"
    )
    field: str = Field("image", description="column of the images (CIFAR-10: img)")
    train_split: str = Field(
        "train", description="split to train on; a slice such as train[:10000] takes a part"
    )
    validation_split: str | None = Field(
        None, description="split to validate on; null takes a share of the training split"
    )
    test_split: str | None = Field(
        "test", description="split to test on; null takes a share of the training split"
    )


Source = Annotated[
    DigitsImages | PhotographsImages | FolderImages | IdxImages | HubImages,
    Field(discriminator="corpus"),
]


class PairImages(BaseModel):
    """Images whose left half is of one source and whose right half is of another.

    Image n of the larger source stands beside an image of the other drawn for n once and for all;
    the other's images take turns in shuffled rounds. Parts are made before pairs: what stands in a
    training image is in no other part.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: Literal["pair"] = Field("pair", description="two sources side by side")
    left: Source = Field(
        default_factory=lambda: DigitsImages(), description="source of the left halves"
    )
    right: Source = Field(
        default_factory=lambda: PhotographsImages(), description="source of the right halves"
    )
    pairing_seed: int = Field(1, ge=0, description="of which image stands beside which")

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.left.size != self.right.size:
            raise ValueError(
                f"left.size is {self.left.size}, but right.size is {self.right.size}: halves "
                f"stand side by side; set both to one size"
            )
        return self


ImageSettings = Annotated[
    DigitsImages | PhotographsImages | FolderImages | IdxImages | HubImages | PairImages,
    Field(discriminator="corpus"),
]


def image_shape(settings: ImageSettings) -> tuple[int, int, int]:
    """Height, width and channels of the images that settings ask for.

    >>> image_shape(PairImages())
    (8, 16, 3)
    """
    if not isinstance(settings, PairImages):
        return _shape(settings)
    (height, left, channels), (_, right, others) = _shape(settings.left), _shape(settings.right)
    return height, left + right, max(channels, others)


def _shape(settings: _Images) -> tuple[int, int, int]:
    return settings.size, settings.size, 3 if settings.mode == "rgb" else 1


# --- the parts --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageParts:
    """Images in three parts, none of them empty: bytes, `(images, height, width, channels)`."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    notes: dict[str, str]


def load_images(settings: ImageSettings) -> ImageParts:
    """Read images, skip what is broken, and divide off the parts that are not given.

    Raises:
        CorpusError: data that cannot be read, or too little to fill the three parts. The message
            names the file or field and says how to mend it.

    Example:
        >>> images = load_images(DigitsImages())
        >>> images.train.shape[1:], images.train.dtype
        ((8, 8, 1), dtype('uint8'))
    """
    if isinstance(settings, PairImages):
        return _load_pairs(settings)
    broken: list[str] = []
    if isinstance(settings, PhotographsImages):
        parts = _photograph_parts(settings)
        origin = f"{settings.patch}×{settings.patch} patches of scikit-learn's photographs"
    else:
        given, origin = _given_parts(settings, broken)
        parts = _divide(given, settings)
    for part in PARTS:
        if not len(parts[part]):
            sizes = ", ".join(f"{name} {len(parts[name]):,}" for name in PARTS)
            raise CorpusError(
                f"images: none for the {part} part ({sizes}; {origin}). Give more images, a "
                "larger validation_fraction or test_fraction, or a source of its own for the part."
            )
    height, width, _ = image_shape(settings)
    notes = {
        "images": f"{origin}; {height}×{width} pixels",
        "parts": ", ".join(f"{part} {len(parts[part]):,}" for part in PARTS),
    }
    if broken:
        notes["skipped"] = f"{len(broken):,} images that cannot be read: {broken[0]}" + (
            ", ..." if len(broken) > 1 else ""
        )
    return ImageParts(parts["train"], parts["validation"], parts["test"], notes)


def _given_parts(
    settings: DigitsImages | FolderImages | IdxImages | HubImages, broken: list[str]
) -> tuple[dict[Part, np.ndarray], str]:
    """What the source has, part by part, and where it comes from in words."""
    if isinstance(settings, DigitsImages):
        return {"train": _joined(_read_digits(), settings)}, "scikit-learn's digits"
    if isinstance(settings, HubImages):
        splits = {part: getattr(settings, f"{part}_split") for part in PARTS}
        given = {
            part: _joined(_read_hub(settings, split, broken), settings)
            for part, split in splits.items()
            if split is not None
        }
        return given, " ".join(filter(None, ("dataset", settings.name, settings.config)))
    paths = {part: getattr(settings, part) for part in PARTS}
    read: Callable[[Path], Iterator[Image.Image]] = _read_idx
    if isinstance(settings, FolderImages):
        read = lambda path: _read_folder(path, broken)  # noqa: E731
    given = {
        part: _joined(read(path.expanduser()), settings)
        for part, path in paths.items()
        if path is not None
    }
    return given, f"{settings.corpus} {settings.train.name}"


def _joined(pictures: Iterator[Image.Image], settings: _Images) -> np.ndarray:
    """Images of one size in one array, `(images, height, width, channels)`."""
    arrays = [_fitted(picture, settings) for picture in pictures]
    return np.stack(arrays) if arrays else np.empty([0, *_shape(settings)], np.uint8)


def _fitted(picture: Image.Image, settings: _Images) -> np.ndarray:
    """The middle square of an image in the size and mode asked for."""
    if picture.has_transparency_data:  # what is transparent has a colour, but not one to be seen
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    if picture.mode.startswith("I;16"):  # convert would cut values off at 255
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    picture = picture.convert("RGB" if settings.mode == "rgb" else "L")
    size = (settings.size, settings.size)
    if picture.size != size:
        picture = ImageOps.fit(picture, size, Image.Resampling.LANCZOS)
    return np.asarray(picture).reshape(_shape(settings))


def _divide(given: dict[Part, np.ndarray], settings: _Images) -> dict[Part, np.ndarray]:
    """The given parts, and the missing ones divided off the training images."""
    validation_fraction = 0.0 if "validation" in given else settings.validation_fraction
    test_fraction = 0.0 if "test" in given else settings.test_fraction
    if not validation_fraction and not test_fraction:
        return given
    falls_into = np.array(
        [
            part_of(hashlib.sha256(image.tobytes()).hexdigest(), validation_fraction, test_fraction)
            for image in given["train"]
        ]
    )
    divided = {part: given["train"][falls_into == part] for part in PARTS}
    return {**divided, **{part: given[part] for part in given if part != "train"}}


# --- what ships with scikit-learn -------------------------------------------------------------


def _read_digits() -> Iterator[Image.Image]:
    # Imported here: it takes a second that other sources need not spend.
    from sklearn.datasets import load_digits

    for digit in load_digits().images:  # (8, 8), 0 to 16
        yield Image.fromarray(np.round(digit * (255 / 16)).astype(np.uint8))


def _photograph_parts(settings: PhotographsImages) -> dict[Part, np.ndarray]:
    """Patches of regions, three patches wide and high, that fall into one part each.

    Regions are put in the order of a hash of their place; the first are the test part, the next
    the validation part. So no part is empty, and each has something of both photographs. Training
    patches overlap by half; others do not, since a test counts them as independent.
    """
    from sklearn.datasets import load_sample_images

    patch = settings.patch
    side = 3 * patch
    patches: dict[Part, list[Image.Image]] = {part: [] for part in PARTS}
    for number, photograph in enumerate(load_sample_images().images):
        places = [
            (y, x)
            for y in range(0, photograph.shape[0] - side + 1, side)
            for x in range(0, photograph.shape[1] - side + 1, side)
        ]
        places.sort(key=lambda place: hashlib.sha256(f"{number} {place}".encode()).digest())
        tests = max(1, round(settings.test_fraction * len(places)))
        validations = max(1, round(settings.validation_fraction * len(places)))
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
    return {part: _joined(iter(patches[part]), settings) for part in PARTS}


# --- files ------------------------------------------------------------------------------------


def _read_folder(path: Path, broken: list[str]) -> Iterator[Image.Image]:
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
        raise CorpusError(
            f"{path}: neither a folder nor a sound tar file ({error}). Paths are relative to the "
            "folder in which the command is started."
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


def _read_idx(path: Path) -> Iterator[Image.Image]:
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
        raise CorpusError(
            f"{path}: cannot be read ({error.strerror}). Paths are relative to the folder in which "
            "the command is started."
        ) from None
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


def _read_hub(settings: HubImages, split: str, broken: list[str]) -> Iterator[Image.Image]:
    """One split of a dataset on the Hugging Face hub, or of a local folder in its formats."""
    # Imported here: it takes a second that no other source needs to spend.
    import datasets

    name, field = settings.name, settings.field
    dataset = load_hub_split(name, split, settings.config, settings.revision)
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
        picture = _decoded(_content(record[field]))
        if picture is None:
            broken.append(f"dataset {name!r}, split {split!r}, row {number}")
        else:
            read += 1
            yield picture
    if not read:
        raise CorpusError(
            f"dataset {name!r}, split {split!r}: none of its {len(dataset):,} images can be read"
        )


def _content(value: dict | None) -> bytes:
    """The file of a record's image, in the record or beside it."""
    if value is None:
        return b""
    if value["bytes"] is None and value["path"] is not None and Path(value["path"]).is_file():
        return Path(value["path"]).read_bytes()
    return value["bytes"] or b""


# --- pairs ------------------------------------------------------------------------------------


def _load_pairs(settings: PairImages) -> ImageParts:
    left, right = load_images(settings.left), load_images(settings.right)
    channels = image_shape(settings)[2]
    pairs = {}
    for number, part in enumerate(PARTS):
        halves = [
            np.broadcast_to(half, (*half.shape[:3], channels))  # grey is all three colours alike
            for half in (getattr(left, part), getattr(right, part))
        ]
        # A seed for each part, and no part's seed is that of another pairing's part.
        chosen = _paired(len(halves[0]), len(halves[1]), 3 * settings.pairing_seed + number)
        pairs[part] = np.concatenate(
            [half[indices] for half, indices in zip(halves, chosen, strict=True)], axis=2
        )
    notes = {"parts": ", ".join(f"{part} {len(pairs[part]):,}" for part in PARTS)}
    for side, half in (("left", left), ("right", right)):
        notes |= {f"{side} {label}": words for label, words in half.notes.items()}
    return ImageParts(pairs["train"], pairs["validation"], pairs["test"], notes)


def _paired(left: int, right: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which images of two sources of so many stand beside each other.

    >>> left, right = _paired(2, 5, seed=0)
    >>> sorted(left[:2].tolist()), right.tolist()
    ([0, 1], [0, 1, 2, 3, 4])
    """
    shorter, longer = sorted((left, right))
    generator = torch.Generator().manual_seed(seed)
    rounds = [torch.randperm(shorter, generator=generator) for _ in range(-(-longer // shorter))]
    turns, order = torch.cat(rounds)[:longer].numpy(), np.arange(longer)
    return (turns, order) if left < right else (order, turns)
